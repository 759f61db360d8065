#include <type_traits>

#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/layer_norm/layer_norm_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kRowsABlock = 4;  // of a warp each
constexpr int kMostUnits = 8;   // that a lane holds: rows of 2048 elements
constexpr int kFewRows = 512;   // no more than start together, a block each

template <class Out>
struct Norm {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;  // or null
  float epsilon = 0;
  Out* out = nullptr;
  std::int64_t out_stride = 0;
  int rows = 0, d = 0;
  bool aligned = false;
};

// The sum of a row's units, each of a lane: those of a lane in their order, and then the lanes by a fixed tree. So a
// row's bits are the same in both kernels below.
template <int kUnits>
__device__ inline float sum_of_units(const float (&sums)[kUnits]) {
  float sum = sums[0];
#pragma unroll
  for (int u = 1; u < kUnits; ++u) sum += sums[u];
  return warp_sum(sum);
}
__device__ inline float sum_of(const float (&values)[kUnit]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) sum += values[i];
  return sum;
}
// Takes the mean off the values before `left`, and gives their squares' sum.
__device__ inline float centre(float (&values)[kUnit], float mean, int left) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    values[i] -= mean;
    if (i < left) squares = fmaf(values[i], values[i], squares);
  }
  return squares;
}
template <class Out>
__device__ inline void store_scaled(const Norm<Out>& n, float (&values)[kUnit], float inverse,
                                    const float (&gains)[kUnit], const float (&shifts)[kUnit], int left, Out* to) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const float scaled = __fmul_rn(values[i] * inverse, gains[i]);
    values[i] = n.bias ? __fadd_rn(scaled, shifts[i]) : scaled;
  }
  store_unit(values, left, n.aligned, to);
}

// One warp a row, which it keeps in registers: a row is read once, and out may be x.
template <int kUnits, class Out>
__global__ void __launch_bounds__(kRowsABlock* kWarp) normalise_short(const __grid_constant__ Norm<Out> n) {
  await_inputs();
  const int row = blockIdx.x * kRowsABlock + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= n.rows) return;
  const float* const from = n.x + row * n.x_stride;
  float values[kUnits][kUnit], sums[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kWarp + lane) * kUnit;
    load_unit(from + at, n.d - at, n.aligned, values[u]);  // zeros past the row
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) sums[u] = sum_of(values[u]);
  const float mean = sum_of_units(sums) / static_cast<float>(n.d);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) sums[u] = centre(values[u], mean, n.d - (u * kWarp + lane) * kUnit);
  const float inverse = rsqrtf(sum_of_units(sums) / static_cast<float>(n.d) + n.epsilon);
  Out* const to = n.out + row * n.out_stride;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kWarp + lane) * kUnit, left = n.d - at;
    if (left <= 0) continue;
    float gains[kUnit], shifts[kUnit] = {};
    load_unit(n.weight + at, left, n.aligned, gains);
    if (n.bias) load_unit(n.bias + at, left, n.aligned, shifts);
    store_scaled(n, values[u], inverse, gains, shifts, left, to + at);
  }
}

// Few rows: a block each, a unit a thread, and what is learned waits in registers before the row is there.
template <int kUnits, class Out>
__global__ void __launch_bounds__(kUnits* kWarp) normalise_few(const __grid_constant__ Norm<Out> n) {
  __shared__ float scratch[2][kUnits][kWarp];
  const int own = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, at = threadIdx.x * kUnit, left = n.d - at;
  float gains[kUnit], shifts[kUnit] = {};
  load_unit(n.weight + at, left, n.aligned, gains);
  if (n.bias) load_unit(n.bias + at, left, n.aligned, shifts);
  await_inputs_after_next();
  float values[kUnit];
  load_unit(n.x + blockIdx.x * n.x_stride + at, left, n.aligned, values);  // zeros past the row
  const auto sum_of_block = [&](float sum, int turn) {
    scratch[turn][own][lane] = sum;
    __syncthreads();
    float sums[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) sums[u] = scratch[turn][u][lane];
    return sum_of_units(sums);
  };
  const float mean = sum_of_block(sum_of(values), 0) / static_cast<float>(n.d);
  const float squares = sum_of_block(centre(values, mean, left), 1);
  const float inverse = rsqrtf(squares / static_cast<float>(n.d) + n.epsilon);
  if (left > 0) store_scaled(n, values, inverse, gains, shifts, left, n.out + blockIdx.x * n.out_stride + at);
}

constexpr int kLongWarps = 4;

// One block a row of any length; the sums in doubles, as on the CPU.
template <class Out>
__global__ void __launch_bounds__(kLongWarps* kWarp) normalise_long(Norm<Out> n) {
  await_inputs();
  __shared__ double scratch[kLongWarps];
  const float* const from = n.x + blockIdx.x * n.x_stride;
  double sum = 0, squares = 0;
  for (int i = threadIdx.x; i < n.d; i += blockDim.x) sum += from[i];
  const double mean = block_sum<kLongWarps>(sum, scratch) / n.d;
  for (int i = threadIdx.x; i < n.d; i += blockDim.x) squares += (from[i] - mean) * (from[i] - mean);
  const double inverse = 1.0 / sqrt(block_sum<kLongWarps>(squares, scratch) / n.d + n.epsilon);
  Out* const to = n.out + blockIdx.x * n.out_stride;
  for (int i = threadIdx.x; i < n.d; i += blockDim.x) {
    const float scaled = __fmul_rn(static_cast<float>((from[i] - mean) * inverse), n.weight[i]);
    to[i] = narrow<Out>(n.bias ? __fadd_rn(scaled, n.bias[i]) : scaled);
  }
}

template <class Out>
void launch(OpContext& context, const Norm<Out>& n) {
  const int units = (n.d + kWarp * kUnit - 1) / (kWarp * kUnit);
  const auto run_short = [&](auto few, auto kernel) {
    constexpr int kUnits = decltype(few)::value;
    if (n.rows <= kFewRows) {
      launch_kernel(context, normalise_few<kUnits, Out>, n.rows, kUnits * kWarp, 0, n);
    } else {
      launch_kernel(context, kernel, (n.rows + kRowsABlock - 1) / kRowsABlock, kRowsABlock * kWarp, 0, n);
    }
  };
  if (units <= 2) {
    run_short(std::integral_constant<int, 2>{}, normalise_short<2, Out>);
  } else if (units <= 4) {
    run_short(std::integral_constant<int, 4>{}, normalise_short<4, Out>);
  } else if (units == 5) {
    run_short(std::integral_constant<int, 5>{}, normalise_short<5, Out>);
  } else if (units <= kMostUnits) {
    run_short(std::integral_constant<int, kMostUnits>{}, normalise_short<kMostUnits, Out>);
  } else {
    launch_kernel(context, normalise_long<Out>, n.rows, kLongWarps * kWarp, 0, n);
  }
}

}  // namespace

Status layer_norm_cuda(OpContext& context, const LayerNormArgs& args) {
  if (args.x.dim(0) == 0) return {};
  return with_f32_or_bf16(args.out.dtype, [&](auto element) {
    using Out = decltype(element);
    const auto starts = [](const TensorView& view) {
      return !view.pointer || reinterpret_cast<std::uintptr_t>(view.pointer) % 16 == 0;
    };
    Norm<Out> n;
    n.x = args.x.data<float>();
    n.x_stride = args.x.stride(0);
    n.weight = args.weight.data<float>();
    n.bias = args.bias.data<float>();
    n.epsilon = args.epsilon;
    n.out = args.out.template data<Out>();
    n.out_stride = args.out.stride(0);
    n.rows = static_cast<int>(args.x.dim(0));
    n.d = static_cast<int>(args.x.dim(1));
    n.aligned = rows_on_16_bytes(args.x) && rows_on_16_bytes(args.out) && starts(args.weight) && starts(args.bias);
    launch(context, n);
    return cuda_launch_status("layer_norm");
  });
}

}  // namespace mstar
