#include "mstar/models/checkpoint_numbers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "mstar/models/sampling_defaults.h"

namespace mstar::models {

Result<int> Numbers::integer(const char* key, int least, int most, std::optional<int> fallback) const {
  MSTAR_TRY_ASSIGN(const std::optional<double> found, find(key));
  if (!found && fallback) return *fallback;
  if (!found) return bad_model(where() + " has no '" + key + "'");
  if (!(*found >= least && *found <= most) || *found != std::floor(*found))
    return bad_model(where() + ": '" + key + "' must be a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most));
  return static_cast<int>(*found);
}

Result<double> Numbers::number(const char* key, double fallback) const {
  MSTAR_TRY_ASSIGN(const std::optional<double> found, find(key));
  if (found && !(*found > 0)) return bad_model(where() + ": '" + std::string(key) + "' must be above 0");
  return found.value_or(fallback);
}

Result<std::optional<double>> JsonNumbers::find(const char* key) const {
  const auto it = object_.find(key);
  if (it == object_.end() || it->is_null()) return std::optional<double>();
  if (!it->is_number()) return bad_model(where_ + ": '" + key + "' must be a number");
  return std::optional<double>(it->get<double>());
}

Result<std::string> JsonNumbers::text(const char* key, const std::string& fallback) const {
  const auto it = object_.find(key);
  if (it == object_.end() || it->is_null()) return fallback;
  if (!it->is_string()) return bad_model(where_ + ": '" + key + "' must be a string");
  return it->get<std::string>();
}

Result<std::optional<double>> GgufNumbers::find(const char* key) const {
  const std::string whole = prefix_ + key;
  if (!metadata_.find(whole)) return std::optional<double>();
  MSTAR_TRY_ASSIGN(const double value, metadata_.number(whole));
  return std::optional<double>(value);
}

std::string weights_option(std::string_view component) { return "weights." + std::string(component); }

Result<std::string> kept_as(const Params& options, std::string_view component) {
  const std::string own = weights_option(component);
  const std::string name = options.has(own) ? own : "weights";
  MSTAR_TRY_ASSIGN(std::string kind, options.get_string(name, "stored"));
  constexpr std::string_view kKinds[] = {"stored", "f32", "f16", "bf16", "i8"};
  if (std::find(std::begin(kKinds), std::end(kKinds), kind) == std::end(kKinds))
    return std::move(bad_model("option " + name + ": '" + kind + "' is none of stored, f32, f16, bf16, i8"))
        .with_field("weights");
  return kind;
}

Result<DType> storage_of(const ModelSource& source, const weights::StoredWeight& matrix, std::string_view component) {
  MSTAR_TRY_ASSIGN(const std::string wanted, kept_as(source.options, component));
  const bool on_cuda = source.backend == Backend::cuda;
  if (wanted == "stored") {
    if (on_cuda) return !matrix.type.is_blocks() && matrix.type.dtype() == DType::f32 ? DType::f32 : DType::bf16;
    return matrix.type.is_blocks() ? DType::f32 : matrix.type.dtype();
  }
  if (on_cuda && wanted != "f32" && wanted != "bf16")
    return std::move(bad_model("option weights: on CUDA '" + wanted + "' is none of stored, f32, bf16"))
        .with_field("weights");
  return *dtype_from_name(wanted);
}

Result<int> context_of(const ModelSource& source, int model_context_tokens) {
  MSTAR_TRY_ASSIGN(const std::int64_t context,
                   source.options.get_int("context_tokens", std::min(model_context_tokens, 8192)));
  if (context < 16 || context > model_context_tokens)
    return std::move(bad_model("option context_tokens must be from 16 to the model's " +
                               std::to_string(model_context_tokens)))
        .with_field("context_tokens");
  return static_cast<int>(context);
}

Result<std::int64_t> kv_tokens_of(const ModelSource& source) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  MSTAR_TRY_ASSIGN(const std::int64_t tokens, source.options.get_int("kv_tokens", 0));
  if (tokens < 0 || tokens > kMost)
    return std::move(bad_model("option kv_tokens must be from 0 to " + std::to_string(kMost))).with_field("kv_tokens");
  return tokens;
}

Result<Shape> embedding_shape(const weights::Checkpoint& checkpoint, const std::string& name) {
  const weights::StoredWeight* const weight = checkpoint.find(name);
  if (!weight) return bad_model("the checkpoint has no '" + name + "'");
  if (weight->shape.rank() != 2)
    return bad_model("'" + name + "' has shape " + to_string(weight->shape) + ", not rank 2");
  return weight->shape;
}

Result<double> gguf_rope_stretch(const weights::Metadata& metadata, const std::string& architecture) {
  const std::string key = architecture + ".rope.scaling.";
  if (!metadata.find(key + "type")) return 1.0;
  MSTAR_TRY_ASSIGN(const std::string_view type, metadata.string(key + "type"));
  if (type == "none") return 1.0;
  if (type == "linear") return GgufNumbers(metadata, key).number("factor", 1.0);
  return bad_model("metadata '" + key + "type': '" + std::string(type) + "' is not supported");
}

Result<CheckpointText> hf_text_of(const ModelSource& source, const nlohmann::json& config, int vocab) {
  MSTAR_TRY_ASSIGN(const std::string format, source.options.get_string("load_format", "auto"));
  std::error_code ignored;
  if (format == "dummy" && !std::filesystem::exists(source.directory / "tokenizer.json", ignored)) {
    MSTAR_TRY_ASSIGN(CheckpointText out, dummy_text(vocab));
    MSTAR_TRY_ASSIGN(const nlohmann::json generation,
                     read_json_file(source.directory / "generation_config.json", false));
    out.sampling_defaults = hf_sampling_defaults(generation);
    return out;
  }
  return read_hf_text(source.directory, config);
}

}  // namespace mstar::models
