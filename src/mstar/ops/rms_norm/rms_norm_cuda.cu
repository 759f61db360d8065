#include "mstar/ops/cuda_units.cuh"
#include "mstar/ops/rms_norm/rms_norm_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kBlockThreads = 128;  // of rows shorter than what so many threads hold: several a block

constexpr int longest_row(int lanes, int units) { return lanes * units * kUnit; }
constexpr int kLongestRow = longest_row(1024, 2);

template <class X, class Out>
struct Norm {
  HeadRows<const X> x, gate;  // gate: where kGated
  HeadRows<Out> out;
  const float* weight = nullptr;
  float epsilon = 0, weight_offset = 0;
  int rows = 0, d = 0;
};

// Over kLanes neighbours of a warp, or all kLanes threads of a block; the same tree on every call.
template <int kLanes>
__device__ inline float sum_of_lanes(float value) {
  if constexpr (kLanes > kWarp) {
    __shared__ float scratch[kLanes / kWarp];
    return block_sum<kLanes / kWarp>(value, scratch);
  } else {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
  }
}

// kLanes threads a row, kUnits units each, which stay in registers: a row is read once, and out may be x.
template <int kLanes, int kUnits, bool kWhole, bool kGated, class X, class Out>
__global__ void __launch_bounds__(kLanes > kBlockThreads ? kLanes : kBlockThreads)
    normalise(const __grid_constant__ Norm<X, Out> n) {
  await_inputs_after_next();
  constexpr int kRows = kLanes > kBlockThreads ? 1 : kBlockThreads / kLanes;
  const int lane = kRows == 1 ? threadIdx.x : threadIdx.x % kLanes;
  const int own = kRows == 1 ? blockIdx.x : blockIdx.x * kRows + threadIdx.x / kLanes;
  // Lanes without a row do another's work and keep it to themselves: sums are over whole warps.
  const int row = min(own, n.rows - 1);
  const int token = n.x.heads == 1 ? row : row / n.x.heads, head = n.x.heads == 1 ? 0 : row - token * n.x.heads;
  const auto row_of = [&](const auto& rows) { return rows.data + token * rows.token_stride + head * rows.head_stride; };
  Unit<X, kWhole> x[kUnits], gate[kUnits];
  Unit<float, kWhole> weight[kUnits];
  const X* const from = row_of(n.x);
  const X* const gates = row_of(n.gate);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kLanes + lane) * kUnit;
    x[u].load(from + at, n.d - at);
    if constexpr (kGated) gate[u].load(gates + at, n.d - at);
    weight[u].load(n.weight + at, n.d - at);
  }
  float values[kUnits][kUnit], squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    x[u].get(values[u]);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) squares = __fmaf_rn(values[u][i], values[u][i], squares);
  }
  squares = sum_of_lanes<kLanes>(squares);
  if (own >= n.rows) return;
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(n.d) + n.epsilon);
  Out* const to = row_of(n.out);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kLanes + lane) * kUnit;
    float gains[kUnit];
    weight[u].get(gains);
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      values[u][i] = __fmul_rn(__fmul_rn(values[u][i], inverse), __fadd_rn(gains[i], n.weight_offset));
    if constexpr (kGated) {
      float of_gate[kUnit];
      gate[u].get(of_gate);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) values[u][i] *= silu_of<X>(of_gate[i]);
    }
    if constexpr (kWhole) {
      if (at < n.d) store_whole(values[u], to + at);
    } else {
      store_unit(values[u], n.d - at, false, to + at);
    }
  }
}

template <int kLanes, int kUnits, bool kWhole, bool kGated, class X, class Out>
void launch(OpContext& context, const Norm<X, Out>& n) {
  constexpr int kThreads = kLanes > kBlockThreads ? kLanes : kBlockThreads, kRows = kThreads / kLanes;
  launch_kernel(context, normalise<kLanes, kUnits, kWhole, kGated, X, Out>, (n.rows + kRows - 1) / kRows, kThreads, 0,
                n);
}

// As many lanes as have one unit each, up to 256, so that few instructions are for what lies behind the row.
template <bool kGated, class X, class Out>
void launch_for_width(OpContext& context, const Norm<X, Out>& n, bool whole) {
  if (!whole && n.d <= longest_row(256, 2)) return launch<256, 2, false, kGated>(context, n);
  if (!whole) return launch<1024, 2, false, kGated>(context, n);
  if (n.d <= longest_row(16, 1)) return launch<16, 1, true, kGated>(context, n);
  if (n.d <= longest_row(32, 1)) return launch<32, 1, true, kGated>(context, n);
  if (n.d <= longest_row(128, 1)) return launch<128, 1, true, kGated>(context, n);
  if (n.d <= longest_row(256, 1)) return launch<256, 1, true, kGated>(context, n);
  if (n.d <= longest_row(256, 2)) return launch<256, 2, true, kGated>(context, n);
  launch<1024, 2, true, kGated>(context, n);
}

template <bool kGated, class X, class Out>
Status run(OpContext& context, const RmsNormArgs& args) {
  Norm<X, Out> n;
  n.x = head_rows_of<const X>(args.x);
  if constexpr (kGated) n.gate = head_rows_of<const X>(args.gate);
  n.out = head_rows_of<Out>(args.out);
  n.weight = args.weight.data<float>();
  n.epsilon = args.epsilon;
  n.weight_offset = args.weight_offset;
  n.rows = static_cast<int>(num_head_rows(args.x));
  n.d = static_cast<int>(head_row_width(args.x));
  const bool whole = n.d % kUnit == 0 && rows_on_16_bytes(args.x) && rows_on_16_bytes(args.out) &&
                     rows_on_16_bytes(args.weight) && (!kGated || rows_on_16_bytes(args.gate));
  launch_for_width<kGated>(context, n, whole);
  return cuda_launch_status("rms_norm");
}

}  // namespace

Status rms_norm_cuda(OpContext& context, const RmsNormArgs& args) {
  if (num_head_rows(args.x) == 0) return {};
  if (head_row_width(args.x) > kLongestRow)
    return internal_error("rms_norm: rows of more than " + std::to_string(kLongestRow));
  return with_float_type(args.x.dtype, [&](auto x) {
    using X = decltype(x);
    if (args.gate.pointer) return run<true, X, X>(context, args);
    return with_float_type(args.out.dtype, [&](auto out) { return run<false, X, decltype(out)>(context, args); });
  });
}

}  // namespace mstar
