// y^T = W x^T for few rows of x: W passes once from memory through shared memory to the tensor cores.
//
// A block of 4 warps makes a tile of 64 kFragments outputs for 8 kTokenTiles rows of x, of a part of K. The stages of a
// ring in shared memory hold 64 k of both; all copies of a tile are under way long before they are needed, and those of
// the next tile while this one is finished. The parts of K of a tile are the blocks of one cluster: each block sends
// its sums to the blocks that finish them, which add them in the order of K. No memory is needed between blocks.
#pragma once

#include "mstar/ops/linear/linear_cuda.cuh"
#include "mstar/ops/linear/stream_primitives.cuh"

namespace mstar::cuda {

struct StreamProblem {
  const void* weight = nullptr;  // [N, K]
  FloatRows x;
  Epilogue epilogue;
  int m = 0, n = 0, k = 0;
  int num_tiles = 0;
  int split = 1, split_log = 0;  // blocks of a cluster, 2^split_log
  int gated = 0;                 // 0, or N / 2: a tile holds as many rows of gate as of up
};

template <int kFragments, int kTokenTiles, int kStages>
struct StreamLayout {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp;
  static constexpr int kDepth = 64;                 // k of a stage: 8 chunks of 16 bytes a row
  static constexpr int kOutputs = 64 * kFragments;  // rows of W
  static constexpr int kTokens = 8 * kTokenTiles;   // rows of x
  static constexpr int kStageBytes = (kOutputs + kTokens) * kDepth * 2;
  // What a block finishes: from each of `split` blocks [kTokens][kOutputs / split + 4] sums; the 4 spread the banks.
  static constexpr int sum_bytes(int split) {
    return kTokens * (kOutputs + 4 * split) * static_cast<int>(sizeof(float));
  }
  static constexpr int shared_bytes(int split) { return kStages * kStageBytes + sum_bytes(split); }
};

// Where chunk `chunk` of row `row` lies: rows 2i and 2i + 1 read the same chunks at once, so one of them is turned.
__device__ inline int chunk_at(int row, int chunk) { return row * 8 + (chunk ^ ((row & 1) << 2)); }

template <class Element, int kFragments, int kTokenTiles, int kStages>
class Stream {
  using Layout = StreamLayout<kFragments, kTokenTiles, kStages>;

 public:
  // What every stage needs is kept in registers: after an asm statement memory is read again, a parameter too.
  __device__ Stream(const StreamProblem& problem, uint4* shared)
      : p_(problem),
        ring_(shared),
        sums_(reinterpret_cast<float*>(shared + kStages * (Layout::kStageBytes / 16))),
        rank_(problem.split > 1 ? rank_in_cluster() : 0),
        first_token_(static_cast<int>(blockIdx.y) * Layout::kTokens),
        k_(problem.k),
        gated_(problem.gated),
        chunk_(static_cast<int>(threadIdx.x) % 8),
        first_row_(static_cast<int>(threadIdx.x) / 8),
        to_(shared_address(shared + chunk_at(first_row_, chunk_))) {
    const int steps = (k_ + Layout::kDepth - 1) / Layout::kDepth;
    first_step_ = steps * rank_ / p_.split;
    num_steps_ = steps * (rank_ + 1) / p_.split - first_step_;
    first_k_ = first_step_ * Layout::kDepth + chunk_ * 8;
#pragma unroll
    for (int i = 0; i < kTokenCopies; ++i) {
      const int local = first_row_ + i * 16, token = first_token_ + local;
      reads_token_[i] = local < Layout::kTokens && token < p_.m;
      tokens_[i] = p_.x.row<Element>(reads_token_[i] ? token : 0);
    }
  }

  __device__ void run() {
    const int unit = static_cast<int>(blockIdx.x) / p_.split, num_units = static_cast<int>(gridDim.x) / p_.split;
    const int num_tiles = p_.num_tiles;
    if (p_.split > 1) arrive_at_cluster();
    prefetch(unit);
    aim(unit);
    await_inputs();
    int load_tile = unit, load_step = 0, load_stage = 0;
    const auto load_next = [&] {
      if (load_tile < num_tiles) {
        load(load_stage, load_step);
        load_stage = load_stage + 1 == kStages ? 0 : load_stage + 1;
        if (++load_step == num_steps_) {
          load_step = 0;
          load_tile += num_units;
          if (load_tile < num_tiles) aim(load_tile);
        }
      }
      close_copy_group();  // an empty one keeps the count
    };
    for (int i = 0; i + 1 < kStages; ++i) load_next();
    int stage = 0;
    for (int tile = unit; tile < num_tiles; tile += num_units) {
      float sums[kFragments][kTokenTiles][4] = {};
      for (int step = 0; step < num_steps_; ++step) {
        wait_copy_groups<kStages - 2>();
        __syncthreads();
        load_next();  // into the stage that all have just left
        multiply(stage, sums);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      finish(tile, sums, tile + num_units < num_tiles);
    }
  }

 private:
  static constexpr int kWeightCopies = Layout::kOutputs / 16, kTokenCopies = (Layout::kTokens + 15) / 16;

  // The row of W behind row `local` of a tile, or -1.
  __device__ int weight_row(int tile, int local) const {
    if (!gated_) {
      const int row = tile * Layout::kOutputs + local;
      return row < p_.n ? row : -1;
    }
    constexpr int kHalf = Layout::kOutputs / 2;
    const int output = tile * kHalf + local % kHalf;
    return output < gated_ ? output + (local < kHalf ? 0 : gated_) : -1;
  }

  // Where this thread's copies of a tile of W begin.
  __device__ void aim(int tile) {
    const auto* const weight = static_cast<const Element*>(p_.weight);
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int row = weight_row(tile, first_row_ + i * 16);
      reads_weight_[i] = row >= 0;
      weights_[i] = weight + static_cast<std::int64_t>(row >= 0 ? row : 0) * k_;
    }
  }

  // What the ring takes of W at first, to the L2 cache: W is there before x.
  __device__ void prefetch(int tile) const {
    const int local = static_cast<int>(threadIdx.x);
    if (local >= Layout::kOutputs) return;
    const int row = weight_row(tile, local), k = first_step_ * Layout::kDepth;
    const int count = min(min(num_steps_, kStages - 1) * Layout::kDepth, p_.k - k);
    if (row < 0 || count <= 0) return;
    const auto* const weight = static_cast<const Element*>(p_.weight);
    prefetch_to_l2(weight + static_cast<std::int64_t>(row) * p_.k + k, count * static_cast<int>(sizeof(Element)));
  }

  // The thread's row i * 16 + first_row_ of a stage lies 2 KiB after the one before.
  __device__ void load(int stage, int step) {
    const int k = first_k_ + step * Layout::kDepth;
    const bool within = k < k_;
    const int from = within ? k : 0;
    const unsigned to = to_ + static_cast<unsigned>(stage) * Layout::kStageBytes;
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i)
      copy_16_async(to + i * 2048, weights_[i] + from, within && reads_weight_[i] ? 16 : 0);
#pragma unroll
    for (int i = 0; i < kTokenCopies; ++i)
      if (Layout::kTokens % 16 == 0 || first_row_ < Layout::kTokens % 16)
        copy_16_async(to + Layout::kOutputs * 128 + i * 2048, tokens_[i] + from, within && reads_token_[i] ? 16 : 0);
  }

  // A chunk of 8 k is the operand of two products: which k of the instruction is which of the chunk is free as long as
  // both operands agree.
  __device__ void multiply(int stage, float (&sums)[kFragments][kTokenTiles][4]) {
    const uint4* const weight = ring_ + stage * (Layout::kStageBytes / 16);
    const uint4* const x = weight + Layout::kOutputs * 8;
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int chunk = half * 4 + t;
      uint4 tokens[kTokenTiles];
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) tokens[j] = x[chunk_at(j * 8 + g, chunk)];
      uint4 low[kFragments], high[kFragments];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        const int row = (warp * kFragments + f) * 16 + g;
        low[f] = weight[chunk_at(row, chunk)];
        high[f] = weight[chunk_at(row + 8, chunk)];
      }
      // Products of the same sums lie apart, so that they need not wait for each other.
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j)
          multiply_16_8_16(Element{}, sums[f][j], low[f].x, high[f].x, low[f].y, high[f].y, tokens[j].x, tokens[j].y);
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j)
          multiply_16_8_16(Element{}, sums[f][j], low[f].z, high[f].z, low[f].w, high[f].w, tokens[j].z, tokens[j].w);
    }
  }

  // Sends sums to the blocks that finish them, and finishes this block's own outputs.
  __device__ void finish(int tile, const float (&sums)[kFragments][kTokenTiles][4], bool more) {
    if (p_.split > 1) wait_for_cluster();  // all have begun, or have read the sums of their last tile
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          send((warp * kFragments + f) * 16 + lane / 4 + i / 2 * 8, j * 8 + lane % 4 * 2 + i % 2, sums[f][j][i]);
    if (p_.split > 1) {
      arrive_at_cluster();
      wait_for_cluster();
    } else {
      __syncthreads();
    }
    const int outputs = (Layout::kOutputs >> p_.split_log) / (p_.gated ? 2 : 1);
    const int limit = p_.gated ? p_.gated : p_.n;
    for (int i = static_cast<int>(threadIdx.x); i < outputs * Layout::kTokens; i += Layout::kThreads) {
      const int local = i % outputs, token = i / outputs;
      const int output = (tile * p_.split + rank_) * outputs + local;
      if (output >= limit || first_token_ + token >= p_.m) continue;
      float value = total(token, local);
      if (p_.gated) value = __fmul_rn(activate_one(Activation::silu, value), total(token, outputs + local));
      p_.epilogue.finish(first_token_ + token, output, value);
    }
    if (p_.split > 1 && more) arrive_at_cluster();
  }

  // Row `local` of the tile is finished by the block that has its share of the outputs; a gated share is two runs.
  __device__ void send(int local, int token, float value) {
    const int share = Layout::kOutputs >> p_.split_log;
    int to, row;
    if (p_.gated) {
      constexpr int kHalf = Layout::kOutputs / 2;
      const int half_share = share / 2, output = local % kHalf;
      to = output * p_.split / kHalf;
      row = (output & (half_share - 1)) + (local < kHalf ? 0 : half_share);
    } else {
      to = local * p_.split / Layout::kOutputs;
      row = local & (share - 1);
    }
    float* const at = sums_ + (rank_ * Layout::kTokens + token) * (share + 4) + row;
    if (p_.split > 1) {
      store_to_rank(at, to, value);
    } else {
      *at = value;
    }
  }
  __device__ float total(int token, int row) const {
    const int stride = (Layout::kOutputs >> p_.split_log) + 4;
    float sum = sums_[token * stride + row];
    for (int from = 1; from < p_.split; ++from)
      sum = __fadd_rn(sum, sums_[(from * Layout::kTokens + token) * stride + row]);
    return sum;
  }

  const StreamProblem& p_;
  uint4* const ring_;
  float* const sums_;
  const int rank_, first_token_;
  const int k_, gated_;
  const int chunk_, first_row_;  // of this thread's copies: a chunk of every 16th row
  const unsigned to_;            // where they go in stage 0
  int first_step_, num_steps_, first_k_;
  const Element* weights_[kWeightCopies];
  const Element* tokens_[kTokenCopies];
  bool reads_weight_[kWeightCopies], reads_token_[kTokenCopies];
};

template <class Element, int kFragments, int kTokenTiles, int kStages>
__global__ void __launch_bounds__(StreamLayout<kFragments, kTokenTiles, kStages>::kThreads, 1)
    stream_weight(const __grid_constant__ StreamProblem problem) {
  extern __shared__ uint4 shared[];
  Stream<Element, kFragments, kTokenTiles, kStages>(problem, shared).run();
}

}  // namespace mstar::cuda
