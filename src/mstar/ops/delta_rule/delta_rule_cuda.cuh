// What the CUDA kernels of the delta rule share.
#pragma once

#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/delta_rule/delta_rule.h"

namespace mstar::cuda {

inline constexpr int kMostKeyDim = 128;

// The call as kernels see it. T: f32 or bf16.
template <class T, class State>
struct DeltaCall {
  const T *q = nullptr, *k = nullptr, *v = nullptr;
  T* out = nullptr;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0, slot_stride = 0;
  const float *decay = nullptr, *beta = nullptr;
  const std::int32_t *offsets = nullptr, *positions = nullptr, *slots = nullptr, *read_slots = nullptr;
  KeptStates kept = {};
  State* state = nullptr;
  int num_rows = 0, key_heads = 0, heads = 0, key_dim = 0, value_dim = 0;
  float scale = 1, norm_epsilon = 0;
  bool interleaved_heads = false;

  __device__ int key_head_of(int head) const {
    return interleaved_heads ? head % key_heads : head / (heads / key_heads);
  }
  __device__ State* state_of(int row, int head) const { return in_slot(slots[row], head); }
  __device__ const State* old_state_of(int row, int head) const { return in_slot(read_slots[row], head); }
  // Tokens of the row after which its state is kept too; 0: it is not.
  __device__ int kept_tokens_of(int row) const { return kept.tokens ? kept.tokens[row] : 0; }
  __device__ State* kept_state_of(int row, int head) const { return in_slot(kept.slots[row], head); }
  __device__ State* in_slot(std::int64_t slot, int head) const {
    return state + slot * slot_stride + static_cast<std::int64_t>(head) * key_dim * value_dim;
  }
};

template <class T, class State>
DeltaCall<T, State> delta_call_of(const DeltaRuleArgs& args) {
  DeltaCall<T, State> c;
  c.q = args.q.data<T>();
  c.k = args.k.data<T>();
  c.v = args.v.data<T>();
  c.out = args.out.data<T>();
  c.q_stride = args.q.stride(0);
  c.k_stride = args.k.stride(0);
  c.v_stride = args.v.stride(0);
  c.out_stride = args.out.stride(0);
  c.slot_stride = args.state.stride(0);
  c.decay = args.decay.data<float>();
  c.beta = args.beta.data<float>();
  c.offsets = args.rows.offsets;
  c.positions = args.positions;
  c.slots = args.slots;
  c.read_slots = args.read_slots ? args.read_slots : args.slots;
  c.kept = args.kept;
  c.state = args.state.data<State>();
  c.num_rows = args.rows.num_rows;
  c.key_heads = static_cast<int>(args.k.dim(1));
  c.heads = static_cast<int>(args.v.dim(1));
  c.key_dim = static_cast<int>(args.k.dim(2));
  c.value_dim = static_cast<int>(args.v.dim(2));
  c.scale = args.scale;
  c.norm_epsilon = args.norm_epsilon;
  c.interleaved_heads = args.interleaved_heads;
  return c;
}

}  // namespace mstar::cuda
