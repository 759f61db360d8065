#include "mstar/models/decoder_lm/decoder_config.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "mstar/models/checkpoint_numbers.h"
#include "mstar/models/decoder_lm/decoder_lm.h"

namespace mstar::models {
namespace {

using nlohmann::json;

constexpr std::string_view kArchitectures[] = {"llama", "qwen2", "qwen3"};

bool is_known(std::string_view architecture) {
  return std::find(std::begin(kArchitectures), std::end(kArchitectures), architecture) != std::end(kArchitectures);
}

Status check(const DecoderConfig& c) {
  const nn::DecoderLayer::Dims& d = c.layer;
  if (d.heads % d.kv_heads != 0)
    return bad_model(std::to_string(d.heads) + " query heads are no multiple of " + std::to_string(d.kv_heads) +
                     " key heads");
  if (d.head_dim % 16 != 0) return bad_model("a head of " + std::to_string(d.head_dim) + " is no multiple of 16");
  return ok_status();
}

// ---- Hugging Face

Status read_rope(DecoderConfig& out, const json& config) {
  // transformers 5 keeps both under rope_parameters.
  const json none = json::object();
  const auto parameters = config.find("rope_parameters");
  const auto scaling_at = config.find("rope_scaling");
  const json& scaling = parameters != config.end() && parameters->is_object()   ? *parameters
                        : scaling_at != config.end() && scaling_at->is_object() ? *scaling_at
                                                                                : none;
  const JsonNumbers outer(config, "config.json"), inner(scaling, "config.json's rope parameters");
  MSTAR_TRY_ASSIGN(double theta, outer.number("rope_theta", 10000.0));
  MSTAR_TRY_ASSIGN(theta, inner.number("rope_theta", theta));
  MSTAR_TRY_ASSIGN(const double partial, outer.number("partial_rotary_factor", 1.0));
  const int rotary = static_cast<int>(out.layer.head_dim * std::min(partial, 1.0));
  if (rotary < 2 || rotary % 2) return bad_model("config.json: 'partial_rotary_factor' leaves no pairs to rotate");
  out.frequencies = nn::inverse_frequencies(rotary, theta);
  MSTAR_TRY_ASSIGN(std::string type, inner.text("type", "default"));
  MSTAR_TRY_ASSIGN(type, inner.text("rope_type", type));
  if (type == "default") return ok_status();
  if (type == "linear") {
    MSTAR_TRY_ASSIGN(const double factor, inner.number("factor", 1.0));
    for (float& each : out.frequencies) each = static_cast<float>(each / factor);
    return ok_status();
  }
  if (type != "llama3") return bad_model("config.json: rope type '" + type + "' is none of default, linear, llama3");
  nn::Llama3Scaling s;
  MSTAR_TRY_ASSIGN(s.factor, inner.number("factor", 1.0));
  MSTAR_TRY_ASSIGN(s.low_frequency_factor, inner.number("low_freq_factor", 1.0));
  MSTAR_TRY_ASSIGN(s.high_frequency_factor, inner.number("high_freq_factor", 4.0));
  MSTAR_TRY_ASSIGN(s.original_context_tokens, inner.number("original_max_position_embeddings", 8192.0));
  nn::scale_llama3(out.frequencies, s);
  return ok_status();
}

Result<DecoderConfig> read_hf(const ModelSource& source) {
  DecoderConfig out;
  MSTAR_TRY_ASSIGN(const json config, read_json_file(source.directory / "config.json", true));
  const JsonNumbers numbers(config, "config.json");
  MSTAR_TRY_ASSIGN(out.decoder.architecture, numbers.text("model_type"));
  MSTAR_TRY_ASSIGN(const Shape embedding, embedding_shape(*source.checkpoint, "model.embed_tokens.weight"));
  out.decoder.vocab = static_cast<int>(embedding[0]);
  auto& d = out.layer;
  d.dim = out.decoder.dim = static_cast<int>(embedding[1]);
  MSTAR_TRY_ASSIGN(out.layers, numbers.integer("num_hidden_layers", 1, kMaxLayers));
  MSTAR_TRY_ASSIGN(d.heads, numbers.integer("num_attention_heads", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.kv_heads, numbers.integer("num_key_value_heads", 1, kMaxWidth, d.heads));
  MSTAR_TRY_ASSIGN(d.head_dim, numbers.integer("head_dim", 1, kMaxWidth, d.dim / d.heads));
  MSTAR_TRY_ASSIGN(d.ffn_dim, numbers.integer("intermediate_size", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(out.decoder.context_tokens, numbers.integer("max_position_embeddings", 1, kMaxContextTokens));
  MSTAR_TRY_ASSIGN(const double epsilon, numbers.number("rms_norm_eps", 1e-6));
  d.norm_epsilon = out.decoder.norm_epsilon = static_cast<float>(epsilon);
  d.qkv_bias = source.checkpoint->find("model.layers.0.self_attn.q_proj.bias") != nullptr;
  d.qk_norm = source.checkpoint->find("model.layers.0.self_attn.q_norm.weight") != nullptr;
  out.decoder.tied = source.checkpoint->find("lm_head.weight") == nullptr;
  MSTAR_TRY_ASSIGN(const std::string activation, numbers.text("hidden_act", "silu"));
  if (activation != "silu") return bad_model("config.json: 'hidden_act' must be silu");
  MSTAR_TRY_ASSIGN(out.decoder.storage, storage_of(source, *source.checkpoint->find("model.embed_tokens.weight")));
  if (const auto window = config.find("use_sliding_window"); window != config.end() && *window == true)
    return bad_model("config.json: 'use_sliding_window' is not supported");
  MSTAR_TRY(read_rope(out, config));
  MSTAR_TRY_ASSIGN(out.decoder.text, hf_text_of(source, config, out.decoder.vocab));
  return out;
}

// ---- GGUF

// Llama 3's scaling comes as a factor for each pair.
Status divide_by_factors(std::vector<float>& frequencies, const weights::Checkpoint& checkpoint) {
  const weights::StoredWeight* const factors = checkpoint.find("rope_freqs.weight");
  if (!factors) return ok_status();
  if (factors->type != StoredType(DType::f32) || factors->shape != Shape{static_cast<std::int64_t>(frequencies.size())})
    return bad_model("'rope_freqs.weight' must hold " + std::to_string(frequencies.size()) + " f32 numbers");
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    float factor = 1;
    std::memcpy(&factor, factors->bytes.data() + i * sizeof factor, sizeof factor);
    if (!(factor > 0)) return bad_model("'rope_freqs.weight' holds a number that is not above 0");
    frequencies[i] /= factor;
  }
  return ok_status();
}

Result<DecoderConfig> read_gguf(const ModelSource& source) {
  DecoderConfig out;
  const weights::Checkpoint& checkpoint = *source.checkpoint;
  const weights::Metadata& metadata = checkpoint.metadata();
  MSTAR_TRY_ASSIGN(const std::string_view architecture, metadata.string("general.architecture"));
  out.decoder.architecture = architecture;
  const GgufNumbers numbers(metadata, out.decoder.architecture + ".");
  MSTAR_TRY_ASSIGN(const Shape embedding, embedding_shape(checkpoint, "token_embd.weight"));
  out.decoder.vocab = static_cast<int>(embedding[0]);
  auto& d = out.layer;
  d.dim = out.decoder.dim = static_cast<int>(embedding[1]);
  MSTAR_TRY_ASSIGN(out.layers, numbers.integer("block_count", 1, kMaxLayers));
  MSTAR_TRY_ASSIGN(d.heads, numbers.integer("attention.head_count", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.kv_heads, numbers.integer("attention.head_count_kv", 1, kMaxWidth, d.heads));
  MSTAR_TRY_ASSIGN(d.head_dim, numbers.integer("attention.key_length", 1, kMaxWidth, d.dim / d.heads));
  MSTAR_TRY_ASSIGN(d.ffn_dim, numbers.integer("feed_forward_length", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(out.decoder.context_tokens, numbers.integer("context_length", 1, kMaxContextTokens));
  MSTAR_TRY_ASSIGN(const double epsilon, numbers.number("attention.layer_norm_rms_epsilon", 1e-5));
  d.norm_epsilon = out.decoder.norm_epsilon = static_cast<float>(epsilon);
  d.qkv_bias = checkpoint.find("blk.0.attn_q.bias") != nullptr;
  d.qk_norm = checkpoint.find("blk.0.attn_q_norm.weight") != nullptr;
  out.decoder.tied = checkpoint.find("output.weight") == nullptr;
  out.interleaved_rope = out.decoder.architecture == "llama";
  MSTAR_TRY_ASSIGN(const double theta, numbers.number("rope.freq_base", 10000.0));
  MSTAR_TRY_ASSIGN(const int rotary, numbers.integer("rope.dimension_count", 2, d.head_dim, d.head_dim));
  MSTAR_TRY_ASSIGN(const double stretch, gguf_rope_stretch(metadata, out.decoder.architecture));
  out.frequencies = nn::inverse_frequencies(rotary, theta);
  for (float& each : out.frequencies) each = static_cast<float>(each / stretch);
  MSTAR_TRY(divide_by_factors(out.frequencies, checkpoint));
  MSTAR_TRY_ASSIGN(out.decoder.storage, storage_of(source, *checkpoint.find("token_embd.weight")));
  MSTAR_TRY_ASSIGN(out.decoder.text, read_gguf_text(metadata));
  return out;
}

}  // namespace

bool decoder_lm_recognises(const ModelSource& source) {
  if (source.checkpoint->format() == weights::Format::gguf) {
    const auto architecture = source.checkpoint->metadata().string("general.architecture");
    return architecture && is_known(*architecture);
  }
  if (!source.checkpoint->find("model.embed_tokens.weight")) return false;
  const auto config = read_json_file(source.directory / "config.json", true);
  if (!config) return false;
  const auto type = JsonNumbers(*config, "config.json").text("model_type");
  return type && is_known(*type);
}

Result<DecoderConfig> DecoderConfig::read(const ModelSource& source) {
  const bool gguf = source.checkpoint->format() == weights::Format::gguf;
  MSTAR_TRY_ASSIGN(DecoderConfig out, gguf ? read_gguf(source) : read_hf(source));
  MSTAR_TRY(check(out));
  MSTAR_TRY(out.decoder.read_options(source));
  return out;
}

Result<std::vector<weights::DummyWeight>> decoder_lm_dummy_weights(const ModelSource& source) {
  using Fill = weights::DummyWeight::Fill;
  MSTAR_TRY_ASSIGN(const json config, read_json_file(source.directory / "config.json", true));
  const JsonNumbers numbers(config, "config.json");
  MSTAR_TRY_ASSIGN(const std::string type, numbers.text("model_type"));
  if (!is_known(type)) return bad_model("model_type '" + type + "' is none of llama, qwen2, qwen3");
  MSTAR_TRY_ASSIGN(const int vocab, numbers.integer("vocab_size", 1, 1 << 24));
  MSTAR_TRY_ASSIGN(const int dim, numbers.integer("hidden_size", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(const int layers, numbers.integer("num_hidden_layers", 1, kMaxLayers));
  MSTAR_TRY_ASSIGN(const int heads, numbers.integer("num_attention_heads", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(const int kv_heads, numbers.integer("num_key_value_heads", 1, kMaxWidth, heads));
  MSTAR_TRY_ASSIGN(const int head_dim, numbers.integer("head_dim", 1, kMaxWidth, dim / heads));
  MSTAR_TRY_ASSIGN(const int ffn, numbers.integer("intermediate_size", 1, kMaxWidth));
  const std::int64_t q = std::int64_t{heads} * head_dim, kv = std::int64_t{kv_heads} * head_dim;
  std::vector<weights::DummyWeight> out = {{"model.embed_tokens.weight", {vocab, dim}},
                                           {"model.norm.weight", {dim}, Fill::ones}};
  const auto tied = config.find("tie_word_embeddings");
  if (tied == config.end() || *tied != true) out.push_back({"lm_head.weight", {vocab, dim}});
  for (int layer = 0; layer < layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    out.push_back({at + "self_attn.q_proj.weight", {q, dim}});
    out.push_back({at + "self_attn.k_proj.weight", {kv, dim}});
    out.push_back({at + "self_attn.v_proj.weight", {kv, dim}});
    out.push_back({at + "self_attn.o_proj.weight", {dim, q}});
    out.push_back({at + "mlp.gate_proj.weight", {ffn, dim}});
    out.push_back({at + "mlp.up_proj.weight", {ffn, dim}});
    out.push_back({at + "mlp.down_proj.weight", {dim, ffn}});
    out.push_back({at + "input_layernorm.weight", {dim}, Fill::ones});
    out.push_back({at + "post_attention_layernorm.weight", {dim}, Fill::ones});
    if (type == "qwen2") {
      out.push_back({at + "self_attn.q_proj.bias", {q}, Fill::zeros});
      out.push_back({at + "self_attn.k_proj.bias", {kv}, Fill::zeros});
      out.push_back({at + "self_attn.v_proj.bias", {kv}, Fill::zeros});
    } else if (type == "qwen3") {
      out.push_back({at + "self_attn.q_norm.weight", {head_dim}, Fill::ones});
      out.push_back({at + "self_attn.k_norm.weight", {head_dim}, Fill::ones});
    }
  }
  return out;
}

std::vector<decl::WeightRule> decoder_lm_weight_rules(const DecoderConfig& config, weights::Format format) {
  using namespace decl;
  std::vector<WeightRule> rules;
  if (format == weights::Format::gguf) {
    rules = {Fuse{{"blk.*.attn_q.weight", "blk.*.attn_k.weight", "blk.*.attn_v.weight"}, "decoder.layer.*.qkv.weight"},
             Fuse{{"blk.*.attn_q.bias", "blk.*.attn_k.bias", "blk.*.attn_v.bias"}, "decoder.layer.*.qkv.bias"},
             Fuse{{"blk.*.ffn_gate.weight", "blk.*.ffn_up.weight"}, "decoder.layer.*.gate_up.weight"},
             Rename{"blk.*.attn_output.weight", "decoder.layer.*.out.weight"},
             Rename{"blk.*.ffn_down.weight", "decoder.layer.*.down.weight"},
             Rename{"blk.*.attn_norm.weight", "decoder.layer.*.norm1.weight"},
             Rename{"blk.*.ffn_norm.weight", "decoder.layer.*.norm2.weight"},
             Rename{"blk.*.attn_q_norm.weight", "decoder.layer.*.q_norm.weight"},
             Rename{"blk.*.attn_k_norm.weight", "decoder.layer.*.k_norm.weight"},
             Rename{"token_embd.weight", "decoder.embedding.weight"},
             Rename{"output_norm.weight", "decoder.norm.weight"},
             Rename{"output.weight", "decoder.head.weight"},
             Drop{"rope_freqs.weight"}};
    return rules;
  }
  const std::string layer = "model.layers.*.";
  rules = {
      Fuse{{layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight"},
           "decoder.layer.*.qkv.weight"},
      Fuse{{layer + "self_attn.q_proj.bias", layer + "self_attn.k_proj.bias", layer + "self_attn.v_proj.bias"},
           "decoder.layer.*.qkv.bias"},
      Fuse{{layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"}, "decoder.layer.*.gate_up.weight"},
      Rename{layer + "self_attn.o_proj.weight", "decoder.layer.*.out.weight"},
      Rename{layer + "mlp.down_proj.weight", "decoder.layer.*.down.weight"},
      Rename{layer + "input_layernorm.weight", "decoder.layer.*.norm1.weight"},
      Rename{layer + "post_attention_layernorm.weight", "decoder.layer.*.norm2.weight"},
      Rename{layer + "self_attn.q_norm.weight", "decoder.layer.*.q_norm.weight"},
      Rename{layer + "self_attn.k_norm.weight", "decoder.layer.*.k_norm.weight"},
      Rename{"model.embed_tokens.weight", "decoder.embedding.weight"},
      Rename{"model.norm.weight", "decoder.norm.weight"},
      Rename{"lm_head.weight", "decoder.head.weight"},
      Drop{layer + "self_attn.rotary_emb.inv_freq"}};
  (void)config;
  return rules;
}

}  // namespace mstar::models
