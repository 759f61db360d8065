// The sizes of a Qwen3.5 language model, read from a Hugging Face directory or a GGUF file.
#pragma once

#include <string>
#include <vector>

#include "mstar/models/model.h"
#include "mstar/models/text_decoder.h"
#include "mstar/nn/delta_net.h"
#include "mstar/nn/gated_attention.h"

namespace mstar::models {

// Sources: transformers Qwen3_5TextConfig (model_type qwen3_5 or qwen3_5_text), llama.cpp's architecture qwen35. The
// vision tower and the layers that predict further tokens are left out.
inline constexpr int kPageTokens = 16;  // of its keys and values

struct Qwen35Config {
  TextDecoderConfig decoder;
  nn::GatedAttention::Dims attention;
  nn::DeltaNet::Dims delta;
  std::vector<bool> full_attention;  // by layer; the others are delta nets
  int ffn_dim = 0;
  std::vector<float> frequencies;  // of the rotated pairs, the first dimensions of a head
  DType state = DType::f32;        // of the delta rule: f32 or bf16
  int state_snapshots = 0;         // that the prefix cache keeps; 0: none, and no prefix cache
  int snapshot_tokens = 0;         // the grid on which they are taken
  std::string prefix;              // of the names in a safetensors checkpoint: "model." or "model.language_model."
  int num_layers() const { return static_cast<int>(full_attention.size()); }
  int num_attention_layers() const;
  int num_delta_layers() const { return num_layers() - num_attention_layers(); }
  // What one request keeps beside its pages: [layers, taps - 1, conv_width] f32 and the delta rule's.
  std::vector<decl::StateTensor> state_tensors() const;

  // bad_model when something is missing, of a wrong type or not supported; the message names it.
  static Result<Qwen35Config> read(const ModelSource& source);
};

std::vector<decl::WeightRule> qwen35_weight_rules(const Qwen35Config& config, const weights::Checkpoint& checkpoint);

}  // namespace mstar::models
