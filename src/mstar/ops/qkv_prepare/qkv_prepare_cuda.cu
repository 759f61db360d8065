#include "mstar/ops/attention/kv_layout_cuda.cuh"
#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/qkv_prepare/qkv_prepare_kernels.h"
#include "mstar/ops/rope/rotary_positions_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kHeadsABlock = 4;
constexpr int kMostHeadDim = kWarp * kUnit;

template <class T>
struct Preparation {
  HeadRows<const T> q, k, v;
  HeadRows<T> q_out;
  const float *q_weight = nullptr, *k_weight = nullptr;
  float epsilon = 0, weight_offset = 0;
  RotaryPositions positions;
  const std::int32_t* offsets = nullptr;
  const float* inverse_frequencies = nullptr;
  int pairs = 0;
  int step = 0, apart = 0;  // pair i of a head is (x[i * step], x[i * step + apart])
  int num_rows = 0, tokens = 0;
  Pages pages;
};

// A head's unit of each lane, normalised.
template <class T>
__device__ inline void normalise(const Preparation<T>& p, const float (&gains)[kUnit], float (&values)[kUnit]) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) squares = __fmaf_rn(values[i], values[i], squares);
  const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(p.pages.head_dim) + p.epsilon);
#pragma unroll
  for (int i = 0; i < kUnit; ++i)
    values[i] = __fmul_rn(__fmul_rn(values[i], inverse), __fadd_rn(gains[i], p.weight_offset));
}

// The turns of a lane's pairs: lane, lane + 32 and so on.
struct Turns {
  static constexpr int kMost = kMostHeadDim / 2 / kWarp;
  float sine[kMost], cosine[kMost];
  template <class T>
  __device__ Turns(const Preparation<T>& p, int token) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int pair = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      if (pair < p.pairs)
        sincosf(__fmul_rn(p.positions.of(token, pair), p.inverse_frequencies[pair]), &sine[i], &cosine[i]);
    }
  }
  // `head` is the warp's.
  template <class T>
  __device__ void turn(const Preparation<T>& p, float* head) const {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int pair = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      if (pair >= p.pairs) continue;
      float* const at = head + pair * p.step;
      const float a = at[0], b = at[p.apart];
      at[0] = __fsub_rn(__fmul_rn(a, cosine[i]), __fmul_rn(b, sine[i]));
      at[p.apart] = __fadd_rn(__fmul_rn(b, cosine[i]), __fmul_rn(a, sine[i]));
    }
  }
};

// Where a head of a token goes in the pages, or -1: nowhere.
__device__ inline std::int64_t place_of(const Pages& pages, const std::int32_t* offsets, int num_rows, int token,
                                        int head) {
  const int row = row_of(offsets, num_rows, token), position = pages.lengths[row] - (offsets[row + 1] - token);
  const bool is_no_rows = token >= offsets[row + 1];
  return is_no_rows || position < 0 || position >= pages.capacity() ? -1 : pages.at(row, position, head);
}

// One head of one token a warp: the query heads, then the key heads with their values.
template <class T, class Element>
__global__ void __launch_bounds__(kHeadsABlock* kWarp) prepare(Preparation<T> p) {
  __shared__ __align__(16) float turned[kHeadsABlock][kMostHeadDim];
  const int heads = p.q.heads + p.k.heads, task = blockIdx.x * kHeadsABlock + threadIdx.x / kWarp;
  const int token = task / heads, head = task % heads;
  // Weights and what the plan says were there before the kernels in front.
  const bool real = token < p.tokens;
  const bool is_query = head < p.q.heads;
  const int head_dim = p.pages.head_dim, at = threadIdx.x % kWarp * kUnit, own = is_query ? head : head - p.q.heads;
  const int row = token * (is_query ? p.q.heads : p.k.heads) + own;
  float gains[kUnit] = {};
  if (p.q_weight) load_unit((is_query ? p.q_weight : p.k_weight) + at, head_dim - at, true, gains);
  const Turns turns(p, real ? token : 0);
  const std::int64_t place = real && !is_query ? place_of(p.pages, p.offsets, p.num_rows, token, own) : -1;
  await_inputs_after_next();
  if (!real) return;
  float values[kUnit], of_value[kUnit];
  load_unit((is_query ? p.q.row(row) : p.k.row(row)) + at, head_dim - at, true, values);
  if (!is_query) load_unit(p.v.row(row) + at, head_dim - at, true, of_value);
  if (p.q_weight) normalise(p, gains, values);
  float* const mine = turned[threadIdx.x / kWarp];
  if (at < head_dim) store_unit(values, kUnit, true, mine + at);
  __syncwarp();
  turns.turn(p, mine);
  __syncwarp();
  if (at >= head_dim) return;
  load_unit(mine + at, kUnit, true, values);
  if (is_query) {
    store_unit(values, kUnit, true, p.q_out.row(row) + at);
    return;
  }
  if (place < 0) return;
  store_unit(values, kUnit, true, static_cast<Element*>(p.pages.keys) + place + at);
  store_unit(of_value, kUnit, true, static_cast<Element*>(p.pages.values) + place + at);
}

}  // namespace

bool qkv_prepare_cuda_fits(const OpContext&, const QkvPrepareArgs& args) {
  const bool dtypes = args.q.dtype == DType::f32 || args.q.dtype == DType::bf16;
  const bool weights = !args.q_weight.pointer || (rows_on_16_bytes(args.q_weight) && rows_on_16_bytes(args.k_weight));
  return dtypes && weights && args.q.dim(2) <= kMostHeadDim && args.q.dim(2) % kUnit == 0 && rows_on_16_bytes(args.q) &&
         rows_on_16_bytes(args.k) && rows_on_16_bytes(args.v) && rows_on_16_bytes(args.q_out) &&
         rows_on_16_bytes(args.kv.keys) && rows_on_16_bytes(args.kv.values);
}

Status qkv_prepare_cuda(OpContext& context, const QkvPrepareArgs& args) {
  if (args.rows.num_tokens == 0) return {};
  return with_f32_or_bf16(args.q.dtype, [&](auto given) {
    using T = decltype(given);
    Preparation<T> p;
    p.q = head_rows_of<const T>(args.q);
    p.k = head_rows_of<const T>(args.k);
    p.v = head_rows_of<const T>(args.v);
    p.q_out = head_rows_of<T>(args.q_out);
    p.q_weight = args.q_weight.data<float>();
    p.k_weight = args.k_weight.data<float>();
    p.epsilon = args.epsilon;
    p.weight_offset = args.weight_offset;
    p.positions = rotary_positions_of(args.positions, args.pair_axes);
    p.offsets = args.rows.offsets;
    p.inverse_frequencies = args.inverse_frequencies.data<float>();
    p.pairs = static_cast<int>(args.inverse_frequencies.dim(0));
    p.step = args.interleaved ? 2 : 1;
    p.apart = args.interleaved ? 1 : p.pairs;
    p.num_rows = args.rows.num_rows;
    p.tokens = args.rows.num_tokens;
    p.pages = pages_of(args.kv);
    const std::int64_t tasks = static_cast<std::int64_t>(p.tokens) * (p.q.heads + p.k.heads);
    const auto blocks = static_cast<unsigned>((tasks + kHeadsABlock - 1) / kHeadsABlock);
    return with_float_type(args.kv.keys.dtype, [&](auto element) {
      launch_kernel(context, prepare<T, decltype(element)>, blocks, kHeadsABlock * kWarp, 0, p);
      return cuda_launch_status("qkv_prepare");
    });
  });
}

}  // namespace mstar
