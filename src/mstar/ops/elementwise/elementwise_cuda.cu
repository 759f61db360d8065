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
