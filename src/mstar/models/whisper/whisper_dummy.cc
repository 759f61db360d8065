#include "mstar/models/whisper/whisper_dummy.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "mstar/models/checkpoint_numbers.h"
#include "mstar/models/whisper/whisper.h"

namespace mstar::models {
namespace {

using nlohmann::json;
using Fill = weights::DummyWeight::Fill;

constexpr int kNumTimestamps = 1501;

struct Sizes {
  int vocab = 0, dim = 0, mels = 0, encoder_layers = 0, decoder_layers = 0, encoder_ffn = 0, decoder_ffn = 0;
  int audio_positions = 0, text_positions = 0;
};

Result<Sizes> sizes_of(const json& config) {
  const JsonNumbers numbers(config, "config.json");
  MSTAR_TRY_ASSIGN(const std::string type, numbers.text("model_type"));
  if (type != "whisper") return bad_model("model_type '" + type + "' is not whisper");
  Sizes out;
  MSTAR_TRY_ASSIGN(out.vocab, numbers.integer("vocab_size", 1, 1 << 24));
  MSTAR_TRY_ASSIGN(out.dim, numbers.integer("d_model", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(out.mels, numbers.integer("num_mel_bins", 1, kMaxWidth, 80));
  MSTAR_TRY_ASSIGN(out.encoder_layers, numbers.integer("encoder_layers", 1, kMaxLayers));
  MSTAR_TRY_ASSIGN(out.decoder_layers, numbers.integer("decoder_layers", 1, kMaxLayers));
  MSTAR_TRY_ASSIGN(out.encoder_ffn, numbers.integer("encoder_ffn_dim", 1, kMaxWidth, 4 * out.dim));
  MSTAR_TRY_ASSIGN(out.decoder_ffn, numbers.integer("decoder_ffn_dim", 1, kMaxWidth, 4 * out.dim));
  MSTAR_TRY_ASSIGN(out.audio_positions, numbers.integer("max_source_positions", 1, kMaxContextTokens, 1500));
  MSTAR_TRY_ASSIGN(out.text_positions, numbers.integer("max_target_positions", 1, kMaxContextTokens, 448));
  return out;
}

class Weights {
 public:
  void linear(const std::string& name, std::int64_t outputs, std::int64_t inputs, bool bias = true) {
    all.push_back({name + ".weight", {outputs, inputs}});
    if (bias) all.push_back({name + ".bias", {outputs}, Fill::zeros});
  }
  void norm(const std::string& name, std::int64_t dim) {
    all.push_back({name + ".weight", {dim}, Fill::ones});
    all.push_back({name + ".bias", {dim}, Fill::zeros});
  }
  void attention(const std::string& name, std::int64_t dim) {
    linear(name + ".q_proj", dim, dim);
    linear(name + ".k_proj", dim, dim, false);
    linear(name + ".v_proj", dim, dim);
    linear(name + ".out_proj", dim, dim);
    norm(name + "_layer_norm", dim);
  }
  void layer(const std::string& name, std::int64_t dim, std::int64_t ffn, bool crosses) {
    attention(name + ".self_attn", dim);
    if (crosses) attention(name + ".encoder_attn", dim);
    linear(name + ".fc1", ffn, dim);
    linear(name + ".fc2", dim, ffn);
    norm(name + ".final_layer_norm", dim);
  }
  std::vector<weights::DummyWeight> all;
};

}  // namespace

Result<std::vector<weights::DummyWeight>> whisper_dummy_weights(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(const json config, read_json_file(source.directory / "config.json", true));
  MSTAR_TRY_ASSIGN(const Sizes s, sizes_of(config));
  Weights out;
  const std::string encoder = "model.encoder.", decoder = "model.decoder.";
  for (const auto& [name, channels] : {std::pair{"conv1", s.mels}, std::pair{"conv2", s.dim}}) {
    out.all.push_back({encoder + name + ".weight", {s.dim, channels, 3}});
    out.all.push_back({encoder + name + ".bias", {s.dim}, Fill::zeros});
  }
  out.all.push_back({encoder + "embed_positions.weight", {s.audio_positions, s.dim}});
  for (int i = 0; i < s.encoder_layers; ++i)
    out.layer(encoder + "layers." + std::to_string(i), s.dim, s.encoder_ffn, false);
  out.norm(encoder + "layer_norm", s.dim);
  out.all.push_back({decoder + "embed_tokens.weight", {s.vocab, s.dim}});
  out.all.push_back({decoder + "embed_positions.weight", {s.text_positions, s.dim}});
  for (int i = 0; i < s.decoder_layers; ++i)
    out.layer(decoder + "layers." + std::to_string(i), s.dim, s.decoder_ffn, true);
  out.norm(decoder + "layer_norm", s.dim);
  return std::move(out.all);
}

Result<Tokenizer> whisper_dummy_tokenizer(int vocab) {
  constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6, kBytes = 256;
  const int languages = vocab >= 51866 ? vocab - 51766 : vocab >= 51864 ? 99 : 2;
  const int eot = vocab - kNumTimestamps - 6 - languages - 2;
  if (eot < kBytes + 2) return bad_model("a dummy Whisper tokenizer wants a vocabulary of 1769 or more");
  GgufTokenizer made{.model = "llama"};
  made.unknown_id = 0;
  made.add_bos = false;
  made.add_space_prefix = false;
  const auto add = [&](std::string text, int type) {
    made.tokens.push_back(std::move(text));
    made.token_types.push_back(type);
  };
  add("<unk>", kUnknown);
  for (int byte = 0; byte < kBytes; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    add(text, kByte);
  }
  add("\u2581", kNormal);  // a space, which bytes can't spell
  while (static_cast<int>(made.tokens.size()) < eot) add("\u2581t" + std::to_string(made.tokens.size()), kNormal);
  for (const char* text : {"<|endoftext|>", "<|startoftranscript|>", "<|en|>"}) add(text, kControl);
  for (int i = 1; i < languages; ++i) add("<|l" + std::to_string(i) + "|>", kControl);
  for (const char* text :
       {"<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"})
    add(text, kControl);
  for (int i = 0; i < kNumTimestamps; ++i) {
    char text[16];
    std::snprintf(text, sizeof text, "<|%.2f|>", i * 0.02);
    add(text, kControl);
  }
  made.scores.assign(made.tokens.size(), -1.0f);
  return Tokenizer::from_gguf(made);
}

}  // namespace mstar::models
