// y^T = W x^T for few rows of x: W passes once from memory through shared memory to the tensor cores.
//
// A block makes a tile of 64 kFragments outputs for 8 kTokenTiles rows of x, of a part of K. One warp feeds a ring of
// stages of W with the copy engine, one a ring of x, and one or two groups of four warps multiply, each every other
// stage; the second group gives its sums to the first. The first stages of W are asked for before the kernels in front
// have ended: nothing writes weights. The parts of K of a tile are the blocks of one cluster: each block sends its sums
// to the blocks that finish them, which add them in the order of K. No memory is needed between blocks.
//
// What a stage costs a warp is latency of its few instructions (two barriers, their release: 300 clocks on an H200) and
// not the products (25 clocks each 64 x 16), hence stages of several blocks of 64 k, and two groups.
#pragma once

#include "mstar/ops/linear/linear_stream_finish.cuh"

namespace mstar::cuda {

template <class Element, int kFragments, int kTokenTiles, class Shape>
class Stream {
  using Layout = StreamLayout<kFragments, kTokenTiles, Shape>;
  using WeightRing = Ring<Shape::kWeights, Shape::kDepth * Layout::kWeightBytes>;
  using TokenRing = Ring<Shape::kTokens, Shape::kDepth * Layout::kTokenBytes>;
  using Finish = StreamFinish<Element, kFragments, kTokenTiles, Shape>;
  using Sums = typename Finish::Sums;
  // A stage is given back when the products of the group's next one are under way, if it has a place for that one.
  static constexpr bool kOneStageAhead = Shape::kWeights >= 2 * Shape::kGroups && Shape::kTokens >= 2 * Shape::kGroups;
  static_assert(Shape::kWeights * Shape::kDepth <= kWarp && Shape::kTokens * Shape::kDepth <= kWarp);
  // A stage is always the same group's: one that waited for a stage whose last use is another's would take that for its
  // own.
  static_assert(Shape::kWeights % Shape::kGroups == 0 && Shape::kTokens % Shape::kGroups == 0);

 public:
  __device__ Stream(const StreamProblem& problem, unsigned char* shared)
      : p_(problem),
        start_((address_in_shared(shared) + Layout::kAlignment - 1) & ~(Layout::kAlignment - 1u)),
        rank_(problem.split > 1 ? __shfl_sync(kAllLanes, rank_in_cluster(), 0) : 0),
        first_token_(static_cast<int>(blockIdx.y) * Layout::kTokens),
        first_block_(problem.num_blocks * rank_ >> problem.split_log),
        num_blocks_((problem.num_blocks * (rank_ + 1) >> problem.split_log) - first_block_),
        unit_(static_cast<int>(blockIdx.x) >> problem.split_log),
        num_units_(static_cast<int>(gridDim.x) >> problem.split_log),
        num_stages_(stages_of(problem)),
        finish_(problem, shared, start_, rank_) {}

  __device__ void run() {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
    constexpr int kWeightFeeder = Layout::kConsumers / kWarp, kTokenFeeder = kWeightFeeder + 1, kReaders = 4;
    constexpr int kFactorMaker = kTokenFeeder + 1;  // and the next one, where the launch has these warps
    if (warp == kWeightFeeder) {
      if (lane == 0) prefetch_map(p_.weight);
      WeightRing::init(start_ + Layout::kBarriersAt, lane, kReaders);
    } else if (warp == kTokenFeeder) {
      if (lane == 0) prefetch_map(p_.x);
      TokenRing::init(start_ + Layout::kBarriersAt + Shape::kWeights * 16, lane, kReaders);
    } else if (threadIdx.x == 0) {
      init_barrier(start_ + Layout::kSumBarrierAt, 1);
      init_barrier(start_ + Layout::kFactorBarrierAt, kWarp);
      init_barrier(start_ + Layout::kPartBarriersAt, Layout::kGroupThreads);
      init_barrier(start_ + Layout::kPartBarriersAt + 8, Layout::kGroupThreads);
      arrive_and_expect(start_ + Layout::kSumBarrierAt, Layout::kTokens * Layout::kOutputs * 4);
    }
    publish_barriers();
    start_next();
    if (p_.split > 1) arrive_with_barriers();
    __syncthreads();
    if (warp == kWeightFeeder) return feed_weight();
    if (warp == kTokenFeeder) return feed_x();
    if (warp >= kFactorMaker) return finish_.make_factors(warp > kFactorMaker);
    finish_.ask_for_vectors(unit_, num_units_);
    await_all_before();
    // The same for all lanes, as the compiler must know: products are for whole warps.
    const int group = __shfl_sync(kAllLanes, warp / 4, 0);
    WeightRing weights = weight_ring();
    TokenRing tokens = token_ring();
    weights.skip(group);
    tokens.skip(group);
    unsigned parity = 0;  // of this tile, as barriers count them
#pragma unroll 1
    for (int tile = unit_; tile < p_.num_tiles; tile += num_units_, parity ^= 1) {
      Sums sums = {};
      unsigned free_weight = 0, free_tokens = 0;  // of the group's stage before
      const int count = (num_stages_ - group + Shape::kGroups - 1) / Shape::kGroups;
#pragma unroll 1
      for (int turn = 0; turn < count; ++turn) {
        weights.await_full();
        tokens.await_full();
        multiply(weights.data(), tokens.data(), turn > 0, sums);
        if constexpr (kOneStageAhead) {
          if (turn > 0) {
            wait_products<1>();
            release(free_weight, free_tokens);
          }
          free_weight = weights.free();
          free_tokens = tokens.free();
        } else {
          wait_products<0>();
          release(weights.free(), tokens.free());
        }
        weights.skip(Shape::kGroups);
        tokens.skip(Shape::kGroups);
      }
      wait_products<0>();
      pin_all(sums);
      if (kOneStageAhead && count > 0) release(free_weight, free_tokens);
      // To the group's first stage of the next tile.
      const int past = count * Shape::kGroups + group;
      weights.skip(num_stages_ + group - past);
      tokens.skip(num_stages_ + group - past);
      const bool is_first = tile == unit_, is_last = tile + num_units_ >= p_.num_tiles;
      if (!finish_.give_to_first(group, is_first, is_last, parity, sums)) continue;
      finish_.multiply_by_factors(is_first, sums);
      finish_.finish(tile, sums);
    }
  }

 private:
  // Where a block has several tiles each of them takes a multiple of the groups, so that a stage stays the same
  // group's; what is too many of K are zeros.
  __device__ int stages_of(const StreamProblem& problem) const {
    const int stages = (num_blocks_ + Shape::kDepth - 1) / Shape::kDepth;
    if (problem.num_tiles <= num_units_) return stages;
    return (stages + Shape::kGroups - 1) / Shape::kGroups * Shape::kGroups;
  }
  __device__ WeightRing weight_ring() const { return {start_, start_ + Layout::kBarriersAt}; }
  __device__ TokenRing token_ring() const {
    return {start_ + Layout::kTokensAt, start_ + Layout::kBarriersAt + Shape::kWeights * 16};
  }
  __device__ static void release(unsigned free_weight, unsigned free_tokens) {
    if (threadIdx.x % kWarp != 0) return;
    arrive(free_weight);
    arrive(free_tokens);
  }
  // The stages of all tiles in turn.
  __device__ int num_stages_of_all() const {
    return unit_ < p_.num_tiles ? ((p_.num_tiles - 1 - unit_) / num_units_ + 1) * num_stages_ : 0;
  }
  __device__ int tile_of(int index) const { return unit_ + index / num_stages_ * num_units_; }
  // In k; behind this part of K a column behind all, where the copy engine finds zeros.
  __device__ int column_of(int index, int block) const {
    const int own = index % num_stages_ * Shape::kDepth + block;
    return (own < num_blocks_ ? first_block_ + own : p_.num_blocks) * Layout::kBlock;
  }

  __device__ void copy_weight(const WeightRing& ring, int index, int block) const {
    const unsigned to = ring.data() + static_cast<unsigned>(block) * Layout::kWeightBytes;
    const int column = column_of(index, block), tile = tile_of(index);
    if (p_.gated) {
      copy_box(to, p_.weight, column, 0, 0, tile * (Layout::kOutputs / 16), ring.full());
    } else {
      copy_box(to, p_.weight, column, tile * Layout::kOutputs, ring.full());
    }
  }
  __device__ void copy_x(const TokenRing& ring, int index, int block) const {
    copy_box(ring.data() + static_cast<unsigned>(block) * Layout::kTokenBytes, p_.x, column_of(index, block),
             first_token_, ring.full());
  }

  // One warp each. The first time round each lane copies a block, so that all are asked for at once; then one lane goes
  // on as stages come free.
  __device__ void feed_weight() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, count = num_stages_of_all();
    WeightRing ring = weight_ring();
    const int own = lane / Shape::kDepth, block = lane % Shape::kDepth;
    if (own < min(Shape::kWeights, count)) {
      ring.begin_at(own, 0);
      if (block == 0) arrive_and_expect(ring.full(), Shape::kDepth * Layout::kWeightBytes);
      copy_weight(ring, own, block);
    }
    if (lane > 0) return;
    ring.begin_at(0, 1);
#pragma unroll 1
    for (int i = Shape::kWeights; i < count; ++i, ring.next()) {
      ring.await_free();
      arrive_and_expect(ring.full(), Shape::kDepth * Layout::kWeightBytes);
#pragma unroll 1
      for (int b = 0; b < Shape::kDepth; ++b) copy_weight(ring, i, b);
    }
  }
  __device__ void feed_x() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, count = num_stages_of_all();
    TokenRing ring = token_ring();
    const int own = lane / Shape::kDepth, block = lane % Shape::kDepth;
    const bool fills = own < min(Shape::kTokens, count);
    ring.begin_at(own, 0);
    if (fills && block == 0) arrive_and_expect(ring.full(), Shape::kDepth * Layout::kTokenBytes);
    await_all_before();
    if (fills) copy_x(ring, own, block);
    if (lane > 0) return;
    ring.begin_at(0, 1);
#pragma unroll 1
    for (int i = Shape::kTokens; i < count; ++i, ring.next()) {
      ring.await_free();
      arrive_and_expect(ring.full(), Shape::kDepth * Layout::kTokenBytes);
#pragma unroll 1
      for (int b = 0; b < Shape::kDepth; ++b) copy_x(ring, i, b);
    }
  }

  __device__ static void pin_all(Sums& sums) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) pin(sums[f]);
  }
  __device__ static void multiply(unsigned weight_at, unsigned x_at, bool add, Sums& sums) {
    constexpr std::uint64_t kFragmentBytes = 64 * 128;
    const std::uint64_t weight = operand_at(weight_at), x = operand_at(x_at);
    pin_all(sums);
    begin_products();
#pragma unroll
    for (int b = 0; b < Shape::kDepth; ++b)
#pragma unroll
      for (int k = 0; k < Layout::kBlock / 16; ++k)
#pragma unroll
        for (int f = 0; f < kFragments; ++f)
          multiply_group(Element{}, sums[f], weight + ((b * Layout::kWeightBytes + f * kFragmentBytes) >> 4) + 2 * k,
                         x + ((b * Layout::kTokenBytes) >> 4) + 2 * k, add || b > 0 || k > 0);
    close_products();
    pin_all(sums);
  }

  const StreamProblem& p_;
  const unsigned start_;  // of the rings, on 1 KiB
  const int rank_, first_token_;
  const int first_block_, num_blocks_;  // of this block's part of K
  const int unit_, num_units_;          // the first of its tiles, and how far apart they are
  const int num_stages_;                // of a tile
  Finish finish_;
};

template <class Element, int kFragments, int kTokenTiles, class Shape>
__global__ void __launch_bounds__(StreamLayout<kFragments, kTokenTiles, Shape>::kMostThreads,
                                  StreamLayout<kFragments, kTokenTiles, Shape>::kLeastBlocks)
    stream_weight(const __grid_constant__ StreamProblem problem) {
  extern __shared__ unsigned char shared[];
  Stream<Element, kFragments, kTokenTiles, Shape>(problem, shared).run();
}

}  // namespace mstar::cuda
