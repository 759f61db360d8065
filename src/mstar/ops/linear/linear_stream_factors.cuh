// What the rows of x of a streaming product lack of a norm that was passed to it.
#pragma once

#include "mstar/ops/linear/linear_stream_layout.cuh"

namespace mstar::cuda {

__device__ inline float4 add_four(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}
// a + factor * b.
__device__ inline float4 add_times(float4 a, float factor, float4 b) {
  return make_float4(__fmaf_rn(factor, b.x, a.x), __fmaf_rn(factor, b.y, a.y), __fmaf_rn(factor, b.z, a.z),
                     __fmaf_rn(factor, b.w, a.w));
}

// Of rows first_row to first_row + kRows, four rows a lane in the first kRows / 4 lanes, the sum of parts
// [num_parts][stride], which the kernels in front leave. One warp.
template <int kRows>
__device__ inline float4 total_of_parts(const RowFactors& factors, const float* parts_of_rows, int first_row) {
  constexpr int kFours = kRows / 4, kAtOnce = kWarp / kFours;  // rows in fours; parts in lanes
  constexpr int kInFlight = kRows < 32 ? 8 : 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane % kFours * 4, first = lane / kFours;
  const float* const from = parts_of_rows + first_row + row;
  const bool reads = first < kAtOnce && first_row + row < factors.stride;
  float4 sum = make_float4(0, 0, 0, 0);
  await_all_before();
#pragma unroll 1
  for (int begin = first; begin < factors.num_parts; begin += kAtOnce * kInFlight) {
    float4 parts[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int part = begin + i * kAtOnce;
      parts[i] = reads && part < factors.num_parts
                     ? __ldcg(reinterpret_cast<const float4*>(from + part * factors.stride))
                     : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum = add_four(sum, parts[i]);
  }
#pragma unroll
  for (int lanes = kAtOnce / 2 * kFours; lanes >= kFours; lanes /= 2)
    sum = add_four(sum,
                   make_float4(__shfl_down_sync(kAllLanes, sum.x, lanes), __shfl_down_sync(kAllLanes, sum.y, lanes),
                               __shfl_down_sync(kAllLanes, sum.z, lanes), __shfl_down_sync(kAllLanes, sum.w, lanes)));
  return sum;
}

// Of a row, from the sums of its squares and of its elements, which are 0 for an RMS norm: 1 / sqrt(variance +
// epsilon), and -mean times that.
__device__ inline float2 factor_and_shift(const RowFactors& factors, float squares, float sum) {
  const float mean = __fmul_rn(sum, factors.inverse_width);
  const float whole = __fmaf_rn(-mean, mean, __fmaf_rn(squares, factors.inverse_width, factors.epsilon));
  const float factor = rsqrtf(whole < factors.epsilon ? factors.epsilon : whole);  // rounding may take it below
  return make_float2(factor, __fmul_rn(-mean, factor));
}

// The factors [kRows] of rows of x, and for a layer norm what times a weighted gain is added, shifts [kRows], both in
// shared memory. A warp of its own; for a layer norm two, the second of which adds the elements (barrier 5) while the
// first adds their squares, and writes both. Each lane says by itself that it has written (see StreamFinish). The order
// of sums depends on the number of parts and on kRows alone.
template <int kRows, bool kLayerNorms>
__device__ inline void make_row_factors(const RowFactors factors, int first_row, bool adds_elements, float* factors_to,
                                        float* shifts_to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  auto* const shifts = reinterpret_cast<float4*>(shifts_to) + lane;
  const bool has_rows = lane < kRows / 4;
  const float4 total =
      total_of_parts<kRows>(factors, kLayerNorms && adds_elements ? factors.sums : factors.squares, first_row);
  if (kLayerNorms && adds_elements) {
    if (has_rows) *shifts = total;
    asm volatile("bar.sync 5, %0;" ::"n"(2 * kWarp) : "memory");
    return;
  }
  if (kLayerNorms && factors.sums) asm volatile("bar.sync 5, %0;" ::"n"(2 * kWarp) : "memory");
  if (!has_rows) return;
  const float4 sums = kLayerNorms && factors.sums ? *shifts : make_float4(0, 0, 0, 0);
  const float2 x = factor_and_shift(factors, total.x, sums.x), y = factor_and_shift(factors, total.y, sums.y),
               z = factor_and_shift(factors, total.z, sums.z), w = factor_and_shift(factors, total.w, sums.w);
  reinterpret_cast<float4*>(factors_to)[lane] = make_float4(x.x, y.x, z.x, w.x);
  if (kLayerNorms && factors.sums) *shifts = make_float4(x.y, y.y, z.y, w.y);
}

}  // namespace mstar::cuda
