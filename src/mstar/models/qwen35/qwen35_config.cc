#include "mstar/models/qwen35/qwen35_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "mstar/models/checkpoint_numbers.h"
#include "mstar/models/qwen35/qwen35.h"
#include "mstar/nn/rotary.h"
#include "mstar/ops/causal_conv1d/causal_conv1d.h"

namespace mstar::models {
namespace {

using nlohmann::json;

constexpr const char* kPrefixes[] = {"model.language_model.", "model."};

const char* prefix_of(const weights::Checkpoint& checkpoint) {
  for (const char* const prefix : kPrefixes)
    if (checkpoint.find(std::string(prefix) + "embed_tokens.weight")) return prefix;
  return nullptr;
}

// Sizes that the two blocks must have, whatever the source.
Status check(const Qwen35Config& c) {
  const auto multiple = [](int a, int b, const char* what) {
    return a % b == 0 ? ok_status() : bad_model(std::to_string(a) + what + std::to_string(b));
  };
  MSTAR_TRY(multiple(c.attention.heads, c.attention.kv_heads, " query heads are no multiple of the key heads, "));
  MSTAR_TRY(
      multiple(c.delta.heads, c.delta.key_heads, " value heads of a delta net are no multiple of its key heads, "));
  MSTAR_TRY(multiple(c.attention.head_dim, 16, " dimensions of a head are no multiple of "));
  MSTAR_TRY(multiple(c.delta.value_dim, 16, " dimensions of a delta net's values are no multiple of "));
  const std::int64_t widths[] = {static_cast<std::int64_t>(c.attention.heads) * c.attention.head_dim,
                                 static_cast<std::int64_t>(c.delta.key_heads) * c.delta.key_dim,
                                 static_cast<std::int64_t>(c.delta.heads) * c.delta.value_dim};
  for (const std::int64_t width : widths)
    if (width > kMaxWidth) return bad_model("heads of " + std::to_string(width) + " dimensions together are too many");
  if (c.num_attention_layers() == 0) return bad_model("a Qwen3.5 model without a layer of full attention");
  return ok_status();
}

Status read_rotary(Qwen35Config& out, double theta, int rotary) {
  if (rotary < 2 || rotary % 2 || rotary > out.attention.head_dim)
    return bad_model("a head of " + std::to_string(out.attention.head_dim) + " dimensions can't have " +
                     std::to_string(rotary) + " rotated ones");
  out.frequencies = nn::inverse_frequencies(rotary, theta);
  return ok_status();
}

// ---- Hugging Face

// The three axes of a position are equal for text, so that it does not matter which pair belongs to which axis.
Status read_hf_rotary(Qwen35Config& out, const json& config) {
  const json none = json::object();
  const auto found = config.find("rope_parameters");
  const json& parameters = found != config.end() && found->is_object() ? *found : none;
  const JsonNumbers outer(config, "config.json"), inner(parameters, "config.json's rope_parameters");
  MSTAR_TRY_ASSIGN(const std::string type, inner.text("rope_type", "default"));
  if (type != "default") return bad_model("config.json: rope type '" + type + "' is not supported here");
  MSTAR_TRY_ASSIGN(double theta, outer.number("rope_theta", 10000.0));
  MSTAR_TRY_ASSIGN(theta, inner.number("rope_theta", theta));
  MSTAR_TRY_ASSIGN(double partial, outer.number("partial_rotary_factor", 0.25));
  MSTAR_TRY_ASSIGN(partial, inner.number("partial_rotary_factor", partial));
  return read_rotary(out, theta, static_cast<int>(out.attention.head_dim * std::min(partial, 1.0)));
}

Status read_hf_sizes(Qwen35Config& out, const JsonNumbers& numbers) {
  auto& a = out.attention;
  auto& d = out.delta;
  MSTAR_TRY_ASSIGN(a.heads, numbers.integer("num_attention_heads", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(a.kv_heads, numbers.integer("num_key_value_heads", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(a.head_dim, numbers.integer("head_dim", 1, kMaxWidth, 256));
  MSTAR_TRY_ASSIGN(d.key_heads, numbers.integer("linear_num_key_heads", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.heads, numbers.integer("linear_num_value_heads", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.key_dim, numbers.integer("linear_key_head_dim", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.value_dim, numbers.integer("linear_value_head_dim", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.taps, numbers.integer("linear_conv_kernel_dim", 2, kMaxConvTaps));
  MSTAR_TRY_ASSIGN(out.ffn_dim, numbers.integer("intermediate_size", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(out.decoder.context_tokens, numbers.integer("max_position_embeddings", 1, kMaxContextTokens));
  MSTAR_TRY_ASSIGN(const double epsilon, numbers.number("rms_norm_eps", 1e-6));
  out.decoder.norm_epsilon = static_cast<float>(epsilon);
  return ok_status();
}

// A model with vision has its text model's configuration within its own.
const json& text_config(const json& whole) {
  const auto nested = whole.find("text_config");
  return nested != whole.end() && nested->is_object() ? *nested : whole;
}

bool is_qwen35(const json& whole) {
  const auto type = JsonNumbers(whole, "config.json").text("model_type");
  return type && (*type == "qwen3_5" || *type == "qwen3_5_text");
}

Result<Qwen35Config> read_hf(const ModelSource& source) {
  Qwen35Config out;
  MSTAR_TRY_ASSIGN(const json whole, read_json_file(source.directory / "config.json", true));
  const json& config = text_config(whole);
  const JsonNumbers numbers(config, "config.json");
  const char* const prefix = prefix_of(*source.checkpoint);
  if (!prefix) return bad_model("the checkpoint has no 'model.embed_tokens.weight'");
  out.prefix = prefix;
  const std::string table = out.prefix + "embed_tokens.weight";
  MSTAR_TRY_ASSIGN(const Shape embedding, embedding_shape(*source.checkpoint, table));
  out.decoder.architecture = "qwen3_5";
  out.decoder.vocab = static_cast<int>(embedding[0]);
  out.decoder.dim = static_cast<int>(embedding[1]);
  out.decoder.norm_offset = 1;
  out.decoder.tied = source.checkpoint->find("lm_head.weight") == nullptr;
  MSTAR_TRY(read_hf_sizes(out, numbers));
  MSTAR_TRY_ASSIGN(const int layers, numbers.integer("num_hidden_layers", 1, kMaxLayers));
  for (int i = 0; i < layers; ++i)
    out.full_attention.push_back(
        source.checkpoint->find(out.prefix + "layers." + std::to_string(i) + ".self_attn.q_proj.weight") != nullptr);
  MSTAR_TRY_ASSIGN(const std::string activation, numbers.text("hidden_act", "silu"));
  if (activation != "silu") return bad_model("config.json: 'hidden_act' must be silu");
  MSTAR_TRY_ASSIGN(out.decoder.storage, storage_of(source, *source.checkpoint->find(table)));
  MSTAR_TRY(read_hf_rotary(out, config));
  MSTAR_TRY_ASSIGN(out.decoder.text, hf_text_of(source, config, out.decoder.vocab));
  return out;
}

// ---- GGUF

// Converters store the weights of the zero-centred norms plus one, -exp(A_log) for A_log, and the value heads of a key
// head apart (llama.cpp, conversion/qwen.py).
Result<Qwen35Config> read_gguf(const ModelSource& source) {
  Qwen35Config out;
  const weights::Checkpoint& checkpoint = *source.checkpoint;
  const GgufNumbers numbers(checkpoint.metadata(), "qwen35.");
  auto& a = out.attention;
  auto& d = out.delta;
  MSTAR_TRY_ASSIGN(const Shape embedding, embedding_shape(checkpoint, "token_embd.weight"));
  out.decoder.architecture = "qwen35";
  out.decoder.vocab = static_cast<int>(embedding[0]);
  out.decoder.dim = static_cast<int>(embedding[1]);
  out.decoder.tied = checkpoint.find("output.weight") == nullptr;
  MSTAR_TRY_ASSIGN(a.heads, numbers.integer("attention.head_count", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(a.kv_heads, numbers.integer("attention.head_count_kv", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(a.head_dim, numbers.integer("attention.key_length", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.key_heads, numbers.integer("ssm.group_count", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.heads, numbers.integer("ssm.time_step_rank", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(d.key_dim, numbers.integer("ssm.state_size", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(const int values, numbers.integer("ssm.inner_size", 1, kMaxWidth));
  if (values % d.heads != 0) return bad_model("qwen35.ssm.inner_size is no multiple of qwen35.ssm.time_step_rank");
  d.value_dim = values / d.heads;
  MSTAR_TRY_ASSIGN(d.taps, numbers.integer("ssm.conv_kernel", 2, kMaxConvTaps));
  d.interleaved_heads = true;
  a.norm_offset = 0;
  MSTAR_TRY_ASSIGN(out.ffn_dim, numbers.integer("feed_forward_length", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(out.decoder.context_tokens, numbers.integer("context_length", 1, kMaxContextTokens));
  MSTAR_TRY_ASSIGN(const double epsilon, numbers.number("attention.layer_norm_rms_epsilon", 1e-6));
  out.decoder.norm_epsilon = static_cast<float>(epsilon);
  MSTAR_TRY_ASSIGN(const int blocks, numbers.integer("block_count", 1, kMaxLayers));
  MSTAR_TRY_ASSIGN(const int further, numbers.integer("nextn_predict_layers", 0, blocks - 1, 0));
  for (int i = 0; i < blocks - further; ++i)
    out.full_attention.push_back(checkpoint.find("blk." + std::to_string(i) + ".attn_q.weight") != nullptr);
  MSTAR_TRY_ASSIGN(const double stretch, gguf_rope_stretch(checkpoint.metadata(), out.decoder.architecture));
  if (stretch != 1.0) return bad_model("the GGUF file's rope scaling is not supported here");
  MSTAR_TRY_ASSIGN(const double theta, numbers.number("rope.freq_base", 10000.0));
  MSTAR_TRY_ASSIGN(const int rotary, numbers.integer("rope.dimension_count", 2, a.head_dim));
  MSTAR_TRY(read_rotary(out, theta, rotary));
  MSTAR_TRY_ASSIGN(out.decoder.storage, storage_of(source, *checkpoint.find("token_embd.weight")));
  MSTAR_TRY_ASSIGN(out.decoder.text, read_gguf_text(checkpoint.metadata()));
  return out;
}

// Names within a layer -> homes within decoder.layer.N, for both sources.
struct LayerNames {
  std::vector<const char*> from;
  const char* to;
};
const LayerNames kHf[] = {
    {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, "qkv.weight"},
    {{"self_attn.o_proj.weight"}, "out.weight"},
    {{"self_attn.q_norm.weight"}, "q_norm.weight"},
    {{"self_attn.k_norm.weight"}, "k_norm.weight"},
    {{"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight", "linear_attn.in_proj_b.weight",
      "linear_attn.in_proj_a.weight"},
     "in.weight"},
    {{"linear_attn.conv1d.weight"}, "conv.weight"},
    {{"linear_attn.A_log"}, "log_rate"},
    {{"linear_attn.dt_bias"}, "dt_bias"},
    {{"linear_attn.norm.weight"}, "norm.weight"},
    {{"linear_attn.out_proj.weight"}, "out.weight"},
    {{"mlp.gate_proj.weight", "mlp.up_proj.weight"}, "gate_up.weight"},
    {{"mlp.down_proj.weight"}, "down.weight"},
    {{"input_layernorm.weight"}, "norm1.weight"},
    {{"post_attention_layernorm.weight"}, "norm2.weight"},
};
const LayerNames kGguf[] = {
    {{"attn_q.weight", "attn_k.weight", "attn_v.weight"}, "qkv.weight"},
    {{"attn_output.weight"}, "out.weight"},
    {{"attn_q_norm.weight"}, "q_norm.weight"},
    {{"attn_k_norm.weight"}, "k_norm.weight"},
    {{"attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight"}, "in.weight"},
    {{"ssm_conv1d.weight"}, "conv.weight"},
    {{"ssm_a"}, "minus_rate"},
    {{"ssm_dt.bias"}, "dt_bias"},
    {{"ssm_norm.weight"}, "norm.weight"},
    {{"ssm_out.weight"}, "out.weight"},
    {{"ffn_gate.weight", "ffn_up.weight"}, "gate_up.weight"},
    {{"ffn_down.weight"}, "down.weight"},
    {{"attn_norm.weight"}, "norm1.weight"},
    {{"post_attention_norm.weight"}, "norm2.weight"},
};

void add_layer_rules(std::vector<decl::WeightRule>& rules, const std::string& layer,
                     std::span<const LayerNames> names) {
  for (const LayerNames& each : names) {
    const std::string to = std::string("decoder.layer.*.") + each.to;
    if (each.from.size() == 1) {
      rules.push_back(decl::Rename{layer + each.from[0], to});
      continue;
    }
    decl::Fuse fuse{.from = {}, .to = to};
    for (const char* const from : each.from) fuse.from.push_back(layer + from);
    rules.push_back(std::move(fuse));
  }
}

Result<DType> state_dtype(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(const std::string wanted, source.options.get_string("state", "f32"));
  if (wanted == "f32") return DType::f32;
  if (wanted == "bf16") return DType::bf16;
  return std::move(bad_model("option state: '" + wanted + "' is neither f32 nor bf16")).with_field("state");
}

// Options state_snapshots and snapshot_tokens. By default as many as a fixed number of bytes holds, and a grid of which
// a quarter, the least that one may save, takes about as long to compute as a step of a few tokens.
Status read_snapshots(const ModelSource& source, Qwen35Config& out) {
  constexpr std::int64_t kMostByDefault = 64, kMost = 4096, kMostTokens = 1 << 20;
  const bool on_cuda = source.backend == Backend::cuda;
  std::size_t bytes = 0;
  for (const decl::StateTensor& each : out.state_tensors()) {
    std::size_t own = dtype_bytes(each.dtype);
    for (const std::int64_t size : each.dims) own *= static_cast<std::size_t>(size);
    bytes += own;
  }
  const std::size_t budget = static_cast<std::size_t>(on_cuda ? 1024 : 512) << 20;
  const auto fits = static_cast<std::int64_t>(budget / std::max<std::size_t>(bytes, 1));
  MSTAR_TRY_ASSIGN(const std::int64_t snapshots,
                   source.options.get_int("state_snapshots", std::min(fits, kMostByDefault)));
  MSTAR_TRY_ASSIGN(const std::int64_t grid, source.options.get_int("snapshot_tokens", on_cuda ? 2048 : 256));
  if (snapshots < 0 || snapshots > kMost)
    return std::move(bad_model("option state_snapshots must be from 0 to " + std::to_string(kMost)))
        .with_field("state_snapshots");
  if (grid < kPageTokens || grid > kMostTokens || grid % kPageTokens != 0)
    return std::move(bad_model("option snapshot_tokens must be a multiple of " + std::to_string(kPageTokens) +
                               " up to " + std::to_string(kMostTokens)))
        .with_field("snapshot_tokens");
  const bool any = out.decoder.prefix_cache && out.num_delta_layers() > 0;
  out.state_snapshots = any ? static_cast<int>(snapshots) : 0;
  out.snapshot_tokens = static_cast<int>(grid);
  return ok_status();
}

}  // namespace

int Qwen35Config::num_attention_layers() const {
  return static_cast<int>(std::count(full_attention.begin(), full_attention.end(), true));
}

std::vector<decl::StateTensor> Qwen35Config::state_tensors() const {
  const std::int64_t layers = num_delta_layers();
  return {
      {.name = "conv", .dims = {layers, delta.taps - 1, delta.conv_width()}, .shard_axis = 2},
      {.name = "rule", .dims = {layers, delta.heads, delta.key_dim, delta.value_dim}, .dtype = state, .shard_axis = 1}};
}

bool qwen35_recognises(const ModelSource& source) {
  if (source.checkpoint->format() == weights::Format::gguf) {
    const auto architecture = source.checkpoint->metadata().string("general.architecture");
    return architecture && *architecture == "qwen35";
  }
  if (!prefix_of(*source.checkpoint)) return false;
  const auto config = read_json_file(source.directory / "config.json", true);
  return config && is_qwen35(*config);
}

Result<Qwen35Config> Qwen35Config::read(const ModelSource& source) {
  const bool gguf = source.checkpoint->format() == weights::Format::gguf;
  MSTAR_TRY_ASSIGN(Qwen35Config out, gguf ? read_gguf(source) : read_hf(source));
  MSTAR_TRY(check(out));
  out.attention.dim = out.delta.dim = out.decoder.dim;
  out.attention.norm_epsilon = out.delta.norm_epsilon = out.decoder.norm_epsilon;
  MSTAR_TRY_ASSIGN(out.state, state_dtype(source));
  MSTAR_TRY(out.decoder.read_options(source));
  MSTAR_TRY(read_snapshots(source, out));
  return out;
}

namespace {

// Whether a layer is one of full attention, as config.json says.
Result<bool> is_full(const json& config, const JsonNumbers& numbers, int layer) {
  const auto types = config.find("layer_types");
  if (types != config.end() && types->is_array()) {
    const auto at = static_cast<std::size_t>(layer);
    if (at >= types->size()) return bad_model("config.json: 'layer_types' is shorter than 'num_hidden_layers'");
    return (*types)[at] == "full_attention";
  }
  MSTAR_TRY_ASSIGN(const int interval, numbers.integer("full_attention_interval", 1, kMaxLayers, 4));
  return (layer + 1) % interval == 0;
}

void add_dummy_layer(std::vector<weights::DummyWeight>& out, const Qwen35Config& c, const std::string& at, bool full) {
  using Fill = weights::DummyWeight::Fill;
  const std::int64_t dim = c.decoder.dim;
  out.push_back({at + "input_layernorm.weight", {dim}, Fill::zeros});
  out.push_back({at + "post_attention_layernorm.weight", {dim}, Fill::zeros});
  out.push_back({at + "mlp.gate_proj.weight", {c.ffn_dim, dim}});
  out.push_back({at + "mlp.up_proj.weight", {c.ffn_dim, dim}});
  out.push_back({at + "mlp.down_proj.weight", {dim, c.ffn_dim}});
  if (full) {
    const nn::GatedAttention::Dims& a = c.attention;
    out.push_back({at + "self_attn.q_proj.weight", {2 * a.q_width(), dim}});
    out.push_back({at + "self_attn.k_proj.weight", {a.kv_width(), dim}});
    out.push_back({at + "self_attn.v_proj.weight", {a.kv_width(), dim}});
    out.push_back({at + "self_attn.o_proj.weight", {dim, a.q_width()}});
    out.push_back({at + "self_attn.q_norm.weight", {a.head_dim}, Fill::zeros});
    out.push_back({at + "self_attn.k_norm.weight", {a.head_dim}, Fill::zeros});
    return;
  }
  const nn::DeltaNet::Dims& d = c.delta;
  out.push_back({at + "linear_attn.in_proj_qkv.weight", {d.conv_width(), dim}});
  out.push_back({at + "linear_attn.in_proj_z.weight", {d.values_width(), dim}});
  out.push_back({at + "linear_attn.in_proj_b.weight", {d.heads, dim}});
  out.push_back({at + "linear_attn.in_proj_a.weight", {d.heads, dim}});
  out.push_back({at + "linear_attn.conv1d.weight", {d.conv_width(), 1, d.taps}});
  out.push_back({at + "linear_attn.A_log", {d.heads}, Fill::zeros});
  out.push_back({at + "linear_attn.dt_bias", {d.heads}, Fill::ones});
  out.push_back({at + "linear_attn.norm.weight", {d.value_dim}, Fill::ones});
  out.push_back({at + "linear_attn.out_proj.weight", {dim, d.values_width()}});
}

}  // namespace

Result<std::vector<weights::DummyWeight>> qwen35_dummy_weights(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(const json whole, read_json_file(source.directory / "config.json", true));
  if (!is_qwen35(whole)) return bad_model("model_type is neither qwen3_5 nor qwen3_5_text");
  const json& config = text_config(whole);
  const JsonNumbers numbers(config, "config.json");
  Qwen35Config c;
  MSTAR_TRY(read_hf_sizes(c, numbers));
  MSTAR_TRY_ASSIGN(c.decoder.vocab, numbers.integer("vocab_size", 1, 1 << 24));
  MSTAR_TRY_ASSIGN(c.decoder.dim, numbers.integer("hidden_size", 1, kMaxWidth));
  MSTAR_TRY_ASSIGN(const int layers, numbers.integer("num_hidden_layers", 1, kMaxLayers));
  for (int i = 0; i < layers; ++i) {
    MSTAR_TRY_ASSIGN(const bool full, is_full(config, numbers, i));
    c.full_attention.push_back(full);
  }
  MSTAR_TRY(check(c));
  std::vector<weights::DummyWeight> out = {{"model.embed_tokens.weight", {c.decoder.vocab, c.decoder.dim}},
                                           {"model.norm.weight", {c.decoder.dim}, weights::DummyWeight::Fill::zeros}};
  const json& has_tie = whole.contains("tie_word_embeddings") ? whole : config;
  if (has_tie.value("tie_word_embeddings", json(false)) != true)
    out.push_back({"lm_head.weight", {c.decoder.vocab, c.decoder.dim}});
  for (int i = 0; i < layers; ++i)
    add_dummy_layer(out, c, "model.layers." + std::to_string(i) + ".", c.full_attention[static_cast<std::size_t>(i)]);
  return out;
}

std::vector<decl::WeightRule> qwen35_weight_rules(const Qwen35Config& config, const weights::Checkpoint& checkpoint) {
  using namespace decl;
  std::vector<WeightRule> rules;
  if (checkpoint.format() == weights::Format::gguf) {
    // Blocks behind the last one predict further tokens.
    const int further = config.num_layers();
    for (int i = further; checkpoint.find("blk." + std::to_string(i) + ".attn_norm.weight"); ++i)
      rules.push_back(Drop{"blk." + std::to_string(i) + ".*"});
    add_layer_rules(rules, "blk.*.", kGguf);
    rules.push_back(Rename{"token_embd.weight", "decoder.embedding.weight"});
    rules.push_back(Rename{"output_norm.weight", "decoder.norm.weight"});
    rules.push_back(Rename{"output.weight", "decoder.head.weight"});
    return rules;
  }
  add_layer_rules(rules, config.prefix + "layers.*.", kHf);
  rules.push_back(Rename{config.prefix + "embed_tokens.weight", "decoder.embedding.weight"});
  rules.push_back(Rename{config.prefix + "norm.weight", "decoder.norm.weight"});
  rules.push_back(Rename{"lm_head.weight", "decoder.head.weight"});
  rules.push_back(Drop{"mtp.*"});
  rules.push_back(Drop{"model.visual.*"});
  return rules;
}

}  // namespace mstar::models
