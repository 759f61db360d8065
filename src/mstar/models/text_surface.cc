#include "mstar/models/text_surface.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "mstar/models/text_emitter.h"

namespace mstar::models {
namespace {

using namespace decl;

constexpr std::size_t kMaxStopStrings = 16, kMaxStopBytes = 4096;
constexpr std::int64_t kMaxLogprobs = 20;
constexpr std::size_t kMaxSaltBytes = 256;
constexpr double kLeastTemperature = 1e-6;  // below it a draw is the likeliest token, and numbers overflow

Error bad_field(const char* field, const std::string& message) {
  return invalid_request(std::string("'") + field + "' " + message).with_field(field);
}

Result<double> number_in(const Params& fields, const char* name, double fallback, double least, double most) {
  MSTAR_TRY_ASSIGN(const double value, fields.get_number(name, fallback));
  if (!(value >= least && value <= most)) {
    char text[96];
    std::snprintf(text, sizeof text, "must be between %g and %g", least, most);
    return bad_field(name, text);
  }
  return value;
}

Result<std::int64_t> integer_in(const Params& fields, const char* name, std::int64_t fallback, std::int64_t least,
                                std::int64_t most) {
  MSTAR_TRY_ASSIGN(const std::int64_t value, fields.get_int(name, fallback));
  if (value < least || value > most)
    return bad_field(name, "must be between " + std::to_string(least) + " and " + std::to_string(most));
  return value;
}

const std::vector<double>* numbers(const Params& fields, const char* name) {
  const auto it = fields.values().find(name);
  return it == fields.values().end() ? nullptr : std::get_if<std::vector<double>>(&it->second);
}

// Token ids of a field that holds a list of numbers; nothing when it is not there. Clients know it as `client_name`.
Result<std::vector<std::int32_t>> ids_of(const Params& fields, const char* name, const char* client_name, int vocab) {
  std::vector<std::int32_t> out;
  if (!fields.has(name)) return out;
  const std::vector<double>* const list = numbers(fields, name);
  if (!list) return bad_field(client_name, "must be a list of token ids");
  for (const double id : *list) {
    if (!(id >= 0 && id < vocab) || id != std::floor(id))
      return bad_field(client_name, "holds what is no token id of this model (0 to " + std::to_string(vocab - 1) + ")");
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

Status read_stops(const Params& fields, SamplingParams& out, int vocab) {
  MSTAR_TRY_ASSIGN(out.stop_strings, fields.get_strings("stop"));
  if (out.stop_strings.size() > kMaxStopStrings)
    return bad_field("stop", "may hold " + std::to_string(kMaxStopStrings) + " strings at most");
  for (const std::string& each : out.stop_strings) {
    if (each.empty()) return bad_field("stop", "holds an empty string");
    if (each.size() > kMaxStopBytes)
      return bad_field("stop", "holds a string of more than " + std::to_string(kMaxStopBytes) + " bytes");
  }
  MSTAR_TRY_ASSIGN(out.stop_ids, ids_of(fields, "stop_token_ids", "stop_token_ids", vocab));
  return ok_status();
}

Status read_logit_bias(const Params& fields, SamplingParams& out, int vocab) {
  MSTAR_TRY_ASSIGN(const std::vector<std::int32_t> ids, ids_of(fields, "logit_bias_ids", "logit_bias", vocab));
  const std::vector<double>* const values = numbers(fields, "logit_bias_values");
  if (ids.size() != (values ? values->size() : 0)) return bad_field("logit_bias", "must give each token id a number");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!((*values)[i] >= -100 && (*values)[i] <= 100))
      return bad_field("logit_bias", "must hold numbers between -100 and 100");
    out.logit_bias.emplace_back(ids[i], static_cast<float>((*values)[i]));
  }
  return ok_status();
}

Status read_logprobs(const Params& fields, SamplingParams& out) {
  const auto it = fields.values().find("logprobs");
  if (it != fields.values().end() && !std::holds_alternative<bool>(it->second)) {  // completions: how many
    MSTAR_TRY_ASSIGN(const std::int64_t num, integer_in(fields, "logprobs", 0, 0, kMaxLogprobs));
    out.num_logprobs = static_cast<int>(num);
    return ok_status();
  }
  MSTAR_TRY_ASSIGN(const bool wanted, fields.get_bool("logprobs", false));
  MSTAR_TRY_ASSIGN(const std::int64_t top, integer_in(fields, "top_logprobs", 0, 0, kMaxLogprobs));
  if (fields.has("top_logprobs") && !wanted) return bad_field("top_logprobs", "needs 'logprobs' to be true");
  if (wanted) out.num_logprobs = static_cast<int>(top);
  return ok_status();
}

// What OpenAI's messages and JSON schemas are made of: templates look for it, compare it, and build special tokens of
// roles ("<|" + role + "|>"). In the order of their bytes.
constexpr std::string_view kApiWords[] = {"additionalProperties",
                                          "allOf",
                                          "anyOf",
                                          "arguments",
                                          "array",
                                          "assistant",
                                          "audio",
                                          "boolean",
                                          "content",
                                          "default",
                                          "description",
                                          "enum",
                                          "format",
                                          "function",
                                          "id",
                                          "image",
                                          "image_url",
                                          "input_audio",
                                          "integer",
                                          "items",
                                          "maximum",
                                          "minimum",
                                          "name",
                                          "null",
                                          "number",
                                          "object",
                                          "oneOf",
                                          "parameters",
                                          "pattern",
                                          "properties",
                                          "reasoning_content",
                                          "required",
                                          "role",
                                          "string",
                                          "system",
                                          "text",
                                          "tool",
                                          "tool_call_id",
                                          "tool_calls",
                                          "type",
                                          "user",
                                          "video"};
static_assert(std::is_sorted(std::begin(kApiWords), std::end(kApiWords)));

std::string guarded_text(const Tokenizer& tokenizer, const std::string& text) {
  if (std::binary_search(std::begin(kApiWords), std::end(kApiWords), std::string_view(text))) return text;
  return tokenizer.guard(text);
}

// Every string of a value, keys too: a template may print either.
nlohmann::ordered_json guarded(const Tokenizer& tokenizer, const nlohmann::ordered_json& value) {
  if (value.is_string()) return guarded_text(tokenizer, value.get_ref<const std::string&>());
  if (value.is_array()) {
    auto out = nlohmann::ordered_json::array();
    for (const auto& each : value) out.push_back(guarded(tokenizer, each));
    return out;
  }
  if (value.is_object()) {
    auto out = nlohmann::ordered_json::object();
    for (const auto& [key, each] : value.items()) out[guarded_text(tokenizer, key)] = guarded(tokenizer, each);
    return out;
  }
  return value;
}

Result<jinja::Value> user_json(const Tokenizer& tokenizer, const std::string& json, const char* field) {
  // Limits the depth of what follows.
  if (auto read = jinja::Value::parse_json(json); !read) return std::move(read.error()).with_field(field);
  auto parsed = nlohmann::ordered_json::parse(json, nullptr, false);
  if (parsed.is_discarded()) return bad_field(field, "is malformed JSON");
  return jinja::Value::parse_json(guarded(tokenizer, parsed).dump());
}

// Refuses what can't fit before it is encoded: no token stands for more than max_token_bytes.
Status check_length(const TextModel& model, std::string_view text, const char* field) {
  if (model.max_token_bytes == 0) return ok_status();
  const std::size_t least_tokens = (text.size() + model.max_token_bytes - 1) / model.max_token_bytes;
  if (least_tokens <= static_cast<std::size_t>(model.context_tokens)) return ok_status();
  return std::move(bad_field(field, "has " + std::to_string(text.size()) + " bytes, at least " +
                                        std::to_string(least_tokens) + " tokens; prompt and answer must fit into " +
                                        std::to_string(model.context_tokens)))
      .with_reason(kContextExceeded);
}

Result<std::vector<std::int32_t>> prompt_of(const TextModel& model, const ApiRequest& request) {
  if (request.route == Route::chat_completions) return encode_chat(model, request);
  if (request.fields.has("prompt_ids")) return ids_of(request.fields, "prompt_ids", "prompt", model.vocab);
  MSTAR_TRY(check_length(model, request.text, request.route == Route::completions ? "prompt" : "text"));
  MSTAR_TRY_ASSIGN(const bool parse_special, request.fields.get_bool("parse_special", false));
  MSTAR_TRY_ASSIGN(const bool add_special, request.fields.get_bool("add_special_tokens", true));
  return model.text.tokenizer->encode(request.text, {.add_special = add_special, .parse_special = parse_special});
}

// Whether the prompt's end has opened the model's thoughts, as some templates do.
bool opens_thoughts(const TextModel& model, std::span<const std::int32_t> ids) {
  constexpr std::size_t kTokens = 16;
  std::string end = model.text.tokenizer->decode(ids.last(std::min(kTokens, ids.size())), false);
  end.erase(end.find_last_not_of(" \t\r\n") + 1);
  return end.ends_with(model.text.reply.think_open);
}

Status read_reply_fields(const TextModel& model, const ApiRequest& request, std::span<const std::int32_t> ids,
                         Params& fields) {
  const bool is_chat = request.route == Route::chat_completions;
  MSTAR_TRY_ASSIGN(const bool apart, fields.get_bool("separate_reasoning", true));
  const bool thinks = is_chat && apart && model.text.reply.thinks();
  const bool calls = is_chat && model.text.reply.calls != CallStyle::none;
  // Whatever a client has put there.
  if (thinks || fields.has(kThinksField)) fields.set(kThinksField, thinks);
  if (thinks) fields.set(kBeginsThinkingField, opens_thoughts(model, ids));
  if (calls || fields.has(kToolsField)) fields.set(kToolsField, calls ? request.tools_json : std::string());
  return ok_status();
}

Result<Intake> intake(const TextModel& model, const ApiRequest& request) {
  const char* const field = request.route == Route::chat_completions ? "messages"
                            : request.route == Route::completions    ? "prompt"
                                                                     : "text";
  Intake out;
  if (!request.media.empty()) return bad_field(field, "holds media; this model reads text only");
  Params fields = request.fields;
  for (const auto& [name, value] : model.text.sampling_defaults.values())
    if (!fields.has(name)) fields.set(name, value);
  MSTAR_TRY_ASSIGN(out.params.sampling, read_sampling(fields, model.vocab));
  MSTAR_TRY_ASSIGN(const std::vector<std::int32_t> ids, prompt_of(model, request));
  if (ids.empty()) return bad_field(field, "is empty; say something");
  // A tokenizer may know more tokens than the model has rows for.
  if (const auto worst = *std::max_element(ids.begin(), ids.end()); worst >= model.vocab)
    return bad_field(field, "holds token " + std::to_string(worst) + ", which this model of " +
                                std::to_string(model.vocab) + " tokens lacks");
  const auto num_tokens = static_cast<std::int64_t>(ids.size());
  auto& max_tokens = out.params.sampling.max_tokens;
  const std::int64_t room = model.context_tokens - num_tokens;
  if (room < 1 || max_tokens > room)
    return std::move(bad_field(field, "has " + std::to_string(num_tokens) + " tokens" +
                                          (max_tokens > 0 ? " and max_tokens is " + std::to_string(max_tokens)
                                                          : std::string()) +
                                          "; prompt and answer must fit into " + std::to_string(model.context_tokens)))
        .with_reason(kContextExceeded);
  constexpr std::int64_t kCompletionTokens = 16;  // OpenAI's default there
  if (max_tokens < 0) max_tokens = request.route == Route::completions ? std::min(room, kCompletionTokens) : room;
  MSTAR_TRY_ASSIGN(out.params.cache_salt, request.fields.get_string("cache_salt", ""));
  if (out.params.cache_salt.size() > kMaxSaltBytes) return bad_field("cache_salt", "is longer than 256 bytes");
  MSTAR_TRY(read_reply_fields(model, request, ids, fields));
  out.params.fields = std::move(fields);
  out.params.output_modalities = {Modality::text};
  out.inputs[model.prompt] = {HostValue::i32(ids)};
  out.num_prompt_tokens = num_tokens;
  return out;
}

TextCodec text_codec(const std::shared_ptr<const TextModel>& model) {
  TextCodec out;
  out.tokenize = [model](const ApiRequest& request) -> Result<std::vector<std::int32_t>> {
    if (request.route == Route::chat_completions && !model->text.chat_template)
      return bad_field("messages", "are for models with a chat template");
    return prompt_of(*model, request);
  };
  out.detokenize = [model](std::span<const std::int32_t> ids) -> Result<std::string> {
    for (const std::int32_t id : ids)
      if (id < 0 || id >= model->vocab) return bad_field("tokens", "holds what is no token id of this model");
    return model->text.tokenizer->decode(ids, false);
  };
  out.context_tokens = model->context_tokens;
  return out;
}

}  // namespace

Result<SamplingParams> read_sampling(const Params& fields, int vocab) {
  SamplingParams out;
  MSTAR_TRY_ASSIGN(out.temperature, number_in(fields, "temperature", 1.0, 0, 2));
  if (out.temperature < kLeastTemperature) out.temperature = 0;
  MSTAR_TRY_ASSIGN(const std::int64_t top_k, integer_in(fields, "top_k", 0, -1, 1 << 30));
  out.top_k = static_cast<int>(std::clamp<std::int64_t>(top_k, 0, vocab));
  MSTAR_TRY_ASSIGN(out.top_p, number_in(fields, "top_p", 1.0, 0, 1));
  if (out.top_p == 0) out.top_k = 1;
  MSTAR_TRY_ASSIGN(out.min_p, number_in(fields, "min_p", 0.0, 0, 1));
  MSTAR_TRY_ASSIGN(out.repetition_penalty, number_in(fields, "repetition_penalty", 1.0, 0.01, 100));
  MSTAR_TRY_ASSIGN(out.presence_penalty, number_in(fields, "presence_penalty", 0.0, -2, 2));
  MSTAR_TRY_ASSIGN(out.frequency_penalty, number_in(fields, "frequency_penalty", 0.0, -2, 2));
  const char* const limit = fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  MSTAR_TRY_ASSIGN(out.max_tokens, integer_in(fields, limit, -1, -1, 1 << 30));
  if (fields.has(limit) && out.max_tokens < 1) return bad_field(limit, "must be at least 1");
  MSTAR_TRY_ASSIGN(out.min_tokens, integer_in(fields, "min_tokens", 0, 0, 1 << 30));
  if (out.max_tokens >= 0 && out.min_tokens > out.max_tokens)
    return bad_field("min_tokens", "is more than max_tokens allows");
  MSTAR_TRY_ASSIGN(out.ignore_eos, fields.get_bool("ignore_eos", false));
  if (fields.has("seed")) {
    MSTAR_TRY_ASSIGN(const std::int64_t seed, fields.get_int("seed", 0));
    out.seed = static_cast<std::uint64_t>(seed);
  } else if (out.temperature > 0) {
    std::random_device source;
    out.seed = (static_cast<std::uint64_t>(source()) << 32) | source();
  }
  MSTAR_TRY(read_stops(fields, out, vocab));
  MSTAR_TRY(read_logit_bias(fields, out, vocab));
  MSTAR_TRY(read_logprobs(fields, out));
  return out;
}

Result<std::vector<std::int32_t>> encode_chat(const TextModel& model, const ApiRequest& request) {
  TemplateVariables variables;
  MSTAR_TRY_ASSIGN(jinja::Value messages, user_json(*model.text.tokenizer, request.messages_json, "messages"));
  variables.set("messages", std::move(messages));
  if (!request.tools_json.empty()) {
    MSTAR_TRY_ASSIGN(jinja::Value tools, user_json(*model.text.tokenizer, request.tools_json, "tools"));
    variables.set("tools", std::move(tools));
  }
  MSTAR_TRY_ASSIGN(const bool adds_prompt, request.fields.get_bool("add_generation_prompt", true));
  variables.set("add_generation_prompt", jinja::Value::boolean(adds_prompt));
  variables.set("bos_token", jinja::Value::string(model.text.bos_token));
  variables.set("eos_token", jinja::Value::string(model.text.eos_token));
  if (request.fields.has("enable_thinking")) {
    MSTAR_TRY_ASSIGN(const bool thinks, request.fields.get_bool("enable_thinking", true));
    variables.set("enable_thinking", jinja::Value::boolean(thinks));
  }
  const std::time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  auto rendered = model.text.chat_template->render(variables, now);
  // Whatever the template fails at, other messages would not fail there.
  if (!rendered) return bad_field("messages", "do not fit the model's chat template: " + rendered.error().message);
  MSTAR_TRY(check_length(model, *rendered, "messages"));
  return model.text.tokenizer->encode(*rendered, {.parse_special = true, .guarded = true});
}

void add_text_surfaces(Decl& d, TextModel given) {
  given.max_token_bytes = 3;  // U+FFFD for a byte
  for (std::int32_t id = 0; id < given.text.tokenizer->vocab_size(); ++id)
    given.max_token_bytes = std::max({given.max_token_bytes, given.text.tokenizer->token_bytes(id).size(),
                                      given.text.tokenizer->id_to_token(id).size()});
  const auto model = std::make_shared<const TextModel>(std::move(given));
  d.text_codec(text_codec(model));
  std::vector<Route> routes = {Route::generate, Route::completions};
  if (model->text.chat_template) routes.push_back(Route::chat_completions);
  for (const Route route : routes)
    d.surface({.route = route,
               .intake = [model](const ApiRequest& request) { return intake(*model, request); },
               .emitter = [model](const RequestParams& params) { return make_text_emitter(model, params); },
               .defaults = model->text.sampling_defaults});
}

}  // namespace mstar::models
