// What follows a tile's sums in the streaming product: the groups' and the cluster's sums are added, then come factors,
// shifts, bias, activation or gate, residual, and what the next norm wants.
#pragma once

#include "mstar/ops/cuda_units.cuh"
#include "mstar/ops/linear/linear_stream_factors.cuh"

namespace mstar::cuda {

// The finishing of one block's tiles. Sums: lane l of warp w of a group holds of each fragment of 64 rows of W and each
// tile of 8 rows of x what multiply_group() says.
template <class Element, int kFragments, int kTokenTiles, class Shape>
class StreamFinish {
  using Layout = StreamLayout<kFragments, kTokenTiles, Shape>;
  static constexpr bool kLayerNorms = Shape::kPassesLayerNorms && Layout::kTokens <= kMostPassedRows;

 public:
  using Sums = float[kFragments][kTokenTiles][4];

  // `start`: of the block's layout in shared memory.
  __device__ StreamFinish(const StreamProblem& problem, unsigned char* shared, unsigned start, int rank)
      : p_(problem),
        epilogue_(problem.epilogue),
        left_(problem.left),
        weighted_gains_(kLayerNorms ? problem.factors.weighted_gains : nullptr),
        sum_barrier_(start + Layout::kSumBarrierAt),
        factor_barrier_(start + Layout::kFactorBarrierAt),
        part_barriers_(start + Layout::kPartBarriersAt),
        factors_(reinterpret_cast<float*>(shared + (start + Layout::kFactorsAt - address_in_shared(shared)))),
        shifts_(factors_ + Layout::kTokens),
        part_(reinterpret_cast<float4*>(shared + (start + Layout::kPartAt - address_in_shared(shared)))),
        sums_(reinterpret_cast<float*>(shared + (start + Layout::kSumsAt - address_in_shared(shared)))),
        rank_(rank),
        first_token_(static_cast<int>(blockIdx.y) * Layout::kTokens) {}

  // A warp of its own, of a layer norm two: see make_row_factors().
  __device__ void make_factors(bool adds_elements) const {
    make_row_factors<Layout::kTokens, Shape::kPassesLayerNorms>(p_.factors, first_token_, adds_elements, factors_,
                                                                shifts_);
    if (!adds_elements) arrive(factor_barrier_);  // each lane what it wrote
  }
  // The first group's threads.
  __device__ void multiply_by_factors(bool is_first_tile, Sums& sums) const {
    if (!p_.factors.squares) return;
    if (is_first_tile) wait_for_phase(factor_barrier_, 0);
    const auto* const own = reinterpret_cast<const float2*>(factors_ + threadIdx.x % 4 * 2);
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      const float2 factor = own[j * 4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        sums[f][j][0] = __fmul_rn(sums[f][j][0], factor.x);
        sums[f][j][1] = __fmul_rn(sums[f][j][1], factor.y);
        sums[f][j][2] = __fmul_rn(sums[f][j][2], factor.x);
        sums[f][j][3] = __fmul_rn(sums[f][j][3], factor.y);
      }
    }
  }

  // What outputs are finished with comes from memory: it is asked for while the kernels in front run.
  __device__ void ask_for_vectors(int first_tile, int step) const {
    if (!left_.gain && !epilogue_.bias && !weighted_gains_) return;
    constexpr int kSector = 8, kSectors = Layout::kOutputs / kSector;  // floats
    const int thread = static_cast<int>(threadIdx.x), vector = thread / kSectors;
    const float* const from = vector == 0   ? left_.gain
                              : vector == 1 ? epilogue_.bias
                              : vector == 2 ? weighted_gains_
                                            : nullptr;
    if (!from) return;
#pragma unroll 1
    for (int tile = first_tile; tile < p_.num_tiles; tile += step) {
      const Share share(p_, tile, rank_);
      const int column = share.first + thread % kSectors * kSector;
      if (column < min(share.first + share.fours * 4, p_.n))
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + column));
    }
  }

  // Adds the second group's sums to the first's, in this order. Whether this is the first group. `parity`: of the
  // tile's number among the block's. One tile takes a named barrier, which is sooner; several take two of the others,
  // since racecheck does not follow named ones that a side only arrives at from tile to tile.
  __device__ bool give_to_first(int group, bool is_first_tile, bool is_last_tile, unsigned parity, Sums& sums) const {
    if constexpr (Shape::kGroups == 1) return true;
    const int thread = static_cast<int>(threadIdx.x) % Layout::kGroupThreads;
    const bool is_only_tile = is_first_tile && is_last_tile;
    if (group == 1) {
      if (!is_first_tile) wait_for_phase(part_barriers_ + 8, parity ^ 1);  // read last time
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j)
          part_[(f * kTokenTiles + j) * Layout::kGroupThreads + thread] =
              make_float4(sums[f][j][0], sums[f][j][1], sums[f][j][2], sums[f][j][3]);
      if (is_only_tile) {
        asm volatile("bar.arrive 2, %0;" ::"n"(Layout::kConsumers) : "memory");
      } else {
        arrive(part_barriers_);
      }
      return false;
    }
    if (is_only_tile) {
      asm volatile("bar.sync 2, %0;" ::"n"(Layout::kConsumers) : "memory");
    } else {
      wait_for_phase(part_barriers_, parity);
    }
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        const float4 other = part_[(f * kTokenTiles + j) * Layout::kGroupThreads + thread];
        sums[f][j][0] = __fadd_rn(sums[f][j][0], other.x);
        sums[f][j][1] = __fadd_rn(sums[f][j][1], other.y);
        sums[f][j][2] = __fadd_rn(sums[f][j][2], other.z);
        sums[f][j][3] = __fadd_rn(sums[f][j][3], other.w);
      }
    if (!is_last_tile) arrive(part_barriers_ + 8);
    return true;
  }

  __device__ void finish(int tile, const Sums& sums) {
    if (!p_.alone) return finish_together(tile, sums);
    if (epilogue_.out.dtype == DType::f32) return finish_alone<float>(tile, sums);
    finish_alone<Element>(tile, sums);
  }

 private:
  __device__ int limit() const { return p_.gated ? p_.gated : p_.n; }
  __device__ int tokens() const { return min(Layout::kTokens, p_.m - first_token_); }

  // The first group's threads.
  __device__ static void meet() { asm volatile("bar.sync 1, %0;" ::"n"(Layout::kGroupThreads) : "memory"); }

  // From registers: lanes 4 g + t have rows g and g + 8 of 16 of W, columns 2 t and 2 t + 1 of 8 of x.
  template <class Out>
  __device__ void finish_alone(int tile, const Sums& sums) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int token = lane % 4 * 2, left = tokens() - token;
    Out* const out = epilogue_.out.row<Out>(first_token_ + token);
    const Out* const residual = epilogue_.residual.data ? epilogue_.residual.row<Out>(first_token_ + token) : nullptr;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      if (p_.gated) {
        const int output = (tile * kFragments + f) * 32 + warp * 8 + lane / 4;
        if (output >= p_.gated) continue;
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (j * 8 + i < left)
              out[(j * 8 + i) * epilogue_.out.stride + output] =
                  narrow<Out>(gated<Out>(sums[f][j][i], sums[f][j][2 + i]));
        continue;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int output = (tile * kFragments + f) * 64 + warp * 16 + half * 8 + lane / 4;
        if (output >= p_.n) continue;
        const float weighted = kLayerNorms && weighted_gains_ ? weighted_gains_[output] : 0.0f;
        const float bias = kLayerNorms && epilogue_.bias ? epilogue_.bias[output] : 0.0f;
        float added[2 * kTokenTiles] = {};
        if (residual)
#pragma unroll
          for (int c = 0; c < 2 * kTokenTiles; ++c)
            if (c / 2 * 8 + c % 2 < left)
              added[c] = widen(residual[(c / 2 * 8 + c % 2) * epilogue_.residual.stride + output]);
#pragma unroll
        for (int c = 0; c < 2 * kTokenTiles; ++c) {
          float sum = sums[f][c / 2][half * 2 + c % 2];
          if (kLayerNorms && weighted_gains_) sum = __fmaf_rn(shifts_[token + c / 2 * 8 + c % 2], weighted, sum);
          if (kLayerNorms && epilogue_.bias) sum = __fadd_rn(sum, bias);
          if (c / 2 * 8 + c % 2 < left)
            out[(c / 2 * 8 + c % 2) * epilogue_.out.stride + output] =
                narrow<Out>(residual ? __fadd_rn(sum, added[c]) : sum);
        }
      }
    }
  }

  // Sends sums to the blocks that finish them, and finishes this block's own outputs.
  __device__ void finish_together(int tile, const Sums& sums) {
    if (p_.split > 1) {
      wait_for_cluster();  // all have begun
    } else {
      meet();  // all have read the sums of the tile before
    }
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) send(f, half, sums[f]);
    const Share share(p_, tile, rank_);
    if (!p_.in_fours) {
      meet_senders();
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < share.fours * 4 * tokens(); i += Layout::kGroupThreads)
        finish_one(share, i / (share.fours * 4), i % (share.fours * 4));
      return;
    }
    // What is added is on its way while the sums are.
    int at = static_cast<int>(threadIdx.x);
    float4 added = residual_at(share, at);
    const Vectors vectors = vectors_of(share, at);  // of this column, where all of the thread's runs are
    meet_senders();
    const int count = share.fours * tokens();
    // Whole warps, as their sums of squares must.
#pragma unroll 1
    while (at / kWarp * kWarp < count) {
      const float4 value = at < count ? finish_four(share, at, added, vectors) : make_float4(0, 0, 0, 0);
      if (left_.gain) leave(share, at, count, value, vectors.gains);
      at += Layout::kGroupThreads;
      added = residual_at(share, at);
    }
  }
  __device__ void meet_senders() const {
    if (p_.split > 1) {
      wait_for_phase(sum_barrier_, 0);
    } else {
      meet();
    }
  }

  // The outputs of a tile that this block finishes: neighbours, in runs of four.
  struct Share {
    __device__ Share(const StreamProblem& p, int tile, int rank)
        : fours_log(kOutputsLog - 2 - p.split_log - (p.gated ? 1 : 0)),
          fours(1 << fours_log),
          first(((tile << p.split_log) + rank) << (fours_log + 2)) {}
    const int fours_log, fours, first;
  };

  // What four neighbouring columns are finished with, whatever the token.
  struct Vectors {
    float4 gains, biases, weighted_gains;
  };
  __device__ Vectors vectors_of(const Share& share, int at) const {
    const float4 zeros = make_float4(0, 0, 0, 0);
    Vectors out{zeros, zeros, zeros};
    const int column = share.first + (at & (share.fours - 1)) * 4;
    if (column >= limit()) return out;
    out.biases = epilogue_.bias_of_four(column);
    if (kLayerNorms && weighted_gains_) out.weighted_gains = *reinterpret_cast<const float4*>(weighted_gains_ + column);
    if (left_.gain) {
      const float4 gain = *reinterpret_cast<const float4*>(left_.gain + column);
      out.gains = make_float4(__fadd_rn(gain.x, left_.offset), __fadd_rn(gain.y, left_.offset),
                              __fadd_rn(gain.z, left_.offset), __fadd_rn(gain.w, left_.offset));
    }
    return out;
  }

  // Of run `at` of all tokens' runs.
  __device__ float4 residual_at(const Share& share, int at) const {
    const int token = at >> share.fours_log, column = share.first + (at & (share.fours - 1)) * 4;
    if (!epilogue_.residual.data || token >= tokens() || column >= limit()) return make_float4(0, 0, 0, 0);
    return epilogue_.residual.get_four(first_token_ + token, column);
  }
  // What is stored; zeros behind the last output.
  __device__ float4 finish_four(const Share& share, int at, float4 added, const Vectors& vectors) const {
    const int token = at >> share.fours_log, local = (at & (share.fours - 1)) * 4, column = share.first + local;
    if (column >= limit()) return make_float4(0, 0, 0, 0);
    float4 value = total(token, local);
    if (p_.gated) {
      const float4 up = total(token, local + share.fours * 4);
      value = make_float4(gated(value.x, up.x), gated(value.y, up.y), gated(value.z, up.z), gated(value.w, up.w));
    }
    if (kLayerNorms && weighted_gains_) value = add_times(value, shifts_[token], vectors.weighted_gains);
    value = epilogue_.finished_four(value, vectors.biases, added);
    epilogue_.out.set_four(first_token_ + token, column, value);
    return value;
  }

  // Run `at` of `count`, which holds `value`, for the norm behind: neighbours in a warp have a token's other runs.
  __device__ void leave(const Share& share, int at, int count, float4 value, float4 gains) const {
    const int token = first_token_ + (at >> share.fours_log), column = share.first + (at & (share.fours - 1)) * 4;
    float squares = __fmul_rn(value.x, value.x);
    squares = __fmaf_rn(value.y, value.y, squares);
    squares = __fmaf_rn(value.z, value.z, squares);
    squares = __fmaf_rn(value.w, value.w, squares);
    squares = sum_of_run(share, squares);
    float sum = 0;
    if (kLayerNorms && left_.sums)
      sum = sum_of_run(share, __fadd_rn(__fadd_rn(value.x, value.y), __fadd_rn(value.z, value.w)));
    if (at >= count) return;
    if (column == share.first) {
      const int part = (share.first >> (share.fours_log + 2)) * left_.squares_stride + token;
      left_.squares[part] = squares;
      if (kLayerNorms && left_.sums) left_.sums[part] = sum;
    }
    if (column < p_.n)
      FloatRows::narrow_four(make_float4(__fmul_rn(value.x, gains.x), __fmul_rn(value.y, gains.y),
                                         __fmul_rn(value.z, gains.z), __fmul_rn(value.w, gains.w)),
                             left_.rows.row<__nv_bfloat16>(token) + column);
  }
  // Over the lanes that have a token's runs.
  __device__ static float sum_of_run(const Share& share, float sum) {
#pragma unroll 1
    for (int lanes = 1; lanes < share.fours; lanes *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, lanes));
    return sum;
  }
  __device__ void finish_one(const Share& share, int token, int local) const {
    const int column = share.first + local;
    if (column >= limit()) return;
    float value = total_of_one(token, local);
    if (p_.gated) value = gated(value, total_of_one(token, local + share.fours * 4));
    if (kLayerNorms && weighted_gains_) value = __fmaf_rn(shifts_[token], weighted_gains_[column], value);
    epilogue_.finish(first_token_ + token, column, value);
  }
  // What becomes an Out, or what the output's dtype is.
  template <class Out>
  __device__ static float gated(float gate, float up) {
    return __fmul_rn(silu_of<Out>(gate), up);
  }
  __device__ float gated(float gate, float up) const {
    return epilogue_.out.dtype == DType::f32 ? gated<float>(gate, up) : gated<Element>(gate, up);
  }

  // An output is finished by the block that has its share of the tile's; a gated share is a run of gate, then of up.
  // Half 0 are rows 16 w + l / 4 of a fragment, half 1 the rows 8 below.
  __device__ void send(int fragment, int half, const float (&sums)[kTokenTiles][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int share = Layout::kOutputs >> p_.split_log;
    int to, row;
    if (p_.gated) {
      const int output = fragment * 32 + warp * 8 + lane / 4, half_share = share / 2;
      to = (output << p_.split_log) / (Layout::kOutputs / 2);
      row = (output & (half_share - 1)) + half * half_share;
    } else {
      const int output = fragment * 64 + warp * 16 + half * 8 + lane / 4;
      to = (output << p_.split_log) / Layout::kOutputs;
      row = output & (share - 1);
    }
    const int stride = share + 4;
    float* const at = sums_ + (rank_ * Layout::kTokens + lane % 4 * 2) * stride + row;
    const unsigned remote = p_.split > 1 ? address_of_rank(address_in_shared(at), to) : 0;
    const unsigned barrier = p_.split > 1 ? address_of_rank(sum_barrier_, to) : 0;
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = sums[j][half * 2 + i];
        const int offset = (j * 8 + i) * stride;
        if (p_.split > 1) {
          store_at_rank(remote + static_cast<unsigned>(offset) * 4, sum, barrier);
        } else {
          at[offset] = sum;
        }
      }
  }
  __device__ float total_of_one(int token, int row) const {
    const int stride = (Layout::kOutputs >> p_.split_log) + 4;
    float sum = sums_[token * stride + row];
#pragma unroll 1
    for (int from = 1; from < p_.split; ++from)
      sum = __fadd_rn(sum, sums_[(from * Layout::kTokens + token) * stride + row]);
    return sum;
  }
  __device__ float4 total(int token, int row) const {
    const int stride = (Layout::kOutputs >> p_.split_log) + 4;
    const float* at = sums_ + token * stride + row;
    float4 sum = *reinterpret_cast<const float4*>(at);
#pragma unroll 2
    for (int from = 1; from < p_.split; ++from) {
      at += Layout::kTokens * stride;
      const float4 part = *reinterpret_cast<const float4*>(at);
      sum = add_four(sum, part);
    }
    return sum;
  }

  static constexpr int kOutputsLog = kFragments == 1 ? 6 : 7;
  static_assert(Layout::kOutputs == 1 << kOutputsLog);

  const StreamProblem& p_;
  const Epilogue epilogue_;  // read before the wait: the first look at a parameter takes long
  const LeftNorm left_;
  const float* const weighted_gains_;
  const unsigned sum_barrier_, factor_barrier_;  // the latter of the lanes that make factors
  const unsigned part_barriers_;                 // see give_to_first()
  float* const factors_;                         // [kTokens]
  float* const shifts_;                          // [kTokens]: what a weighted gain is multiplied by and added
  float4* const part_;
  float* const sums_;
  const int rank_, first_token_;
};

}  // namespace mstar::cuda
