#include "mstar/ops/cuda_units.cuh"
#include "mstar/ops/elementwise/elementwise_kernels.h"

namespace mstar {
namespace {

using namespace cuda;
constexpr int kThreads = 256;

// out = f(a, b) on rows of `n`, a unit a thread. A thread reads and writes only its own elements, so that out may be a
// or b. `b` is a where f takes one argument.
template <class T, class Function, bool kWhole>
__global__ void __launch_bounds__(kThreads) map_rows(HeadRows<const T> a, HeadRows<const T> b, HeadRows<T> out, int n,
                                                     unsigned units_a_row, unsigned units, Function f) {
  await_inputs();
  const unsigned unit = blockIdx.x * kThreads + threadIdx.x;
  if (unit >= units) return;
  const int row = static_cast<int>(unit / units_a_row), at = static_cast<int>(unit % units_a_row) * kUnit;
  Unit<T, kWhole> of_a, of_b;
  of_a.load(a.row(row) + at, n - at);
  if constexpr (Function::kTakesTwo) of_b.load(b.row(row) + at, n - at);
  float first[kUnit], second[kUnit];
  of_a.get(first);
  if constexpr (Function::kTakesTwo) of_b.get(second);
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    if constexpr (Function::kTakesTwo) {
      first[i] = f.template apply<T>(first[i], second[i]);
    } else {
      first[i] = f.template apply<T>(first[i]);
    }
  }
  if constexpr (kWhole) {
    store_whole(first, out.row(row) + at);
  } else {
    store_unit(first, n - at, false, out.row(row) + at);
  }
}

struct Sum {
  static constexpr bool kTakesTwo = true;
  template <class T>
  __device__ float apply(float a, float b) const {
    return __fadd_rn(a, b);
  }
};
struct Activated {
  static constexpr bool kTakesTwo = false;
  Activation activation;
  template <class T>
  __device__ float apply(float x) const {
    return activate_one(activation, x);
  }
};
struct SiluTimes {
  static constexpr bool kTakesTwo = true;
  template <class T>
  __device__ float apply(float gate, float up) const {
    return silu_of<T>(gate) * up;
  }
};
struct SigmoidTimes {
  static constexpr bool kTakesTwo = true;
  template <class T>
  __device__ float apply(float gate, float x) const {
    if constexpr (sizeof(T) == 2) return __fdividef(x, 1.0f + __expf(-gate));
    return x / (1.0f + expf(-gate));
  }
};

template <class Function>
Status map(OpContext& context, const TensorView& a, const TensorView& b, const TensorView& out, Function f,
           const char* op) {
  if (out.empty()) return {};
  const std::int64_t n = head_row_width(out), units_a_row = (n + kUnit - 1) / kUnit;
  const std::int64_t units = num_head_rows(out) * units_a_row;
  if (units > (std::int64_t{1} << 31)) return internal_error(std::string(op) + ": too many elements for one call");
  const bool whole = n % kUnit == 0 && rows_on_16_bytes(a) && rows_on_16_bytes(b) && rows_on_16_bytes(out);
  return with_float_type(out.dtype, [&](auto element) {
    using T = decltype(element);
    HeadRows<const T> second = head_rows_of<const T>(b);
    if (b.shape.rank() == 2 && b.dim(0) == 1) second.token_stride = 0;
    const auto kernel = whole ? map_rows<T, Function, true> : map_rows<T, Function, false>;
    launch_kernel(context, kernel, static_cast<unsigned>((units + kThreads - 1) / kThreads), kThreads, 0,
                  head_rows_of<const T>(a), second, head_rows_of<T>(out), static_cast<int>(n),
                  static_cast<unsigned>(units_a_row), static_cast<unsigned>(units), f);
    return cuda_launch_status(op);
  });
}

// x Phi(x), with the complementary error function of Abramowitz and Stegun 7.1.26, good to 1.5e-7: two instructions of
// the special unit instead of erff's branches.
__device__ inline float gelu_approximate(float x) {
  const float z = fabsf(x) * 0.70710678f;
  const float t = __fdividef(1.0f, fmaf(0.3275911f, z, 1.0f));
  float sum = fmaf(t, 1.061405429f, -1.453152027f);
  sum = fmaf(sum, t, 1.421413741f);
  sum = fmaf(sum, t, -0.284496736f);
  sum = fmaf(sum, t, 0.254829592f);
  const float tail = 0.5f * t * sum * __expf(-z * z);  // of the smaller side
  return x * (x > 0 ? 1.0f - tail : tail);
}
template <class T, Activation kActivation>
__device__ inline float activated(float x) {
  if constexpr (kActivation == Activation::gelu_erf && sizeof(T) == 2) return gelu_approximate(x);
  return activate_one(kActivation, x);
}

constexpr int kBiasRows = 8;       // of a thread
constexpr int kBiasThreads = 128;  // that share rows
constexpr int kBiasAtOnce = 4;     // loads in flight

// A thread takes a unit of kBiasRows rows, whose bias it has in registers.
template <class T, Activation kActivation, bool kWhole>
__global__ void __launch_bounds__(kBiasThreads)
    activate_biased(HeadRows<const T> x, const float* bias, HeadRows<T> out, int rows, int n) {
  const int at = static_cast<int>(blockIdx.x * kBiasThreads + threadIdx.x) * kUnit, first = blockIdx.y * kBiasRows;
  float shifts[kUnit];
  load_unit(bias + at, n - at, kWhole, shifts);
  await_inputs();
  if (at >= n) return;
#pragma unroll
  for (int some = 0; some < kBiasRows; some += kBiasAtOnce) {
    Unit<T, kWhole> units[kBiasAtOnce];
#pragma unroll
    for (int r = 0; r < kBiasAtOnce; ++r) {
      const int row = first + some + r;
      units[r].load(x.row(min(row, rows - 1)) + at, n - at);
    }
#pragma unroll
    for (int r = 0; r < kBiasAtOnce; ++r) {
      const int row = first + some + r;
      if (row >= rows) break;
      float values[kUnit];
      units[r].get(values);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) values[i] = activated<T, kActivation>(__fadd_rn(values[i], shifts[i]));
      if constexpr (kWhole) {
        store_whole(values, out.row(row) + at);
      } else {
        store_unit(values, n - at, false, out.row(row) + at);
      }
    }
  }
}

template <class T, Activation kActivation>
Status launch_biased(OpContext& context, const ActivateArgs& args) {
  const int rows = static_cast<int>(args.out.dim(0)), n = static_cast<int>(args.out.dim(1));
  const bool whole = n % kUnit == 0 && rows_on_16_bytes(args.x) && rows_on_16_bytes(args.out) &&
                     reinterpret_cast<std::uintptr_t>(args.bias.pointer) % 16 == 0;
  const dim3 grid((n + kUnit * kBiasThreads - 1) / (kUnit * kBiasThreads), (rows + kBiasRows - 1) / kBiasRows);
  const auto kernel = whole ? activate_biased<T, kActivation, true> : activate_biased<T, kActivation, false>;
  launch_kernel(context, kernel, grid, kBiasThreads, 0, head_rows_of<const T>(args.x), args.bias.data<float>(),
                head_rows_of<T>(args.out), rows, n);
  return cuda_launch_status("activate");
}

Status activate_with_bias(OpContext& context, const ActivateArgs& args) {
  if (args.out.empty()) return {};
  if (args.out.dim(0) > std::int64_t{65535} * kBiasRows) return internal_error("activate: too many rows for one call");
  return with_float_type(args.out.dtype, [&](auto element) -> Status {
    using T = decltype(element);
    switch (args.activation) {
      case Activation::none:
        return launch_biased<T, Activation::none>(context, args);
      case Activation::gelu_erf:
        return launch_biased<T, Activation::gelu_erf>(context, args);
      case Activation::gelu_tanh:
        return launch_biased<T, Activation::gelu_tanh>(context, args);
      case Activation::silu:
        return launch_biased<T, Activation::silu>(context, args);
    }
    return internal_error("activate: no such activation");
  });
}

constexpr int kWarps = kThreads / kWarp;

// A thread reads and writes only its own elements, so that out may be x.
__global__ void __launch_bounds__(kThreads) softmax_rows(Rows x, Rows out, int n) {
  await_inputs();
  __shared__ float maxima[kWarps];
  __shared__ double sums[kWarps];
  const float* from = x.row(blockIdx.x);
  float* to = out.row(blockIdx.x);
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < n; i += kThreads) largest = fmaxf(largest, from[i]);
  largest = block_max<kWarps>(largest, maxima);
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += expf(from[i] - largest);
  const double total = block_sum<kWarps>(sum, sums);
  for (int i = threadIdx.x; i < n; i += kThreads) to[i] = static_cast<float>(expf(from[i] - largest) / total);
}

}  // namespace

Status add_cuda(OpContext& context, const AddArgs& args) {
  return map(context, args.a, args.b, args.out, Sum{}, "add");
}

Status activate_cuda(OpContext& context, const ActivateArgs& args) {
  if (args.bias.pointer) return activate_with_bias(context, args);
  return map(context, args.x, args.x, args.out, Activated{args.activation}, "activate");
}

Status silu_mul_cuda(OpContext& context, const SiluMulArgs& args) {
  return map(context, args.gate, args.up, args.out, SiluTimes{}, "silu_mul");
}

Status sigmoid_mul_cuda(OpContext& context, const SigmoidMulArgs& args) {
  return map(context, args.gate, args.x, args.out, SigmoidTimes{}, "sigmoid_mul");
}

Status softmax_cuda(OpContext& context, const SoftmaxArgs& args) {
  if (args.out.empty()) return {};
  launch_kernel(context, softmax_rows, static_cast<unsigned>(args.out.dim(0)), kThreads, 0, rows_of(args.x),
                rows_of(args.out), static_cast<int>(args.out.dim(1)));
  return cuda_launch_status("softmax");
}

}  // namespace mstar
