// The text side of a language model's checkpoint: tokenizer, chat template, tokens that end an answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/base/result.h"
#include "mstar/text/chat_template.h"
#include "mstar/text/reply/reply_format.h"
#include "mstar/text/tokenizer.h"
#include "mstar/weights/metadata.h"

namespace mstar::models {

struct CheckpointText {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the checkpoint has none
  ReplyFormat reply;                                  // as that template has it
  std::string bos_token, eos_token;                   // as the template sees them; may be empty
  std::vector<std::int32_t> stop_ids;                 // each once
  Params sampling_defaults;                           // of fields that a request leaves out
};

// tokenizer.json or tokenizer.model, tokenizer_config.json, generation_config.json and chat_template.jinja beside
// `config`, which is the directory's config.json. bad_model, invalid_request (no tokenizer).
Result<CheckpointText> read_hf_text(const std::filesystem::path& directory, const nlohmann::json& config);

// tokenizer.* of a GGUF file. Stop ids: eos, eot and eom, and control tokens that are spelt as the ends of a turn are
// in the families that name only one of theirs. bad_model.
Result<CheckpointText> read_gguf_text(const weights::Metadata& metadata);

// For models without a tokenizer: bytes, and ids beyond them spelt " t300"; a chat template of ChatML's form; no stop
// ids. `vocab`: 259 at least.
Result<CheckpointText> dummy_text(int vocab);

// An object. bad_model when the file is missing though `required`, or no object.
Result<nlohmann::json> read_json_file(const std::filesystem::path& path, bool required);

}  // namespace mstar::models
