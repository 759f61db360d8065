// Gated delta net: linear attention with a recurrent state, behind a short causal convolution.
#pragma once

#include <cstdint>
#include <string>

#include "mstar/nn/head_swap.h"
#include "mstar/nn/residual.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::nn {

// One layer's state for the rows of a step; see ops/delta_mix.
struct DeltaNetState {
  TensorView conv;                           // [num_slots, taps - 1, conv_width] f32; slots may lie apart
  TensorView rule;                           // [num_slots, heads, key_dim, value_dim] f32 or bf16; slots may lie apart
  const std::int32_t* slots = nullptr;       // [rows], which the step writes
  const std::int32_t* read_slots = nullptr;  // [rows], which it reads
  KeptStates kept = {};                      // copies that it makes within rows
};

// x += out(silu(z) * norm(rule(silu(conv(q, k, v)), b, a))) with q, k, v, z, b and a from x's normed rows.
// Source: transformers Qwen3_5GatedDeltaNet (Qwen3NextGatedDeltaNet).
class DeltaNet {
 public:
  struct Dims {
    int dim = 0;
    int key_heads = 0;
    int heads = 0;  // of values; a multiple of key_heads
    int key_dim = 0;
    int value_dim = 0;  // a multiple of 16
    int taps = 4;
    float norm_epsilon = 1e-6f;
    bool interleaved_heads = false;  // head h reads key head h % key_heads (GGUF files), not h / (heads / key_heads)
    int keys_width() const { return key_heads * key_dim; }
    int values_width() const { return heads * value_dim; }
    int conv_width() const { return 2 * keys_width() + values_width(); }
    int in_width() const { return conv_width() + values_width() + 2 * heads; }
  };
  // Homes: NAME.in [in_width, dim], rows of q, k, v, z, b, a; NAME.conv.weight [conv_width, 1, taps] or [conv_width,
  // taps]; NAME.log_rate [heads], or NAME.minus_rate; NAME.dt_bias [heads]; NAME.norm [value_dim]; NAME.out [dim,
  // values_width]. A rank of several takes its key heads and the value heads that read them, of everything but
  // NAME.norm. Of ranks that split sequences each has some of those heads in convolution and rule.
  static Result<DeltaNet> load(const LoadContext& context, const std::string& name, const Dims& dims);
  // x has the own rows of the step's (row_split.h), positions [tokens] i32 is of all: a row whose first token is at 0
  // starts from zeros; `next` reads x behind it. Thread: the step's owner.
  Status run(OpContext& ops, Residual& x, TensorView positions, RaggedView rows, const DeltaNetState& state,
             const Residual::Reader& next) const;
  Residual::Reader reader(const RmsNorm& norm) const { return {.norm = &norm, .product = &in_}; }
  // Arena bytes that run() takes and gives back, for so many rows of the step.
  std::size_t workspace_bytes(int tokens, int num_threads) const;
  std::size_t bytes() const;

 private:
  struct Shard;
  static Result<HeadSwap> swap_of(const Dims& dims, Ranks sequence);
  // `shard` of the weights over the ranks, `mixed` of what is left over those that split sequences.
  Status load_conv(const LoadContext& context, const std::string& home, const Shard& shard, const Shard& mixed);
  Status load_rate(const LoadContext& context, const std::string& name, const Shard& shard, const Shard& mixed);
  Status load_dt_bias(const LoadContext& context, const std::string& home, const Shard& shard, const Shard& mixed);

  Dims dims_;  // of this rank's weights
  Dims mix_;   // of them, of the heads that it mixes
  HeadSwap swap_;
  Backend backend_ = Backend::cpu;
  bool batch_invariant_ = false;
  Linear in_, out_;
  Tensor conv_;            // [taps, conv_width], of the heads that it mixes
  Tensor rate_, dt_bias_;  // [heads], likewise
  RmsNorm norm_;
};

}  // namespace mstar::nn
