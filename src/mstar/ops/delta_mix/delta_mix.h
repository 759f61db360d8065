// What a gated delta net does between its two products: convolution, gates, rule, norm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

struct DeltaMixArgs {
  // [tokens, conv_width + heads * value_dim + 2 * heads] f32, on CUDA also bf16: columns of q and k (key_heads *
  // key_dim each), v (heads * value_dim), z (the same), b and a (heads each); tokens may lie apart.
  TensorView in;
  RaggedView rows;                          // tokens that belong to no row are left alone
  const std::int32_t* positions = nullptr;  // [tokens] in their sequences
  TensorView conv_weight;                   // [taps, conv_width] f32 contiguous, oldest tap first
  TensorView rate, dt_bias;                 // [heads] f32
  TensorView norm_weight;                   // [value_dim] f32
  float norm_epsilon = 1e-6f;               // of the norm at the end
  std::int64_t key_heads = 0;
  bool interleaved_heads = false;            // see delta_rule
  TensorView conv_state;                     // [num_slots, taps - 1, conv_width] f32; slots may lie apart
  TensorView rule_state;                     // [num_slots, heads, key_dim, value_dim] f32 or bf16; slots may lie apart
  const std::int32_t* slots = nullptr;       // [rows], no two with tokens share one, but for padding (below)
  const std::int32_t* read_slots = nullptr;  // [rows], where a row's states are before; null: where they will be
  KeptStates kept = {};                      // copies of both states within rows
  bool in_turn = false;                      // always one op after the other
  TensorView out;                            // [tokens, heads, value_dim] of in's dtype
};

// (q, k, v) = silu(causal_conv1d of their columns); decay, beta = delta_gates(a, b); o = delta_rule(q / sqrt(key_dim),
// k, v, decay, beta); out = norm(o) * silu(z), each head by itself. See those ops for what each does to its state.
//
// One op after the other on the CPU, and on CUDA where some row may have more than one token; the bits are theirs. A
// step of no more tokens than rows that keeps nothing is one kernel on CUDA where heads are 128 wide, taps are 4, a key
// head has at most 8 heads and everything begins on 16 bytes (in and out: on 4 elements). It rounds nothing between, so
// its bits are not those of the ops in turn (which round q, k, v and o to bf16 where `in` is bf16); a row's do not
// depend on the others. There fresh rows of one token that are all alike (padding) may share a slot; on the CPU only in
// a context of one thread. It reads the states, slots, offsets and positions before it waits: neither the latest kernel
// that waited before all else (await_inputs(), ops/cuda_kernel.cuh) nor any since may write them. Errors: internal
// (shapes). Cost: 128 KiB a row and head of f32 state to move.
Status delta_mix(OpContext& context, const DeltaMixArgs& args);
// Arena bytes that a call takes and gives back.
struct DeltaMixWorkspace {
  Backend backend = Backend::cpu;
  std::int64_t tokens = 0, heads = 0, conv_width = 0, key_dim = 0;
  int num_threads = 1;
};
std::size_t delta_mix_workspace_bytes(const DeltaMixWorkspace& call);

}  // namespace mstar
