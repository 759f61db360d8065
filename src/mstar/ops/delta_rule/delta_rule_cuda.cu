#include <limits>

#include "mstar/ops/delta_rule/delta_chunk_cuda.cuh"
#include "mstar/ops/delta_rule/delta_rule_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kMostWarps = 4;  // of a block

// Four neighbouring numbers in registers, as they are stored. Read past the L1 cache: beside another kernel nothing
// says that it holds no older numbers.
template <class T>
struct Four;
template <>
struct Four<float> {
  float4 bits = {0, 0, 0, 0};
  __device__ void load(const float* from) { bits = __ldcg(reinterpret_cast<const float4*>(from)); }
  __device__ void store(float* to) const { *reinterpret_cast<float4*>(to) = bits; }
  __device__ float4 get() const { return bits; }
  __device__ void set(float4 value) { bits = value; }
};
template <>
struct Four<__nv_bfloat16> {
  uint2 bits = {0, 0};
  __device__ void load(const __nv_bfloat16* from) { bits = __ldcg(reinterpret_cast<const uint2*>(from)); }
  __device__ void store(__nv_bfloat16* to) const { *reinterpret_cast<uint2*>(to) = bits; }
  __device__ float4 get() const {
    return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                       __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
  }
  __device__ void set(float4 value) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(value.x, value.y), high = __floats2bfloat162_rn(value.z, value.w);
    memcpy(&bits.x, &low, 4);
    memcpy(&bits.y, &high, 4);
  }
};

// A warp owns some columns of one head of one row, with all their keys in its registers: kAcross lanes of four columns,
// and the lanes above one another hold groups of four keys, turn by turn. 64 bytes of a row of the state at a time.
template <class State>
struct Lanes {
  static constexpr int kAcross = 16 / static_cast<int>(sizeof(State));
  static constexpr int kDown = kWarp / kAcross;
  static constexpr int kColumns = 4 * kAcross;
  static constexpr int kGroups = kMostKeyDim / (4 * kDown);
};

// The sum over the lanes above one another, the same tree on every call.
template <int kAcross>
__device__ inline float sum_down(float value) {
#pragma unroll
  for (int step = kAcross; step < kWarp; step *= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// What a lane needs of one token.
template <class T, int kGroups>
struct Token {
  Four<T> q[kGroups], k[kGroups], v;
  float decay, beta;
};

template <class T, class State, bool kWholeKeys>
__device__ inline void read_token(const DeltaCall<T, State>& c, int token, int key_head, int head, int column, int down,
                                  Token<T, Lanes<State>::kGroups>& to) {
  constexpr int kGroups = Lanes<State>::kGroups, kDown = Lanes<State>::kDown;
  const T* const q = c.q + token * c.q_stride + key_head * c.key_dim;
  const T* const k = c.k + token * c.k_stride + key_head * c.key_dim;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int key = (g * kDown + down) * 4;
    if (kWholeKeys || key < c.key_dim) {
      to.q[g].load(q + key);
      to.k[g].load(k + key);
    }
  }
  if (column < c.value_dim) to.v.load(c.v + token * c.v_stride + head * c.value_dim + column);
  to.decay = __ldcg(c.decay + token * c.heads + head);
  to.beta = __ldcg(c.beta + token * c.heads + head);
}

__device__ inline float dot(float4 a, float4 b, float sum) {
  return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum))));
}
__device__ inline void add_scaled(float by, float4 value, float4& to) {
  to.x = __fmaf_rn(by, value.x, to.x);
  to.y = __fmaf_rn(by, value.y, to.y);
  to.z = __fmaf_rn(by, value.z, to.z);
  to.w = __fmaf_rn(by, value.w, to.w);
}
__device__ inline float of(float4 value, int i) {
  return i == 0 ? value.x : i == 1 ? value.y : i == 2 ? value.z : value.w;
}

// One token on a lane's part of the state. Both products with the old state are summed at once, and the norms with
// them: S' = decay S + k change^T, so q^T S' = decay q^T S + (q^T k) change^T.
template <class T, class State>
__device__ inline float4 correct(const Token<T, Lanes<State>::kGroups>& t, float scale, float epsilon,
                                 Four<State> (&state)[4 * Lanes<State>::kGroups]) {
  constexpr int kGroups = Lanes<State>::kGroups, kAcross = Lanes<State>::kAcross;
  float kk = 0, qq = 0, qk = 0;
  float4 known = make_float4(0, 0, 0, 0), seen = known;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const float4 k = t.k[g].get(), q = t.q[g].get();
    kk = dot(k, k, kk);
    qq = dot(q, q, qq);
    qk = dot(q, k, qk);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 value = state[4 * g + i].get();
      add_scaled(of(k, i), value, known);
      add_scaled(of(q, i), value, seen);
    }
  }
  const float k_by = 1.0f / sqrtf(sum_down<kAcross>(kk) + epsilon);
  const float q_by = scale / sqrtf(sum_down<kAcross>(qq) + epsilon);
  const float overlap = __fmul_rn(__fmul_rn(sum_down<kAcross>(qk), k_by), q_by);
  const float known_by = __fmul_rn(t.decay, k_by), seen_by = __fmul_rn(t.decay, q_by);
  const auto change_of = [&](float v, float said) {
    return __fmul_rn(t.beta, __fmaf_rn(-known_by, sum_down<kAcross>(said), v));
  };
  const float4 v = t.v.get();
  const float4 change =
      make_float4(change_of(v.x, known.x), change_of(v.y, known.y), change_of(v.z, known.z), change_of(v.w, known.w));
  const auto out_of = [&](float sum, float changed) {
    return __fmaf_rn(overlap, changed, __fmul_rn(seen_by, sum_down<kAcross>(sum)));
  };
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const float4 keys = t.k[g].get();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float k = __fmul_rn(of(keys, i), k_by);
      const float4 old = state[4 * g + i].get();
      state[4 * g + i].set(make_float4(
          __fmaf_rn(k, change.x, __fmul_rn(t.decay, old.x)), __fmaf_rn(k, change.y, __fmul_rn(t.decay, old.y)),
          __fmaf_rn(k, change.z, __fmul_rn(t.decay, old.z)), __fmaf_rn(k, change.w, __fmul_rn(t.decay, old.w))));
    }
  }
  return make_float4(out_of(seen.x, change.x), out_of(seen.y, change.y), out_of(seen.z, change.z),
                     out_of(seen.w, change.w));
}

// What a launch of `follow` takes on.
struct Tasks {
  int slices = 0;  // of a head's columns
  int count = 0;   // slices of heads of rows
  int too_many = 0;
  // `scan` was launched just before and touches other rows only, so this runs beside it.
  bool beside_scan = false;
};

// Token after token, a row of fewer than `too_many`. kAhead reads the next token while this one is worked on, and keeps
// states: for rows of many.
template <class T, class State, bool kWholeKeys, bool kAhead>
__device__ inline void follow_row(const DeltaCall<T, State>& c, const Tasks& tasks) {
  using L = Lanes<State>;
  const int task = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (task >= tasks.count) return;
  const int lane = threadIdx.x % kWarp, across = lane % L::kAcross, down = lane / L::kAcross;
  const int slice = task % tasks.slices, head = task / tasks.slices % c.heads, row = task / tasks.slices / c.heads;
  const int begin = c.offsets[row], end = c.offsets[row + 1];
  if (begin == end || end - begin >= tasks.too_many) return;
  const int column = slice * L::kColumns + 4 * across, key_head = c.key_head_of(head);
  State* const stored = c.state_of(row, head) + column;
  const State* const old = c.old_state_of(row, head) + column;
  const bool mine = column < c.value_dim;
  // A fresh row reads what it throws away, so that nobody's state waits for its position.
  Four<State> state[4 * L::kGroups];
  if (mine) {
#pragma unroll
    for (int g = 0; g < L::kGroups; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = (g * L::kDown + down) * 4 + i;
        if (kWholeKeys || key < c.key_dim) state[4 * g + i].load(old + static_cast<std::int64_t>(key) * c.value_dim);
      }
  }
  if (c.positions[begin] == 0) {
#pragma unroll
    for (int i = 0; i < 4 * L::kGroups; ++i) state[i] = {};
  }
  const auto store = [&](State* to) {
#pragma unroll
    for (int g = 0; g < L::kGroups; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = (g * L::kDown + down) * 4 + i;
        if (kWholeKeys || key < c.key_dim) state[4 * g + i].store(to + static_cast<std::int64_t>(key) * c.value_dim);
      }
  };
  const int kept_end = kAhead ? begin + c.kept_tokens_of(row) : begin;  // begin: nowhere
  Token<T, L::kGroups> token, next;
  read_token<T, State, kWholeKeys>(c, begin, key_head, head, column, down, token);
  for (int t = begin; t < end; ++t) {
    if (kAhead && t + 1 < end) read_token<T, State, kWholeKeys>(c, t + 1, key_head, head, column, down, next);
    const float4 out = correct<T, State>(token, c.scale, c.norm_epsilon, state);
    if (down == 0 && mine) store_four(out, c.out + t * c.out_stride + head * c.value_dim + column);
    if constexpr (kAhead) {
      if (t + 1 == kept_end && mine) store(c.kept_state_of(row, head) + column);
      token = next;
    } else {
      if (t + 1 < end) read_token<T, State, kWholeKeys>(c, t + 1, key_head, head, column, down, token);
    }
  }
  if (mine) store(stored);
}

template <class T, class State, bool kWholeKeys, bool kAhead>
__global__ void __launch_bounds__(kMostWarps* kWarp, kAhead || sizeof(State) < 4 ? 1 : 4)
    follow(DeltaCall<T, State> c, Tasks tasks) {
  // `scan` began with await_inputs(), so all that these rows need was there before.
  if (tasks.beside_scan) {
    start_next();
  } else {
    await_inputs();
  }
  follow_row<T, State, kWholeKeys, kAhead>(c, tasks);
  // So that who waits for this kernel has waited for `scan`.
  if (tasks.beside_scan && blockIdx.x + 1 == gridDim.x) await_all_before();
}

template <class T, class State, bool kWholeKeys>
void launch_follow(OpContext& context, const DeltaCall<T, State>& c, bool one_token_a_row, Tasks tasks) {
  const bool ahead = !one_token_a_row || c.kept.tokens;
  tasks.slices = (c.value_dim + Lanes<State>::kColumns - 1) / Lanes<State>::kColumns;
  tasks.count = c.num_rows * c.heads * tasks.slices;
  // Few tasks are spread over as many multiprocessors as there are; the bits are the same.
  const int warps = tasks.count < 1024 ? 1 : kMostWarps;
  const int blocks = (tasks.count + warps - 1) / warps;
  if (ahead) {
    launch_kernel(context, follow<T, State, kWholeKeys, true>, blocks, warps * kWarp, 0, c, tasks);
  } else {
    launch_kernel(context, follow<T, State, kWholeKeys, false>, blocks, warps * kWarp, 0, c, tasks);
  }
}

template <class State>
void launch_chunks(OpContext& context, const DeltaCall<Bf16, State>& c, const DeltaRuleArgs& args) {
  const std::size_t mark = context.arena.mark();
  ChunkPlan plan;
  plan.num_places = num_places(args.v.dim(0));
  static_assert(num_places(kLeastChunkTokens) * kPlaceBytes == kLeastChunkTokens * kDeltaChunkBytes);
  plan.places = static_cast<unsigned char*>(
      context.arena.take(static_cast<std::size_t>(c.heads * plan.num_places * kPlaceBytes)));
  launch_prepare(context, c, plan, args.rows.num_tokens);
  launch_scan(context, c, plan, args.rows.num_tokens);
  context.arena.rewind(mark);
}

bool fits_chunks(const DeltaRuleArgs& args) {
  return args.q.dtype == DType::bf16 && args.k.dim(2) == kMostKeyDim && args.v.dim(2) % (2 * kColumns) == 0 &&
         starts_on(args.q, 16) && starts_on(args.k, 16) && starts_on(args.v, 16) && starts_on(args.out, 16);
}

template <class T, class State>
Status run(OpContext& context, const DeltaRuleArgs& args) {
  const auto c = delta_call_of<T, State>(args);
  const RaggedView& rows = args.rows;
  const bool one_token_a_row = rows.num_tokens <= rows.num_rows;
  const bool chunks = fits_chunks(args) && !one_token_a_row && rows.num_tokens >= kLeastChunkTokens;
  Tasks tasks;
  tasks.too_many = chunks ? kLeastChunkTokens : std::numeric_limits<int>::max();
  tasks.beside_scan = chunks;
  if constexpr (std::is_same_v<T, Bf16>) {
    if (chunks) launch_chunks(context, c, args);
  }
  if (!chunks || rows.num_rows > 1) {
    if (c.key_dim == kMostKeyDim) {
      launch_follow<T, State, true>(context, c, one_token_a_row, tasks);
    } else {
      launch_follow<T, State, false>(context, c, one_token_a_row, tasks);
    }
  }
  return cuda_launch_status("delta_rule");
}

}  // namespace

bool delta_rule_cuda_fits(const OpContext&, const DeltaRuleArgs& args) {
  const std::size_t four = 4 * dtype_bytes(args.q.dtype);
  return (args.q.dtype == DType::f32 || args.q.dtype == DType::bf16) && args.k.dim(2) <= kMostKeyDim &&
         args.k.dim(2) % 4 == 0 && starts_on(args.q, four) && starts_on(args.k, four) && starts_on(args.v, four) &&
         starts_on(args.out, four) && starts_on(args.state, 4 * dtype_bytes(args.state.dtype));
}

Status delta_rule_cuda(OpContext& context, const DeltaRuleArgs& args) {
  if (args.rows.num_rows == 0 || args.rows.num_tokens == 0) return {};
  return with_f32_or_bf16(args.q.dtype, [&](auto element) {
    return with_f32_or_bf16(args.state.dtype,
                            [&](auto state) { return run<decltype(element), decltype(state)>(context, args); });
  });
}

}  // namespace mstar
