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

#include "mstar/ops/hopper.cuh"
#include "mstar/ops/linear/linear_cuda.cuh"

namespace mstar::cuda {

struct StreamProblem {
  CUtensorMap weight;  // [N, K], boxes of a tile's rows; gated: [N / 16][gate, up][8][K], boxes of kOutputs / 16
  CUtensorMap x;       // [M, K], boxes of a tile's rows of x
  Epilogue epilogue;
  bool in_fours = false;             // rows of out and residual start on 16 bytes, outputs are a multiple of 4
  bool alone = false;                // one part of K, and nothing follows the sums but a residual and rounding
  int m = 0, n = 0, num_blocks = 0;  // of 64 k
  int num_tiles = 0;
  int split = 1, split_log = 0;  // blocks of a cluster, 2^split_log; a block has one tile where it is not 1
  int gated = 0;                 // 0, or N / 2: of 16 rows of a tile 8 are of gate, then 8 of up
};

// How a kernel is built: a stage has kDepth blocks of 64 k.
template <int kGroups_, int kDepth_, int kWeightStages, int kTokenStages>
struct StreamShape {
  static constexpr int kGroups = kGroups_, kDepth = kDepth_, kWeights = kWeightStages, kTokens = kTokenStages;
};

template <int kFragments, int kTokenTiles, class Shape>
struct StreamLayout {
  static constexpr int kGroupThreads = 4 * kWarp, kConsumers = Shape::kGroups * kGroupThreads;
  static constexpr int kThreads = kConsumers + 2 * kWarp;                                         // two warps feed
  static constexpr int kBlock = 64;                                                               // k: 128 bytes a row
  static constexpr int kOutputs = 64 * kFragments;                                                // rows of W
  static constexpr int kTokens = 8 * kTokenTiles;                                                 // rows of x
  static constexpr int kWeightBytes = kOutputs * kBlock * 2, kTokenBytes = kTokens * kBlock * 2;  // of a block of k
  static constexpr int kAlignment = 1024;  // of the swizzle; dynamic shared memory promises 16
  static constexpr int kTokensAt = Shape::kWeights * Shape::kDepth * kWeightBytes;
  static constexpr int kBarriersAt = kTokensAt + Shape::kTokens * Shape::kDepth * kTokenBytes;
  static constexpr int kSumBarrierAt = kBarriersAt + (Shape::kWeights + Shape::kTokens) * 16;
  static constexpr int kPartAt = kSumBarrierAt + 16;  // of the second group: its registers, thread beside thread
  static constexpr int kSumsAt = kPartAt + (Shape::kGroups - 1) * kOutputs * kTokens * 4;
  // What a block finishes: from each of `split` blocks [kTokens][kOutputs / split + 4] sums; the 4 spread the banks.
  static constexpr int sum_bytes(int split) {
    return kTokens * (kOutputs + 4 * split) * static_cast<int>(sizeof(float));
  }
  static constexpr int shared_bytes(int split, bool alone) {
    return kAlignment + kSumsAt + (alone ? 0 : sum_bytes(split));
  }
};

// The stages of a ring in turn. A stage has two barriers of 8 bytes: its bytes are there; its warps have read them.
template <int kStages, int kBytes>
class Ring {
 public:
  __device__ Ring(unsigned data, unsigned barriers) : data_(data), barriers_(barriers) {}
  // Lane by lane.
  __device__ static void init(unsigned barriers, int lane, int readers) {
    if (lane >= kStages) return;
    init_barrier(barriers + lane * 16, 1);
    init_barrier(barriers + lane * 16 + 8, readers);
  }
  // Goes on at stage `stage`, which has been full `rounds` times.
  __device__ void begin_at(int stage, unsigned rounds) {
    stage_ = stage;
    parity_ = rounds & 1;
  }
  __device__ unsigned data() const { return data_ + static_cast<unsigned>(stage_) * kBytes; }
  __device__ unsigned full() const { return barriers_ + static_cast<unsigned>(stage_) * 16; }
  __device__ unsigned free() const { return full() + 8; }
  __device__ void await_full() const { wait_for_phase(full(), parity_); }
  // Of a stage that was full before.
  __device__ void await_free() const { wait_for_phase(free(), parity_ ^ 1); }
  __device__ void next() { skip(1); }
  // By less than the ring, back or forth.
  __device__ void skip(int count) {
    stage_ += count;
    if (stage_ >= kStages) {
      stage_ -= kStages;
      parity_ ^= 1;
    } else if (stage_ < 0) {
      stage_ += kStages;
      parity_ ^= 1;
    }
  }

 private:
  const unsigned data_, barriers_;
  int stage_ = 0;
  unsigned parity_ = 0;
};

template <class Element, int kFragments, int kTokenTiles, class Shape>
class Stream {
  using Layout = StreamLayout<kFragments, kTokenTiles, Shape>;
  using WeightRing = Ring<Shape::kWeights, Shape::kDepth * Layout::kWeightBytes>;
  using TokenRing = Ring<Shape::kTokens, Shape::kDepth * Layout::kTokenBytes>;
  using Sums = float[kFragments][kTokenTiles][4];
  // A stage is given back when the products of the group's next one are under way, if it has a place for that one.
  static constexpr bool kOneStageAhead = Shape::kWeights >= 2 * Shape::kGroups && Shape::kTokens >= 2 * Shape::kGroups;
  static_assert(Shape::kWeights * Shape::kDepth <= kWarp && Shape::kTokens * Shape::kDepth <= kWarp);
  // A stage is always the same group's: one that waited for a stage whose last use is another's would take that for its
  // own.
  static_assert(Shape::kWeights % Shape::kGroups == 0 && Shape::kTokens % Shape::kGroups == 0);

 public:
  __device__ Stream(const StreamProblem& problem, unsigned char* shared)
      : p_(problem),
        epilogue_(problem.epilogue),
        start_((address_in_shared(shared) + Layout::kAlignment - 1) & ~(Layout::kAlignment - 1u)),
        part_(reinterpret_cast<float4*>(shared + (start_ + Layout::kPartAt - address_in_shared(shared)))),
        sums_(reinterpret_cast<float*>(shared + (start_ + Layout::kSumsAt - address_in_shared(shared)))),
        rank_(problem.split > 1 ? __shfl_sync(kAllLanes, rank_in_cluster(), 0) : 0),
        first_token_(static_cast<int>(blockIdx.y) * Layout::kTokens),
        first_block_(problem.num_blocks * rank_ >> problem.split_log),
        num_blocks_((problem.num_blocks * (rank_ + 1) >> problem.split_log) - first_block_),
        unit_(static_cast<int>(blockIdx.x) >> problem.split_log),
        num_units_(static_cast<int>(gridDim.x) >> problem.split_log),
        num_stages_(stages_of(problem)) {}

  __device__ void run() {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
    constexpr int kWeightFeeder = Layout::kConsumers / kWarp, kTokenFeeder = kWeightFeeder + 1, kReaders = 4;
    if (warp == kWeightFeeder) {
      if (lane == 0) prefetch_map(p_.weight);
      WeightRing::init(start_ + Layout::kBarriersAt, lane, kReaders);
    } else if (warp == kTokenFeeder) {
      if (lane == 0) prefetch_map(p_.x);
      TokenRing::init(start_ + Layout::kBarriersAt + Shape::kWeights * 16, lane, kReaders);
    } else if (threadIdx.x == 0) {
      init_barrier(start_ + Layout::kSumBarrierAt, 1);
      arrive_and_expect(start_ + Layout::kSumBarrierAt, Layout::kTokens * Layout::kOutputs * 4);
    }
    publish_barriers();
    start_next();
    if (p_.split > 1) arrive_with_barriers();
    __syncthreads();
    if (warp == kWeightFeeder) return feed_weight();
    if (warp == kTokenFeeder) return feed_x();
    await_all_before();
    // The same for all lanes, as the compiler must know: products are for whole warps.
    const int group = __shfl_sync(kAllLanes, warp / 4, 0);
    WeightRing weights = weight_ring();
    TokenRing tokens = token_ring();
    weights.skip(group);
    tokens.skip(group);
#pragma unroll 1
    for (int tile = unit_; tile < p_.num_tiles; tile += num_units_) {
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
      if (give_to_first(group, tile, sums)) finish(tile, sums);
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
  // The first group's threads.
  __device__ static void meet() { asm volatile("bar.sync 1, %0;" ::"n"(Layout::kGroupThreads) : "memory"); }

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

  // Adds the second group's sums to the first's, in this order. Whether this is the first group.
  __device__ bool give_to_first(int group, int tile, Sums& sums) const {
    if constexpr (Shape::kGroups == 1) return true;
    const int thread = static_cast<int>(threadIdx.x) % Layout::kGroupThreads;
    if (group == 1) {
      if (tile != unit_) asm volatile("bar.sync 3, %0;" ::"n"(Layout::kConsumers) : "memory");  // read last time
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j)
          part_[(f * kTokenTiles + j) * Layout::kGroupThreads + thread] =
              make_float4(sums[f][j][0], sums[f][j][1], sums[f][j][2], sums[f][j][3]);
      asm volatile("bar.arrive 2, %0;" ::"n"(Layout::kConsumers) : "memory");
      return false;
    }
    asm volatile("bar.sync 2, %0;" ::"n"(Layout::kConsumers) : "memory");
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
    if (tile + num_units_ < p_.num_tiles) asm volatile("bar.arrive 3, %0;" ::"n"(Layout::kConsumers) : "memory");
    return true;
  }

  __device__ int limit() const { return p_.gated ? p_.gated : p_.n; }
  __device__ int tokens() const { return min(Layout::kTokens, p_.m - first_token_); }

  __device__ void finish(int tile, const Sums& sums) {
    if (!p_.alone) return finish_together(tile, sums);
    if (epilogue_.out.dtype == DType::f32) return finish_alone<float>(tile, sums);
    finish_alone<Element>(tile, sums);
  }

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
              out[(j * 8 + i) * epilogue_.out.stride + output] = narrow<Out>(gated(sums[f][j][i], sums[f][j][2 + i]));
        continue;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int output = (tile * kFragments + f) * 64 + warp * 16 + half * 8 + lane / 4;
        if (output >= p_.n) continue;
        float added[2 * kTokenTiles] = {};
        if (residual)
#pragma unroll
          for (int c = 0; c < 2 * kTokenTiles; ++c)
            if (c / 2 * 8 + c % 2 < left)
              added[c] = widen(residual[(c / 2 * 8 + c % 2) * epilogue_.residual.stride + output]);
#pragma unroll
        for (int c = 0; c < 2 * kTokenTiles; ++c) {
          const float sum = sums[f][c / 2][half * 2 + c % 2];
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
    meet_senders();
#pragma unroll 1
    while (at < share.fours * tokens()) {
      finish_four(share, at, added);
      at += Layout::kGroupThreads;
      added = residual_at(share, at);
    }
  }
  __device__ void meet_senders() const {
    if (p_.split > 1) {
      wait_for_phase(start_ + Layout::kSumBarrierAt, 0);
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

  // Of run `at` of all tokens' runs.
  __device__ float4 residual_at(const Share& share, int at) const {
    const int token = at >> share.fours_log, column = share.first + (at & (share.fours - 1)) * 4;
    if (!epilogue_.residual.data || token >= tokens() || column >= limit()) return make_float4(0, 0, 0, 0);
    return epilogue_.residual.get_four(first_token_ + token, column);
  }
  __device__ void finish_four(const Share& share, int at, float4 added) const {
    const int token = at >> share.fours_log, local = (at & (share.fours - 1)) * 4, column = share.first + local;
    if (column >= limit()) return;
    float4 value = total(token, local);
    if (p_.gated) {
      const float4 up = total(token, local + share.fours * 4);
      value = make_float4(gated(value.x, up.x), gated(value.y, up.y), gated(value.z, up.z), gated(value.w, up.w));
    }
    epilogue_.finish_four(first_token_ + token, column, value, added);
  }
  __device__ void finish_one(const Share& share, int token, int local) const {
    const int column = share.first + local;
    if (column >= limit()) return;
    float value = total_of_one(token, local);
    if (p_.gated) value = gated(value, total_of_one(token, local + share.fours * 4));
    epilogue_.finish(first_token_ + token, column, value);
  }
  __device__ static float gated(float gate, float up) { return __fmul_rn(activate_one(Activation::silu, gate), up); }

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
    const unsigned barrier = p_.split > 1 ? address_of_rank(start_ + Layout::kSumBarrierAt, to) : 0;
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
      sum = make_float4(__fadd_rn(sum.x, part.x), __fadd_rn(sum.y, part.y), __fadd_rn(sum.z, part.z),
                        __fadd_rn(sum.w, part.w));
    }
    return sum;
  }

  static constexpr int kOutputsLog = kFragments == 1 ? 6 : 7;
  static_assert(Layout::kOutputs == 1 << kOutputsLog);

  const StreamProblem& p_;
  const Epilogue epilogue_;  // read before the wait: the first look at a parameter takes long
  const unsigned start_;     // of the rings, on 1 KiB
  float4* const part_;
  float* const sums_;
  const int rank_, first_token_;
  const int first_block_, num_blocks_;  // of this block's part of K
  const int unit_, num_units_;          // the first of its tiles, and how far apart they are
  const int num_stages_;                // of a tile
};

template <class Element, int kFragments, int kTokenTiles, class Shape>
__global__ void __launch_bounds__(StreamLayout<kFragments, kTokenTiles, Shape>::kThreads, 1)
    stream_weight(const __grid_constant__ StreamProblem problem) {
  extern __shared__ unsigned char shared[];
  Stream<Element, kFragments, kTokenTiles, Shape>(problem, shared).run();
}

}  // namespace mstar::cuda
