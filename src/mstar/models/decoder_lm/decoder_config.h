// The sizes of a dense decoder language model, read from a Hugging Face directory or a GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mstar/models/model.h"
#include "mstar/nn/decoder_layer.h"
#include "mstar/text/chat_template.h"
#include "mstar/text/tokenizer.h"

namespace mstar::models {

// Architectures: llama, qwen2, qwen3 (config.json's model_type, GGUF's general.architecture).
struct DecoderConfig {
  std::string architecture;
  nn::DecoderLayer::Dims layer;
  int layers = 0;
  int vocab = 0;
  int context_tokens = 0;
  bool tied = false;              // the head is the embedding table
  bool interleaved_rope = false;  // GGUF files of llama store rows of q and k for rotation of neighbours
  std::vector<float> frequencies;
  DType storage = DType::f32;  // of matrices that are not in blocks
  std::vector<std::int32_t> stop_ids;
  std::int32_t bos_id = -1;  // put before a raw prompt; -1: none
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the checkpoint has none
  std::string bos_token, eos_token;                   // as the template sees them

  // bad_model when something is missing, of a wrong type or not supported; the message names it.
  static Result<DecoderConfig> read(const ModelSource& source);
};

std::vector<decl::WeightRule> decoder_lm_weight_rules(const DecoderConfig& config, weights::Format format);

}  // namespace mstar::models
