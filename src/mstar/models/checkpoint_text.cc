#include "mstar/models/checkpoint_text.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "mstar/models/sampling_defaults.h"

namespace mstar::models {
namespace {

using nlohmann::json;

void add_id(std::vector<std::int32_t>& to, std::int64_t id) {
  const auto narrow = static_cast<std::int32_t>(id);
  if (id == narrow && id >= 0 && std::find(to.begin(), to.end(), narrow) == to.end()) to.push_back(narrow);
}

// A token's text: a string, or an object with "content".
std::string token_text(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) return (*it)["content"];
  return "";
}

// One id or a list of them.
void add_ids(std::vector<std::int32_t>& to, const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return;
  if (it->is_number_integer()) return add_id(to, it->get<std::int64_t>());
  if (!it->is_array()) return;
  for (const json& each : *it)
    if (each.is_number_integer()) add_id(to, each.get<std::int64_t>());
}

// A template, or the one called "default" of a list of {"name", "template"}.
std::string template_text(const json& tokenizer_config) {
  const auto it = tokenizer_config.find("chat_template");
  if (it == tokenizer_config.end() || !it->is_array()) return token_text(tokenizer_config, "chat_template");
  for (const json& each : *it)
    if (each.is_object() && token_text(each, "name") == "default") return token_text(each, "template");
  return "";
}

Status set_template(CheckpointText& out, const std::string& source) {
  if (source.empty()) return ok_status();
  MSTAR_TRY_ASSIGN(ChatTemplate compiled, ChatTemplate::compile(source));
  out.chat_template = std::make_shared<const ChatTemplate>(std::move(compiled));
  out.reply = reply_format_of(source);
  return ok_status();
}

// ---- GGUF

// Missing keys are nothing; those of another kind are errors.
template <class T>
Result<std::optional<T>> optional_of(const weights::Metadata& metadata, std::string_view key) {
  std::optional<T> out;
  if (!metadata.find(key)) return out;
  if constexpr (std::is_same_v<T, bool>) {
    MSTAR_TRY_ASSIGN(out, metadata.boolean(key));
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    MSTAR_TRY_ASSIGN(const std::int64_t id, metadata.integer(key));
    if (id < 0 || id > INT32_MAX) return bad_model("metadata '" + std::string(key) + "' is no token id");
    out = static_cast<std::int32_t>(id);
  } else {
    MSTAR_TRY_ASSIGN(const std::string_view text, metadata.string(key));
    out = std::string(text);
  }
  return out;
}

Result<std::vector<std::string>> strings_of(const weights::Metadata& metadata, std::string_view key, bool required) {
  if (!required && !metadata.find(key)) return std::vector<std::string>();
  MSTAR_TRY_ASSIGN(const weights::MetadataArray* const array, metadata.array(key));
  if (array->element != weights::MetadataType::string)
    return bad_model("metadata '" + std::string(key) + "' must be a list of strings");
  return std::vector<std::string>(array->strings.begin(), array->strings.end());
}

Result<std::vector<double>> numbers_of(const weights::Metadata& metadata, std::string_view key) {
  std::vector<double> out;
  if (!metadata.find(key)) return out;
  MSTAR_TRY_ASSIGN(const weights::MetadataArray* const array, metadata.array(key));
  for (std::uint64_t i = 0; i < array->count; ++i) {
    const auto number = array->number(i);
    if (!number) return bad_model("metadata '" + std::string(key) + "' must be a list of numbers");
    out.push_back(*number);
  }
  return out;
}

Result<GgufTokenizer> read_gguf_tokenizer(const weights::Metadata& metadata) {
  GgufTokenizer out;
  MSTAR_TRY_ASSIGN(const std::string_view model, metadata.string("tokenizer.ggml.model"));
  out.model = model;
  MSTAR_TRY_ASSIGN(auto pre, optional_of<std::string>(metadata, "tokenizer.ggml.pre"));
  out.pre = pre.value_or("");
  MSTAR_TRY_ASSIGN(out.tokens, strings_of(metadata, "tokenizer.ggml.tokens", true));
  MSTAR_TRY_ASSIGN(out.merges, strings_of(metadata, "tokenizer.ggml.merges", false));
  MSTAR_TRY_ASSIGN(const std::vector<double> scores, numbers_of(metadata, "tokenizer.ggml.scores"));
  for (const double each : scores) out.scores.push_back(static_cast<float>(each));
  MSTAR_TRY_ASSIGN(const std::vector<double> types, numbers_of(metadata, "tokenizer.ggml.token_type"));
  for (const double each : types)
    out.token_types.push_back(each >= 0 && each < 16 ? static_cast<std::int32_t>(each) : 1);
  MSTAR_TRY_ASSIGN(out.bos_id, optional_of<std::int32_t>(metadata, "tokenizer.ggml.bos_token_id"));
  MSTAR_TRY_ASSIGN(out.eos_id, optional_of<std::int32_t>(metadata, "tokenizer.ggml.eos_token_id"));
  MSTAR_TRY_ASSIGN(out.unknown_id, optional_of<std::int32_t>(metadata, "tokenizer.ggml.unknown_token_id"));
  MSTAR_TRY_ASSIGN(out.add_bos, optional_of<bool>(metadata, "tokenizer.ggml.add_bos_token"));
  MSTAR_TRY_ASSIGN(out.add_eos, optional_of<bool>(metadata, "tokenizer.ggml.add_eos_token"));
  MSTAR_TRY_ASSIGN(out.add_space_prefix, optional_of<bool>(metadata, "tokenizer.ggml.add_space_prefix"));
  MSTAR_TRY_ASSIGN(out.remove_extra_spaces, optional_of<bool>(metadata, "tokenizer.ggml.remove_extra_whitespaces"));
  if (metadata.find("tokenizer.ggml.precompiled_charsmap")) {
    MSTAR_TRY_ASSIGN(const weights::MetadataArray* const map, metadata.array("tokenizer.ggml.precompiled_charsmap"));
    const auto* const bytes = reinterpret_cast<const char*>(map->numbers.data());
    out.char_map.assign(bytes, map->numbers.size());
  }
  return out;
}

constexpr std::string_view kTurnEnds[] = {"<|im_end|>", "<|eot_id|>", "<|end|>",       "<end_of_turn>",
                                          "<|eom_id|>", "<EOT>",      "<|endoftext|>", "<|end_of_text|>",
                                          "</s>",       "<turn|>",    "<|return|>"};

}  // namespace

Result<json> read_json_file(const std::filesystem::path& path, bool required) {
  std::ifstream file(path);
  if (!file) {
    if (required) return bad_model("'" + path.string() + "' is missing");
    return json::object();
  }
  json parsed = json::parse(file, nullptr, false);
  if (!parsed.is_object()) return bad_model("'" + path.string() + "' is no JSON object");
  return parsed;
}

Result<CheckpointText> read_hf_text(const std::filesystem::path& directory, const json& config) {
  CheckpointText out;
  MSTAR_TRY_ASSIGN(const json tokenizer_config, read_json_file(directory / "tokenizer_config.json", false));
  MSTAR_TRY_ASSIGN(const json generation, read_json_file(directory / "generation_config.json", false));
  std::filesystem::path file = directory / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored) && std::filesystem::exists(directory / "tokenizer.model", ignored))
    file = directory / "tokenizer.model";
  MSTAR_TRY_ASSIGN(Tokenizer tokenizer, Tokenizer::load(file.string()));
  out.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  add_ids(out.stop_ids, generation, "eos_token_id");
  add_ids(out.stop_ids, config, "eos_token_id");
  out.sampling_defaults = hf_sampling_defaults(generation);
  out.bos_token = token_text(tokenizer_config, "bos_token");
  out.eos_token = token_text(tokenizer_config, "eos_token");
  if (const auto id = out.tokenizer->token_to_id(out.eos_token)) add_id(out.stop_ids, *id);
  std::string chat = template_text(tokenizer_config);
  if (std::ifstream jinja(directory / "chat_template.jinja"); jinja)
    chat.assign(std::istreambuf_iterator<char>(jinja), {});
  MSTAR_TRY(set_template(out, chat));
  return out;
}

Result<CheckpointText> dummy_text(int vocab) {
  constexpr int kBytes = 256;
  if (vocab < kBytes + 3) return bad_model("a dummy tokenizer wants a vocabulary of 259 or more");
  GgufTokenizer made{.model = "llama"};
  made.unknown_id = 0;
  made.add_bos = false;
  made.add_space_prefix = false;
  made.tokens = {"<unk>", "<|im_start|>"};
  made.token_types = {2, 3};
  for (int byte = 0; byte < kBytes; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    made.tokens.emplace_back(text);
    made.token_types.push_back(6);
  }
  made.tokens.emplace_back("\u2581");  // a space, which bytes can't spell
  made.token_types.push_back(1);
  while (static_cast<int>(made.tokens.size()) < vocab) {
    made.tokens.push_back("\u2581t" + std::to_string(made.tokens.size()));
    made.token_types.push_back(1);
  }
  made.scores.assign(made.tokens.size(), -1.0f);
  CheckpointText out;
  MSTAR_TRY_ASSIGN(Tokenizer tokenizer, Tokenizer::from_gguf(made));
  out.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  MSTAR_TRY(set_template(out,
                         "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}"
                         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"));
  return out;
}

Result<CheckpointText> read_gguf_text(const weights::Metadata& metadata) {
  CheckpointText out;
  MSTAR_TRY_ASSIGN(const GgufTokenizer read, read_gguf_tokenizer(metadata));
  MSTAR_TRY_ASSIGN(Tokenizer tokenizer, Tokenizer::from_gguf(read));
  const auto spelling = [&](std::optional<std::int32_t> id) {
    return id && static_cast<std::size_t>(*id) < read.tokens.size() ? read.tokens[static_cast<std::size_t>(*id)] : "";
  };
  out.bos_token = spelling(read.bos_id);
  out.eos_token = spelling(read.eos_id);
  if (read.eos_id) add_id(out.stop_ids, *read.eos_id);
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    MSTAR_TRY_ASSIGN(const auto id, optional_of<std::int32_t>(metadata, key));
    if (id) add_id(out.stop_ids, *id);
  }
  out.sampling_defaults = gguf_sampling_defaults(metadata);
  constexpr std::int32_t kControl = 3;
  for (std::size_t id = 0; id < read.tokens.size() && id < read.token_types.size(); ++id)
    if (read.token_types[id] == kControl &&
        std::find(std::begin(kTurnEnds), std::end(kTurnEnds), read.tokens[id]) != std::end(kTurnEnds))
      add_id(out.stop_ids, static_cast<std::int64_t>(id));
  out.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  MSTAR_TRY_ASSIGN(const auto chat, optional_of<std::string>(metadata, "tokenizer.chat_template"));
  MSTAR_TRY(set_template(out, chat.value_or("")));
  return out;
}

}  // namespace mstar::models
