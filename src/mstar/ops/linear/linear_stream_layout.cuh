// What the streaming product is told, how its shared memory lies, and its rings of stages.
#pragma once

#include "mstar/ops/hopper.cuh"
#include "mstar/ops/linear/linear_cuda.cuh"

namespace mstar::cuda {

// What the rows of x lack of a norm, made of sums over their parts; see RowSquares.
struct RowFactors {
  const float* squares = nullptr;         // [num_parts][stride], or null: x is multiplied as it is
  const float* sums = nullptr;            // the same of the elements, or null: of an RMS norm
  const float* weighted_gains = nullptr;  // [N], with sums
  int stride = 0, num_parts = 0;
  float inverse_width = 0, epsilon = 0;
};

// What an added-to residual leaves for the norm behind it; see PassedNorm.
struct LeftNorm {
  const float* gain = nullptr;  // [N], or null: nothing is left
  float offset = 0;             // added to each gain
  FloatRows rows;               // [M, N] bf16
  float* squares = nullptr;     // [parts][squares_stride], a part for each block and tile
  float* sums = nullptr;        // the same, or null: for an RMS norm
  int squares_stride = 0;
};

struct StreamProblem {
  CUtensorMap weight;  // [N, K], boxes of a tile's rows; gated: [N / 16][gate, up][8][K], boxes of kOutputs / 16
  CUtensorMap x;       // [M, K], boxes of a tile's rows of x
  RowFactors factors;
  Epilogue epilogue;
  LeftNorm left;
  bool in_fours = false;             // rows of out and residual start on 16 bytes, outputs are a multiple of 4
  bool alone = false;                // one part of K, and nothing follows the sums that whole rows of a tile are for
  int m = 0, n = 0, num_blocks = 0;  // of 64 k
  int num_tiles = 0;
  int split = 1, split_log = 0;  // blocks of a cluster, 2^split_log; a block has one tile where it is not 1
  int gated = 0;                 // 0, or N / 2: of 16 rows of a tile 8 are of gate, then 8 of up
};

// How a kernel is built: a stage has kDepth blocks of 64 k. Only with kPassesLayerNorms it takes and leaves what layer
// norms want beside RMS norms: the others would pay for that in registers.
template <int kGroups_, int kDepth_, int kWeightStages, int kTokenStages, bool kLayerNorms = false>
struct StreamShape {
  static constexpr int kGroups = kGroups_, kDepth = kDepth_, kWeights = kWeightStages, kTokens = kTokenStages;
  static constexpr bool kPassesLayerNorms = kLayerNorms;
};

template <int kFragments, int kTokenTiles, class Shape>
struct StreamLayout {
  static constexpr int kGroupThreads = 4 * kWarp, kConsumers = Shape::kGroups * kGroupThreads;
  static constexpr int kThreads = kConsumers + 2 * kWarp;                                     // two warps feed
  static constexpr int kMostThreads = kThreads + (Shape::kPassesLayerNorms ? 2 : 1) * kWarp;  // who make factors
  // That registers must leave room for: one fragment and two groups go in pairs (linear_stream_cuda.cu).
  static constexpr int kLeastBlocks = Shape::kPassesLayerNorms && kFragments == 1 && Shape::kGroups == 2 ? 2 : 1;
  static constexpr int kBlock = 64;                                                               // k: 128 bytes a row
  static constexpr int kOutputs = 64 * kFragments;                                                // rows of W
  static constexpr int kTokens = 8 * kTokenTiles;                                                 // rows of x
  static constexpr int kWeightBytes = kOutputs * kBlock * 2, kTokenBytes = kTokens * kBlock * 2;  // of a block of k
  static constexpr int kAlignment = 1024;  // of the swizzle; dynamic shared memory promises 16
  static constexpr int kTokensAt = Shape::kWeights * Shape::kDepth * kWeightBytes;
  static constexpr int kBarriersAt = kTokensAt + Shape::kTokens * Shape::kDepth * kTokenBytes;
  static constexpr int kSumBarrierAt = kBarriersAt + (Shape::kWeights + Shape::kTokens) * 16;
  static constexpr int kFactorBarrierAt = kSumBarrierAt + 8;
  static constexpr int kPartBarriersAt = kFactorBarrierAt + 8;  // the second group's part is there; it has been read
  static constexpr int kFactorsAt = kPartBarriersAt + 16;       // [kTokens] factors, [kTokens] shifts
  static constexpr int kPartAt = kFactorsAt + (Shape::kPassesLayerNorms ? 2 : 1) * kTokens *
                                                  4;  // of the second group: its registers, thread by thread
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

}  // namespace mstar::cuda
