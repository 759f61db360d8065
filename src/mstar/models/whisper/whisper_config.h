// The sizes of a Whisper checkpoint, read from its weights and config.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/models/model.h"
#include "mstar/models/silero/voice_weights.h"
#include "mstar/models/whisper/whisper_text.h"
#include "mstar/text/tokenizer.h"

namespace mstar::models {

// How matrices are kept, by component.
struct WhisperStorage {
  DType encoder = DType::f16, cross = DType::f16, decoder = DType::f16;
  DType of(std::string_view component) const {
    return component == "encoder" ? encoder : component == "cross" ? cross : decoder;
  }
};

struct WhisperConfig {
  int num_mels = 80;
  int dim = 512;
  int ffn_dim = 2048;
  int heads = 8;
  int encoder_layers = 6;
  int decoder_layers = 6;
  int vocab = 51865;
  int audio_positions = 1500;  // encoder positions of a window
  int text_positions = 448;
  WhisperStorage storage = {};
  bool batch_invariant = false;  // option: a transcript's bits do not depend on what else runs
  Backend backend = Backend::cpu;
  // Of each decoder layer, the heads whose cross attention tells when a token is said.
  std::vector<std::vector<int>> alignment_heads;
  WhisperTokens tokens;
  std::shared_ptr<const VoiceWeights> voice;   // read when a request first asks for it; never null
  std::shared_ptr<const Tokenizer> tokenizer;  // owners: the declaration's closures
  int head_dim() const { return dim / heads; }
  int num_alignment_heads() const {
    int out = 0;
    for (const auto& of_layer : alignment_heads) out += static_cast<int>(of_layer.size());
    return out;
  }
  int window_frames() const { return 2 * audio_positions; }
  bool on_cuda() const { return backend == Backend::cuda; }
  // Biases of projections of many rows are added by what reads the projection, heads of 64 on tensor cores. Those of
  // keys are left out: all scores of a query would move alike.
  bool adds_biases_late() const { return activations() == DType::bf16 && head_dim() == 64; }
  // What lies between products, and the keys and values: bf16 with bf16 matrices on CUDA, else f32.
  DType activations() const { return on_cuda() && storage.decoder == DType::bf16 ? DType::bf16 : DType::f32; }
  // The decoder's products leave for one another what its layer norms take (nn/residual.h).
  bool passes_norms() const { return activations() == DType::bf16 && !batch_invariant; }
  // What the encoder takes: it would be rounded so when the first convolution reads it.
  DType mels() const { return activations(); }

  static Result<WhisperConfig> read(const ModelSource& source);
};

// Names of CTranslate2 or Hugging Face checkpoints -> the homes that the bodies load.
std::vector<decl::WeightRule> whisper_weight_rules(weights::Format format);

}  // namespace mstar::models
