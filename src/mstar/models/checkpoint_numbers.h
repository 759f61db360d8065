// The sizes in a checkpoint's configuration: config.json's numbers or a GGUF file's metadata, checked.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "mstar/models/checkpoint_text.h"
#include "mstar/models/model.h"
#include "mstar/weights/metadata.h"

namespace mstar::models {

inline constexpr int kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxContextTokens = 1 << 24;

// Numbers by name; a missing one (or null) gives the fallback, or an error without one. Errors: bad_model, which says
// where the number is and what it must be.
class Numbers {
 public:
  virtual ~Numbers() = default;
  virtual Result<std::optional<double>> find(const char* key) const = 0;
  virtual std::string where() const = 0;

  // A whole number in [least, most].
  Result<int> integer(const char* key, int least, int most, std::optional<int> fallback = {}) const;
  // Above 0.
  Result<double> number(const char* key, double fallback) const;
};

// Borrows the object.
class JsonNumbers final : public Numbers {
 public:
  JsonNumbers(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}
  Result<std::optional<double>> find(const char* key) const override;
  std::string where() const override { return where_; }
  Result<std::string> text(const char* key, const std::string& fallback = "") const;

 private:
  const nlohmann::json& object_;
  std::string where_;
};

// Keys after the prefix ("llama."). Borrows the metadata.
class GgufNumbers final : public Numbers {
 public:
  GgufNumbers(const weights::Metadata& metadata, std::string prefix)
      : metadata_(metadata), prefix_(std::move(prefix)) {}
  Result<std::optional<double>> find(const char* key) const override;
  std::string where() const override { return "the GGUF file's metadata (" + prefix_ + "*)"; }

 private:
  const weights::Metadata& metadata_;
  std::string prefix_;
};

// The option that says how a component's matrices are kept: "weights.decoder". Where it is not there, `weights` does.
std::string weights_option(std::string_view component);
// stored, f32, f16, bf16, i8; bad_model with the option as field for anything else.
Result<std::string> kept_as(const Params& options, std::string_view component);

// What a component's matrices become that are not kept in blocks: as kept_as() says, where stored is `matrix`'s own
// type, f32 for one in blocks; on CUDA f32 or else bf16. bad_model with field "weights".
Result<DType> storage_of(const ModelSource& source, const weights::StoredWeight& matrix,
                         std::string_view component = "decoder");

// Option `context_tokens`: 16 to the model's own; without it the model's own, 8192 at most. bad_model with the field.
Result<int> context_of(const ModelSource& source, int model_context_tokens);

// Option `kv_tokens` (see TextDecoderConfig). bad_model with the field.
Result<std::int64_t> kv_tokens_of(const ModelSource& source);

// [vocabulary, dim] of the named weight. bad_model.
Result<Shape> embedding_shape(const weights::Checkpoint& checkpoint, const std::string& name);

// What a GGUF file's rope.scaling.* divides all rotary frequencies by: 1 without one, the factor of a linear one.
// bad_model for another kind.
Result<double> gguf_rope_stretch(const weights::Metadata& metadata, const std::string& architecture);

// read_hf_text of the directory; with load_format dummy, where it has no tokenizer, dummy_text.
Result<CheckpointText> hf_text_of(const ModelSource& source, const nlohmann::json& config, int vocab);

}  // namespace mstar::models
