// Rows of one token: the keys of a row are cut into splits that are attended by different blocks and then combined.
//
// A block reads 64 keys and values of one kv head once for up to eight query heads. Tensor cores multiply tiles of 16
// rows: rows 0..7 are the heads' queries rounded to bf16 and rows 8..15 what the rounding left, so that scores are
// nearly those of f32 queries; the weights of the values likewise. A row's splits depend on its length alone, so its
// bits do not depend on other rows.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/tile_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;
using bf16 = __nv_bfloat16;

constexpr int kHeadsAtOnce = 8;
constexpr int kWeightStride = kTileKeys + 8;
constexpr int kMultiprocessors = 132;
constexpr int kMultiprocessorShared = 227 * 1024;

// Of a query that sees num_keys keys.
struct Splits {
  int chunks, chunks_each, count;
  __device__ explicit Splits(int num_keys)
      : chunks((max(num_keys, 0) + kTileKeys - 1) / kTileKeys),
        chunks_each((chunks + kAttentionMaxSplits - 1) / kAttentionMaxSplits),
        count(chunks_each ? (chunks + chunks_each - 1) / chunks_each : 0) {}
};

// What the blocks leave for the combination, [place, head, split]: place is the token of a call that has only rows of
// one token, else the row.
struct Partials {
  float* sums = nullptr;     // [.., kHeadDim], of weighted values
  float2* scales = nullptr;  // largest score (a power of two), sum of weights
  int heads = 0;
  int max_splits = 0;
  __device__ std::int64_t at(int place, int head, int split) const {
    return (static_cast<std::int64_t>(place) * heads + head) * max_splits + split;
  }
};

struct RowSpan {
  int begin, count;
  __device__ RowSpan(const std::int32_t* offsets, int row, bool all_tokens)
      : begin(offsets[row]), count(offsets[row + 1] - begin) {
    if (!all_tokens && count != 1) count = 0;
  }
  template <class Keys>
  __device__ int num_keys(const Keys& keys, int row, int i) const {
    return keys.num_keys(row, count, i);
  }
};

template <int kHeadDim>
struct SplitMemory {
  bf16 keys[kTileKeys * kTileStride<kHeadDim>];
  bf16 values[kTileKeys * kTileStride<kHeadDim>];
  float weights[kHeadsAtOnce * kWeightStride];
  std::int64_t places[kTileKeys];
  float largest[kTileWarps][kHeadsAtOnce];
  float sums[kTileWarps][kHeadsAtOnce];
};

__device__ inline void load_pair(const float* from, float& x, float& y) {
  const float2 pair = *reinterpret_cast<const float2*>(from);
  x = pair.x, y = pair.y;
}
__device__ inline void load_pair(const bf16* from, float& x, float& y) {
  const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
  x = pair.x, y = pair.y;
}

// The A fragments of one token's queries: this lane's head is lane / 4.
template <class Q, int kHeadDim>
__device__ inline void load_queries(const Q* heads, int num_heads, std::uint32_t (&to)[kHeadDim / 16][4]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    float x[4] = {};
    if (g < num_heads) {
      load_pair(heads + g * kHeadDim + k * 16 + 2 * t, x[0], x[1]);
      load_pair(heads + g * kHeadDim + k * 16 + 2 * t + 8, x[2], x[3]);
    }
    split_pair(x[0], x[1], to[k][0], to[k][1]);
    split_pair(x[2], x[3], to[k][2], to[k][3]);
  }
}

// Where the keys of a chunk lie. Reads the plan's arrays alone.
template <int kHeadDim, class Keys>
__device__ inline void find_places(SplitMemory<kHeadDim>& memory, const Keys& pages, int row, int kv_head, int num_keys,
                                   int chunk) {
  if (threadIdx.x >= kTileKeys) return;
  const int position = chunk * kTileKeys + threadIdx.x;
  memory.places[threadIdx.x] = position < num_keys ? pages.at(row, position, kv_head) : -1;
}

// The chunks that one block attends of a token: those of every gridDim.z-th split, from split blockIdx.z on.
struct Cursor {
  int split, chunk, last;  // chunks [chunk, last) of the split are left
  __device__ Cursor(const Splits& splits, int split) : split(split), chunk(split * splits.chunks_each) {
    last = min(chunk + splits.chunks_each, splits.chunks);
  }
  __device__ bool valid(const Splits& splits) const { return split < splits.count; }
  __device__ bool ends_split() const { return chunk + 1 == last; }
  __device__ Cursor next(const Splits& splits) const {
    if (ends_split()) return Cursor(splits, split + gridDim.z);
    Cursor out = *this;
    ++out.chunk;
    return out;
  }
};

// All that one block attends of one token; every thread of the block calls it. The keys of the next chunk are on their
// way while this one's values are worked on, and its values while the next one's scores are. `found`: the places of the
// first chunk are there already.
template <class Q, int kHeadDim, class Keys>
__device__ inline void attend_token(SplitMemory<kHeadDim>& memory, const Q* heads, int num_heads, const Keys& pages,
                                    int row, int kv_head, int num_keys, const Splits& splits, bool found, float factor,
                                    float* sums_out, float2* scales_out, std::int64_t head_stride) {
  constexpr int kOwn = kHeadDim / kTileWarps;  // dimensions of this warp's part of the sums
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  Cursor now(splits, blockIdx.z);
  if (!found) find_places(memory, pages, row, kv_head, num_keys, now.chunk);
  __syncthreads();
  copy_tile_async<kHeadDim>(memory.keys, pages.keys, memory.places);
  commit_copies();
  copy_tile_async<kHeadDim>(memory.values, pages.values, memory.places);
  commit_copies();
  std::uint32_t queries[kHeadDim / 16][4];
  load_queries<Q, kHeadDim>(heads, num_heads, queries);
  float sums[kOwn / 8][4] = {};
  float largest = -INFINITY, total = 0;
  while (true) {
    const Cursor next = now.next(splits);
    const bool more = next.valid(splits);
    wait_copies<1>();
    __syncthreads();

    // This warp's 16 keys.
    float scores[2][4] = {};
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      std::uint32_t b[4];
      load_matrices(b, key_rows<kHeadDim>(memory.keys, warp * 16, k * 16, lane));
      multiply_add(scores[0], queries[k], b[0], b[1]);
      multiply_add(scores[1], queries[k], b[2], b[3]);
    }
    float weights[2][2];
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int position = now.chunk * kTileKeys + warp * 16 + j * 8 + 2 * t + i;
        weights[j][i] = position < num_keys ? (scores[j][i] + scores[j][i + 2]) * factor : -INFINITY;
        most = fmaxf(most, weights[j][i]);
      }
    }
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    if (t == 0) memory.largest[warp][g] = most;
    __syncthreads();  // and the keys and the places are read
    if (more) find_places(memory, pages, row, kv_head, num_keys, next.chunk);
    const float before = largest;
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) largest = fmaxf(largest, memory.largest[w][g]);  // finite: a chunk has a key
    const float correction = exp2f(before - largest);
    total *= correction;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weights[j][i] = exp2f(weights[j][i] - largest);
        total += weights[j][i];
      }
      *reinterpret_cast<float2*>(memory.weights + g * kWeightStride + warp * 16 + j * 8 + 2 * t) =
          make_float2(weights[j][0], weights[j][1]);
    }
#pragma unroll
    for (int n = 0; n < kOwn / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= correction;
    }
    wait_copies<0>();
    __syncthreads();
    if (more) {
      copy_tile_async<kHeadDim>(memory.keys, pages.keys, memory.places);
      commit_copies();
    }

    // All keys, this warp's dimensions.
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      std::uint32_t a[4];
      const float* const own = memory.weights + g * kWeightStride + k * 16 + 2 * t;
      const float2 x = *reinterpret_cast<const float2*>(own), y = *reinterpret_cast<const float2*>(own + 8);
      split_pair(x.x, x.y, a[0], a[1]);
      split_pair(y.x, y.y, a[2], a[3]);
#pragma unroll
      for (int n = 0; n < kOwn / 8; n += 2) {
        std::uint32_t b[4];
        load_matrices_transposed(b, value_rows<kHeadDim>(memory.values, k * 16, warp * kOwn + n * 8, lane));
        multiply_add(sums[n], a, b[0], b[1]);
        multiply_add(sums[n + 1], a, b[2], b[3]);
      }
    }
    if (now.ends_split()) {
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      if (t == 0) memory.sums[warp][g] = total;
    }
    __syncthreads();  // the values and the weights are read
    if (more) {
      copy_tile_async<kHeadDim>(memory.values, pages.values, memory.places);
      commit_copies();
    }
    if (now.ends_split()) {
      if (g < num_heads) {
        const std::int64_t at = now.split + g * head_stride;
        if (warp == 0 && t == 0) {
          float all = 0;
#pragma unroll
          for (int w = 0; w < kTileWarps; ++w) all += memory.sums[w][g];
          scales_out[at] = make_float2(largest, all);
        }
        float* const out = sums_out + at * kHeadDim + warp * kOwn + 2 * t;
#pragma unroll
        for (int n = 0; n < kOwn / 8; ++n)
          *reinterpret_cast<float2*>(out + n * 8) = make_float2(sums[n][0] + sums[n][2], sums[n][1] + sums[n][3]);
      }
#pragma unroll
      for (int n = 0; n < kOwn / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] = 0;
      }
      largest = -INFINITY;
      total = 0;
    }
    if (!more) return;
    now = next;
  }
}

// Blocks (kv head and eight of its heads, row, split): those that find nothing to do come last.
template <class Q, int kHeadDim, class Keys>
__global__ void __launch_bounds__(kTileThreads)
    attend_splits(TokenHeads<const Q> q, const std::int32_t* offsets, Keys pages, int group, float factor,
                  bool all_tokens, Partials partials) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& memory = *reinterpret_cast<SplitMemory<kHeadDim>*>(shared);
  const int row = blockIdx.y, blocks = (group + kHeadsAtOnce - 1) / kHeadsAtOnce;
  const int kv_head = blockIdx.x / blocks, within = blockIdx.x % blocks * kHeadsAtOnce;
  const int head = kv_head * group + within, num_heads = min(kHeadsAtOnce, group - within);
  // What the plan says was there before the step's kernels, so it is read before theirs have ended. Every block waits
  // for them: the kernel behind this one relies on it.
  const RowSpan span(offsets, row, all_tokens);
  bool found = false;
  if (span.count > 0) {
    const int num_keys = span.num_keys(pages, row, 0);
    const Splits splits(num_keys);
    const Cursor first(splits, blockIdx.z);
    found = first.valid(splits);
    if (found) find_places(memory, pages, row, kv_head, num_keys, first.chunk);
  }
  await_inputs();
  for (int i = 0; i < span.count; ++i) {
    const int num_keys = span.num_keys(pages, row, i), token = span.begin + i;
    const Splits splits(num_keys);
    if (static_cast<int>(blockIdx.z) >= splits.count) continue;
    const std::int64_t at = partials.at(all_tokens ? token : row, head, 0);
    attend_token<Q, kHeadDim>(memory, q.data + token * q.token_stride + head * kHeadDim, num_heads, pages, row, kv_head,
                              num_keys, splits, found, factor, partials.sums + at * kHeadDim, partials.scales + at,
                              partials.max_splits);
    found = false;
    __syncthreads();  // memory.sums are read
  }
}

__device__ inline void store_four(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }
__device__ inline void store_four(bf16* to, float4 v) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack_pair(v.x, v.y), pack_pair(v.z, v.w));
}

// One block per (row, head): the weighted mean of its splits, in one order.
template <class Out, int kHeadDim, class Keys>
__global__ void __launch_bounds__(kTileThreads)
    combine_splits(const std::int32_t* offsets, Keys pages, bool all_tokens, Partials partials, TokenHeads<Out> out) {
  constexpr int kLanes = kHeadDim / 4;            // threads of one split
  constexpr int kAtOnce = kTileThreads / kLanes;  // splits
  constexpr int kAhead = 8;                       // loads in flight
  static_assert(kAttentionMaxSplits == 2 * kWarp);
  __shared__ float4 parts[kTileThreads];
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % kWarp;
  const int own = threadIdx.x / kLanes, four = threadIdx.x % kLanes;
  const RowSpan span(offsets, row, all_tokens);
  await_inputs();
  for (int i = 0; i < span.count; ++i) {
    const int count = Splits(span.num_keys(pages, row, i)).count, token = span.begin + i;
    const std::int64_t at = partials.at(all_tokens ? token : row, head, 0);
    // Every warp works the splits' weights out for itself: lane i has those of splits i and i + 32.
    const float2 none = make_float2(-INFINITY, 0);
    const float2 low = lane < count ? partials.scales[at + lane] : none;
    const float2 high = lane + kWarp < count ? partials.scales[at + lane + kWarp] : none;
    const float largest = warp_max(fmaxf(low.x, high.x));
    const float low_weight = lane < count ? exp2f(low.x - largest) : 0.0f;
    const float high_weight = lane + kWarp < count ? exp2f(high.x - largest) : 0.0f;
    const float total = warp_sum(low.y * low_weight + high.y * high_weight);
    const auto* const sums = reinterpret_cast<const float4*>(partials.sums + at * kHeadDim) + four;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int base = 0; base < count; base += kAtOnce * kAhead) {
      float4 values[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int split = base + a * kAtOnce + own;
        values[a] = split < count ? sums[static_cast<std::int64_t>(split) * kLanes] : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int split = base + a * kAtOnce + own;  // < 64 where it counts
        const float from_low = __shfl_sync(kAllLanes, low_weight, split % kWarp);
        const float from_high = __shfl_sync(kAllLanes, high_weight, split % kWarp);
        const float weight = split < kWarp ? from_low : from_high;
        sum.x = fmaf(weight, values[a].x, sum.x);
        sum.y = fmaf(weight, values[a].y, sum.y);
        sum.z = fmaf(weight, values[a].z, sum.z);
        sum.w = fmaf(weight, values[a].w, sum.w);
      }
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (own == 0) {
#pragma unroll
      for (int other = 1; other < kAtOnce; ++other) {
        const float4 part = parts[other * kLanes + four];
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      }
      const float scale = total > 0 ? 1.0f / total : 0.0f;
      store_four(out.data + token * out.token_stride + head * kHeadDim + four * 4,
                 make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale));
    }
    __syncthreads();
  }
}

// Blocks a (row, head) that share its splits: as many as make the most of what the device holds at once, for rows of a
// thousand keys. A block costs about a chunk's time to come up.
int split_blocks(int pairs, int resident, int most) {
  constexpr int kChunks = 16;
  int best = 1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int blocks = 1; blocks <= most; ++blocks) {
    const std::int64_t waves = (static_cast<std::int64_t>(pairs) * blocks + resident - 1) / resident;
    const std::int64_t cost = waves * ((kChunks + blocks - 1) / blocks + 1);
    if (cost <= least) best = blocks, least = cost;
  }
  return best;
}

template <class Q, int kHeadDim, class Args, class Keys>
Status launch(OpContext& context, const Args& args, const Keys& pages, bool all_tokens) {
  const int heads = static_cast<int>(args.q.dim(1)), group = heads / pages.kv_heads, rows = args.rows.num_rows;
  const auto mark = context.arena.mark();
  Partials partials;
  partials.heads = heads;
  partials.max_splits = attention_max_splits(pages.capacity());
  const std::int64_t places = static_cast<std::int64_t>(rows) * heads * partials.max_splits;
  partials.sums = context.temporary(DType::f32, {places, kHeadDim}).template data<float>();
  partials.scales = static_cast<float2*>(context.temporary(DType::f32, {places, 2}).pointer);
  const int head_blocks = pages.kv_heads * ((group + kHeadsAtOnce - 1) / kHeadsAtOnce);
  constexpr std::size_t kBytes = sizeof(SplitMemory<kHeadDim>);
  constexpr int kResident = kMultiprocessors * static_cast<int>(kMultiprocessorShared / (kBytes + 1024));
  allow_shared(attend_splits<Q, kHeadDim, Keys>, kBytes);
  launch_kernel(context, attend_splits<Q, kHeadDim, Keys>,
                dim3(head_blocks, rows, split_blocks(rows * head_blocks, kResident, partials.max_splits)), kTileThreads,
                kBytes, token_heads_of<const Q>(args.q), args.rows.offsets, pages, group,
                args.scale * 1.44269504088896341f, all_tokens, partials);
  launch_kernel(context, combine_splits<Q, kHeadDim, Keys>, dim3(rows, heads), kTileThreads, 0, args.rows.offsets,
                pages, all_tokens, partials, token_heads_of<Q>(args.out));
  context.arena.rewind(mark);
  return cuda_launch_status("attention of single tokens");
}

}  // namespace

Status attention_decode_cuda(OpContext& context, const PagedAttentionArgs& args, bool all_tokens) {
  return with_tile_shape(args.q.dtype, args.kv.keys.dim(3), [&](auto element, auto head_dim) {
    return launch<decltype(element), decltype(head_dim)::value>(context, args, pages_of(args.kv), all_tokens);
  });
}

Status attention_decode_cuda(OpContext& context, const SlotAttentionArgs& args, bool all_tokens) {
  return launch<bf16, kAttentionWholeHeadDim>(context, args, slots_of(args.kv), all_tokens);
}

}  // namespace mstar
