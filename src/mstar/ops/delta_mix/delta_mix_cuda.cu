// A head of a row a block. A warp owns 16 keys of the head's state and a lane four of its columns, so that each thread
// copies, reads and writes its own part of the state, and whole rows of it go by at a time. Warps 0 to 2 also convolve
// q, k and v, four channels a lane; warp 3 has what comes after the rule, warp 4 the gates.
//
// The state is asked for first, long before the tokens are there, and waits in shared memory: three blocks share a
// multiprocessor, so that 192 KiB are under way on each where there are rows enough.
#include <cmath>

#include "mstar/ops/async_copy.cuh"
#include "mstar/ops/cuda_units.cuh"
#include "mstar/ops/delta_mix/delta_mix_kernels.h"
#include "mstar/ops/delta_rule/delta_rule.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kDim = 128;  // keys, and values, of a head: four a lane
constexpr int kTaps = 4, kPast = kTaps - 1;
constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kKeys = kDim / kWarps;  // of a warp
constexpr int kMostGroup = 8;         // heads of a key head, the blocks of a cluster
static_assert(kDim == 4 * kWarp);

enum Duty { kQuery, kKey, kValue, kLast, kGates };  // of warps 0 to 4

template <class T, class State>
struct Mix {
  const T* in = nullptr;
  T* out = nullptr;
  std::int64_t in_stride = 0, out_stride = 0;  // of tokens
  int v_at = 0, z_at = 0, b_at = 0, a_at = 0;  // columns of in
  const float *weight = nullptr, *rate = nullptr, *dt_bias = nullptr, *gain = nullptr;
  float* past = nullptr;
  State* state = nullptr;
  std::int64_t past_stride = 0, state_stride = 0;  // of slots
  const std::int32_t *offsets = nullptr, *positions = nullptr, *slots = nullptr, *read_slots = nullptr;
  int key_heads = 0, channels = 0;
  float scale = 1, key_epsilon = 0;  // of the normalised query; of both norms before the rule
  float norm_epsilon = 0;
  bool interleaved = false;
};

template <class State>
struct Shared {
  State state[kDim][kDim];
  float known[kWarps][kDim], seen[kWarps][kDim];  // what the old state says of k and q, a warp's keys each
  float q[kDim], k[kDim], v[kDim];                // of one token, q and k normalised
  float gate[kDim];                               // what the norm's weight and silu(z) make of its output
  float decay, beta;
};

// Four numbers to shared memory behind the thread's back.
template <class State>
__device__ inline void copy_four(State* to, const State* from) {
  const unsigned address = address_in_shared(to);
  if constexpr (sizeof(State) == 4) {
    copy_16_async(address, from);
  } else {
    copy_8_async(address, from);
  }
}

// The heads of a key head have all read the state of its channels before the first of them writes it: they need to see
// nothing of each other's.
__device__ inline void arrive_after_reading() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

__device__ inline float4 multiply_add(float4 a, float4 b, float4 c) {
  return make_float4(__fmaf_rn(a.x, b.x, c.x), __fmaf_rn(a.y, b.y, c.y), __fmaf_rn(a.z, b.z, c.z),
                     __fmaf_rn(a.w, b.w, c.w));
}
__device__ inline float4 multiply_add(float a, float4 b, float4 c) {
  return multiply_add(make_float4(a, a, a, a), b, c);
}
__device__ inline float4 product(float4 a, float4 b) {
  return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w));
}
__device__ inline float4 scaled(float a, float4 b) {
  return make_float4(__fmul_rn(a, b.x), __fmul_rn(a, b.y), __fmul_rn(a, b.z), __fmul_rn(a, b.w));
}
__device__ inline float4 add(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}
template <class T>
__device__ inline float4 silu(float4 x) {
  return make_float4(silu_of<T>(x.x), silu_of<T>(x.y), silu_of<T>(x.z), silu_of<T>(x.w));
}
// Over the 128 numbers that a warp's lanes hold.
__device__ inline float dot_of_warp(float4 a, float4 b) {
  return warp_sum(__fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmul_rn(a.x, b.x)))));
}
__device__ inline float of(float4 value, int i) {
  return i == 0 ? value.x : i == 1 ? value.y : i == 2 ? value.z : value.w;
}
// The sum over the warps' parts of four columns.
__device__ inline float4 sum_of_warps(const float (&parts)[kWarps][kDim], int column) {
  float4 sum = load_four(&parts[0][column]);
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum = add(sum, load_four(&parts[w][column]));
  return sum;
}

// The convolution of four channels of one of q, k and v, token after token.
struct Channels {
  float4 weight[kTaps], window[kPast];  // window: the inputs before, oldest first

  template <class T, class State>
  __device__ void load(const Mix<T, State>& c, const float* past, int channel) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) weight[j] = load_four(c.weight + j * c.channels + channel);
#pragma unroll
    for (int j = 0; j < kPast; ++j) window[j] = load_four(past + j * c.channels + channel);
  }
  __device__ void forget() {
#pragma unroll
    for (int j = 0; j < kPast; ++j) window[j] = make_float4(0, 0, 0, 0);
  }
  template <class T>
  __device__ float4 next(float4 input) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < kPast; ++j) sum = multiply_add(window[j], weight[j], sum);
    sum = multiply_add(input, weight[kPast], sum);
#pragma unroll
    for (int j = 0; j + 1 < kPast; ++j) window[j] = window[j + 1];
    window[kPast - 1] = input;
    return silu<T>(sum);
  }
  template <class T, class State>
  __device__ void store(const Mix<T, State>& c, float* past, int channel) const {
#pragma unroll
    for (int j = 0; j < kPast; ++j) store_four(window[j], past + j * c.channels + channel);
  }
};

// Lane 0 has the decay, lane 1 beta.
template <class T, class State>
__device__ inline void write_gates(const Mix<T, State>& c, const T* in, int head, Shared<State>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float own = widen(in[(lane == 0 ? c.a_at : c.b_at) + head]), rate = c.rate[head], dt_bias = c.dt_bias[head];
  if (lane == 0) {
    const float x = own + dt_bias;
    s.decay = expf(-rate * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)))));
  } else if (lane == 1) {
    s.beta = 1.0f / (1.0f + expf(-own));
  }
}

// This warp's part of what the old state says of the key and the query.
template <class State>
__device__ inline void ask(Shared<State>& s, int warp, int column) {
  float4 known = make_float4(0, 0, 0, 0), seen = known;
#pragma unroll
  for (int g = 0; g < kKeys; g += 4) {
    const int key = warp * kKeys + g;
    const float4 k = load_four(&s.k[key]), q = load_four(&s.q[key]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 value = load_four(&s.state[key + i][column]);
      known = multiply_add(of(k, i), value, known);
      seen = multiply_add(of(q, i), value, seen);
    }
  }
  store_four(known, &s.known[warp][column]);
  store_four(seen, &s.seen[warp][column]);
}

// decay S + k change^T of this thread's part, to rows of kDim at `to`.
template <class State>
__device__ inline void update(const Shared<State>& s, int first_key, int column, float decay, float4 change,
                              State* to) {
#pragma unroll 2  // all four at once take more registers than three blocks have
  for (int g = 0; g < kKeys; g += 4) {
    const float4 k = load_four(&s.k[first_key + g]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 old = load_four(&s.state[first_key + g + i][column]);
      store_four(multiply_add(of(k, i), change, scaled(decay, old)), to + (g + i) * kDim);
    }
  }
}

// q^T of the new state, normalised and gated, by one warp.
template <class State>
__device__ inline float4 finish(const Shared<State>& s, int column, float decay, float4 change, float epsilon) {
  const float overlap = dot_of_warp(load_four(&s.q[column]), load_four(&s.k[column]));
  const float4 out = multiply_add(overlap, change, scaled(decay, sum_of_warps(s.seen, column)));
  const float inverse = 1.0f / sqrtf(dot_of_warp(out, out) / kDim + epsilon);
  return product(scaled(inverse, out), load_four(&s.gate[column]));
}

template <class T, class State>
__global__ void __launch_bounds__(kThreads, 3) mix(const __grid_constant__ Mix<T, State> c) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<State>& s = *reinterpret_cast<Shared<State>*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, column = 4 * (static_cast<int>(threadIdx.x) % kWarp);
  const int group = static_cast<int>(gridDim.x), turn = static_cast<int>(blockIdx.x);
  const int key_head = static_cast<int>(blockIdx.y), row = static_cast<int>(blockIdx.z);
  const int head = c.interleaved ? turn * c.key_heads + key_head : key_head * group + turn;
  const int begin = c.offsets[row], end = c.offsets[row + 1];
  const std::int64_t slot = c.slots[row], read_slot = c.read_slots[row];
  if (begin >= end) {
    await_inputs();  // what comes after must not overtake what came before
    return;
  }
  // States and weights were there before the product that makes `in` began.
  const int first_key = warp * kKeys, own = (head * kDim + first_key) * kDim + column;
  const int part = warp == kQuery ? key_head * kDim
                   : warp == kKey ? (c.key_heads + key_head) * kDim
                                  : c.v_at + head * kDim;
  const int channel = part + column;
  const int position = c.positions[begin];
  Channels channels = {};
  if (warp < kLast) channels.load(c, c.past + read_slot * c.past_stride, channel);
  const State* const old = c.state + read_slot * c.state_stride + own;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) copy_four(&s.state[first_key + i][column], old + i * kDim);
  close_copy_group();
  const bool fresh = position == 0;  // its states are read all the same: nobody's state waits for its position
  await_inputs();
  for (int t = begin; t < end; ++t) {
    const T* const in = c.in + t * c.in_stride;
    if (warp < kLast) {
      const float4 input = load_four(in + channel);
      if (fresh && t == begin) channels.forget();
      float4 value = channels.template next<T>(input);
      if (warp != kValue)
        value = scaled((warp == kQuery ? c.scale : 1.0f) / sqrtf(dot_of_warp(value, value) + c.key_epsilon), value);
      store_four(value, warp == kQuery ? &s.q[column] : warp == kKey ? &s.k[column] : &s.v[column]);
    } else if (warp == kLast) {
      store_four(product(load_four(c.gain + column), silu<T>(load_four(in + c.z_at + head * kDim + column))),
                 &s.gate[column]);
    } else if (warp == kGates) {
      write_gates(c, in, head, s);
    }
    if (t == begin) {
      if (group > 1) arrive_after_reading();
      wait_copy_groups<0>();  // each thread for what it copied itself, which nobody else reads
      if (fresh) {
#pragma unroll
        for (int i = 0; i < kKeys; ++i) store_four(make_float4(0, 0, 0, 0), &s.state[first_key + i][column]);
      }
    }
    __syncthreads();
    ask(s, warp, column);
    __syncthreads();
    const float decay = s.decay, beta = s.beta;
    const float4 change = scaled(beta, multiply_add(-decay, sum_of_warps(s.known, column), load_four(&s.v[column])));
    if (t + 1 == end) {
      update(s, first_key, column, decay, change, c.state + slot * c.state_stride + own);
    } else {
      update(s, first_key, column, decay, change, &s.state[first_key][column]);
    }
    if (warp == kLast)
      store_four(finish(s, column, decay, change, c.norm_epsilon), c.out + t * c.out_stride + head * kDim + column);
    if (t + 1 < end) __syncthreads();  // before the next token's q, k and v
  }
  if (group > 1) wait_for_cluster();
  if (warp == kValue || (warp < kValue && turn == 0)) channels.store(c, c.past + slot * c.past_stride, channel);
}

template <class T, class State>
Status launch(OpContext& context, const DeltaMixArgs& args) {
  const DeltaMixColumns at = delta_mix_columns(args);
  Mix<T, State> c;
  c.in = args.in.data<T>();
  c.out = args.out.data<T>();
  c.in_stride = args.in.stride(0);
  c.out_stride = args.out.stride(0);
  c.v_at = static_cast<int>(at.v);
  c.z_at = static_cast<int>(at.z);
  c.b_at = static_cast<int>(at.b);
  c.a_at = static_cast<int>(at.a);
  c.weight = args.conv_weight.data<float>();
  c.rate = args.rate.data<float>();
  c.dt_bias = args.dt_bias.data<float>();
  c.gain = args.norm_weight.data<float>();
  c.past = args.conv_state.data<float>();
  c.state = args.rule_state.data<State>();
  c.past_stride = args.conv_state.stride(0);
  c.state_stride = args.rule_state.stride(0);
  c.offsets = args.rows.offsets;
  c.positions = args.positions;
  c.slots = args.slots;
  c.read_slots = args.read_slots ? args.read_slots : args.slots;
  c.key_heads = static_cast<int>(args.key_heads);
  c.channels = static_cast<int>(at.z);
  c.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  c.key_epsilon = DeltaRuleArgs().norm_epsilon;
  c.norm_epsilon = args.norm_epsilon;
  c.interleaved = args.interleaved_heads;
  constexpr std::size_t kBytes = sizeof(Shared<State>);
  const auto kernel = mix<T, State>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "cudaFuncSetAttribute");
  // So that there is room for three blocks.
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      "cudaFuncSetAttribute");
  const auto group = static_cast<unsigned>(args.rule_state.dim(1) / args.key_heads);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(group, static_cast<unsigned>(c.key_heads), static_cast<unsigned>(args.rows.num_rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream_of(context);
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  if (group > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = group;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  (void)cudaLaunchKernelEx(&config, kernel, c);
  return cuda_launch_status("delta_mix");
}

}  // namespace

bool delta_mix_cuda_fits(const OpContext&, const DeltaMixArgs& args) {
  const std::size_t four = 4 * dtype_bytes(args.in.dtype);
  const std::int64_t most_rows = 65535;  // of a grid
  return args.rows.num_tokens <= args.rows.num_rows && args.rows.num_rows <= most_rows && !args.kept.tokens &&
         !args.in_turn && (args.in.dtype == DType::f32 || args.in.dtype == DType::bf16) &&
         args.rule_state.dim(2) == kDim && args.rule_state.dim(3) == kDim && args.conv_weight.dim(0) == kTaps &&
         args.rule_state.dim(1) / args.key_heads <= kMostGroup && starts_on(args.in, four) &&
         starts_on(args.out, four) && rows_on_16_bytes(args.conv_weight) && rows_on_16_bytes(args.norm_weight) &&
         rows_on_16_bytes(args.conv_state) && rows_on_16_bytes(args.rule_state);
}

Status delta_mix_cuda(OpContext& context, const DeltaMixArgs& args) {
  if (args.rows.num_rows == 0 || args.rows.num_tokens == 0) return {};
  return with_f32_or_bf16(args.in.dtype, [&](auto element) {
    return with_f32_or_bf16(args.rule_state.dtype,
                            [&](auto state) { return launch<decltype(element), decltype(state)>(context, args); });
  });
}

}  // namespace mstar
