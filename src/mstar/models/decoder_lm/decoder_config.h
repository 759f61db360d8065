// The sizes of a dense decoder language model, read from a Hugging Face directory or a GGUF file.
#pragma once

#include <vector>

#include "mstar/models/model.h"
#include "mstar/models/text_decoder.h"
#include "mstar/nn/decoder_layer.h"

namespace mstar::models {

// Architectures: llama, qwen2, qwen3 (config.json's model_type, GGUF's general.architecture).
struct DecoderConfig {
  TextDecoderConfig decoder;
  nn::DecoderLayer::Dims layer;
  int layers = 0;
  bool interleaved_rope = false;  // GGUF files of llama store rows of q and k for rotation of neighbours
  std::vector<float> frequencies;

  // bad_model when something is missing, of a wrong type or not supported; the message names it.
  static Result<DecoderConfig> read(const ModelSource& source);
};

std::vector<decl::WeightRule> decoder_lm_weight_rules(const DecoderConfig& config, weights::Format format);

}  // namespace mstar::models
