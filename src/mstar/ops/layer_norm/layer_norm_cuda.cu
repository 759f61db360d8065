#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/layer_norm/layer_norm_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kRowsABlock = 4;  // of a warp each
constexpr int kMostUnits = 8;   // that a lane holds: rows of 2048 elements

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

// One warp a row, which it keeps in registers: a row is read once, and out may be x.
template <int kUnits, class Out>
__global__ void __launch_bounds__(kRowsABlock* kWarp) normalise_short(Norm<Out> n) {
  await_inputs();
  const int row = blockIdx.x * kRowsABlock + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= n.rows) return;
  const float* const from = n.x + row * n.x_stride;
  float values[kUnits][kUnit];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kWarp + lane) * kUnit;
    load_unit(from + at, n.d - at, n.aligned, values[u]);  // zeros past the row
  }
  float sum = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) sum += values[u][i];
  }
  const float mean = warp_sum(sum) / static_cast<float>(n.d);
  float squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int left = n.d - (u * kWarp + lane) * kUnit;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      values[u][i] -= mean;
      if (i < left) squares = fmaf(values[u][i], values[u][i], squares);
    }
  }
  const float inverse = rsqrtf(warp_sum(squares) / static_cast<float>(n.d) + n.epsilon);
  Out* const to = n.out + row * n.out_stride;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kWarp + lane) * kUnit, left = n.d - at;
    if (left <= 0) continue;
    float gains[kUnit], shifts[kUnit] = {};
    load_unit(n.weight + at, left, n.aligned, gains);
    if (n.bias) load_unit(n.bias + at, left, n.aligned, shifts);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const float scaled = __fmul_rn(values[u][i] * inverse, gains[i]);
      values[u][i] = n.bias ? __fadd_rn(scaled, shifts[i]) : scaled;
    }
    store_unit(values[u], left, n.aligned, to + at);
  }
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
  const auto run_short = [&](auto kernel) {
    launch_kernel(context, kernel, (n.rows + kRowsABlock - 1) / kRowsABlock, kRowsABlock * kWarp, 0, n);
  };
  if (units <= 2) {
    run_short(normalise_short<2, Out>);
  } else if (units <= 4) {
    run_short(normalise_short<4, Out>);
  } else if (units == 5) {
    run_short(normalise_short<5, Out>);
  } else if (units <= kMostUnits) {
    run_short(normalise_short<kMostUnits, Out>);
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
