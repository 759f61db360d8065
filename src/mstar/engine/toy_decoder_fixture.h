// A small transformer with seeded weights, for tests of the engine and for the CUDA bench: the same body on every
// backend. Layer norm, learned positions, paged keys and values, GELU, greedy sampling.
#pragma once

#include <cstdint>

#include "mstar/engine/decoder_fixture.h"

namespace mstar::engine {

struct ToyConfig {
  int layers = 4;
  int dim = 256;
  int heads = 4;
  int ffn_dim = 1024;
  int vocab = 1000;
  int max_positions = 512;
  int page_tokens = 16;
  DType storage = DType::bf16;  // of matrices
  DType kv_dtype = DType::f32;
  std::uint32_t seed = 1;
  int head_dim() const { return dim / heads; }
};

// Weights are drawn on the host in one fixed order, so every device gets the same numbers.
std::unique_ptr<DecoderDecl> declare_toy_decoder(const ToyConfig& config, std::vector<int> captured_rows,
                                                 int max_batch_rows, bool with_logits);

}  // namespace mstar::engine
