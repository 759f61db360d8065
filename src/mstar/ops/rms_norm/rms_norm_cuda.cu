#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/rms_norm/rms_norm_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kUnits = 2;       // of a row that a thread holds
constexpr int kRowsABlock = 4;  // of short rows, which get a warp each

constexpr int longest_row(int warps) { return warps * kWarp * kUnits * kUnit; }

template <class X, class Out>
struct Norm {
  HeadRows<const X> x, gate;  // gate: where kGated
  HeadRows<Out> out;
  const float* weight = nullptr;
  float epsilon = 0, weight_offset = 0;
  int rows = 0, d = 0;
  bool aligned = false;
};

// kWarps warps a row. Each thread keeps its part of the row in registers: it is read once, and out may be x.
template <int kWarps, bool kGated, class X, class Out>
__global__ void __launch_bounds__((kWarps > 1 ? kWarps : kRowsABlock) * kWarp) normalise(Norm<X, Out> n) {
  await_inputs();
  constexpr bool kOneWarp = kWarps == 1;
  const int row = kOneWarp ? blockIdx.x * kRowsABlock + threadIdx.x / kWarp : blockIdx.x;
  const int thread = kOneWarp ? threadIdx.x % kWarp : threadIdx.x;
  if (row >= n.rows) return;
  float gains[kUnits][kUnit], values[kUnits][kUnit];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kWarps * kWarp + thread) * kUnit;
    load_unit(n.weight + at, n.d - at, n.aligned, gains[u]);
  }
  const X* from = n.x.row(row);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kWarps * kWarp + thread) * kUnit;
    load_unit(from + at, n.d - at, n.aligned, values[u]);
  }
  float gates[kUnits][kUnit];
  if constexpr (kGated) {
    const X* gate = n.gate.row(row);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int at = (u * kWarps * kWarp + thread) * kUnit;
      load_unit(gate + at, n.d - at, n.aligned, gates[u]);
    }
  }
  float squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
#pragma unroll
    for (int i = 0; i < kUnit; ++i) squares = __fmaf_rn(values[u][i], values[u][i], squares);
  if constexpr (kOneWarp) {
    squares = warp_sum(squares);
  } else {
    __shared__ float scratch[kWarps];
    squares = block_sum<kWarps>(squares, scratch);
  }
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(n.d) + n.epsilon);
  Out* to = n.out.row(row);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = (u * kWarps * kWarp + thread) * kUnit;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      values[u][i] = __fmul_rn(__fmul_rn(values[u][i], inverse), __fadd_rn(gains[u][i], n.weight_offset));
      if constexpr (kGated) values[u][i] *= activate_one(Activation::silu, gates[u][i]);
    }
    store_unit(values[u], n.d - at, n.aligned, to + at);
  }
}

template <int kWarps, bool kGated, class X, class Out>
void launch(OpContext& context, const Norm<X, Out>& n) {
  const int rows_a_block = kWarps == 1 ? kRowsABlock : 1;
  launch_kernel(context, normalise<kWarps, kGated, X, Out>, (n.rows + rows_a_block - 1) / rows_a_block,
                rows_a_block * kWarps * kWarp, 0, n);
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
  n.aligned = rows_on_16_bytes(args.x) && rows_on_16_bytes(args.out) && rows_on_16_bytes(args.weight) &&
              (!kGated || rows_on_16_bytes(args.gate));
  if (n.d <= longest_row(1)) {
    launch<1, kGated>(context, n);
  } else if (n.d <= longest_row(4)) {
    launch<4, kGated>(context, n);
  } else if (n.d <= longest_row(8)) {
    launch<8, kGated>(context, n);
  } else {
    launch<32, kGated>(context, n);
  }
  return cuda_launch_status("rms_norm");
}

}  // namespace

Status rms_norm_cuda(OpContext& context, const RmsNormArgs& args) {
  if (num_head_rows(args.x) == 0) return {};
  if (head_row_width(args.x) > longest_row(32))
    return internal_error("rms_norm: rows of more than " + std::to_string(longest_row(32)));
  return with_float_type(args.x.dtype, [&](auto x) {
    using X = decltype(x);
    if (args.gate.pointer) return run<true, X, X>(context, args);
    return with_float_type(args.out.dtype, [&](auto out) { return run<false, X, decltype(out)>(context, args); });
  });
}

}  // namespace mstar
