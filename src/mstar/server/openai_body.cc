#include "mstar/server/openai_body.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "mstar/server/json_text.h"

namespace mstar::server {
namespace {

constexpr std::size_t kMaxNameBytes = 256;

constexpr std::size_t kMaxStopStrings = 16, kMaxStopBytes = 4096, kMaxStopIds = 1024;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;
constexpr std::int64_t kMinInt = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();

struct NumberField {
  const char* name;
  double least, most;
};
constexpr NumberField kNumbers[] = {{"temperature", 0, 2},
                                    {"top_p", 0, 1},
                                    {"min_p", 0, 1},
                                    {"repetition_penalty", 0.01, 100},
                                    {"presence_penalty", -2, 2},
                                    {"frequency_penalty", -2, 2}};
struct IntegerField {
  const char* name;
  std::int64_t least, most;
};
constexpr IntegerField kIntegers[] = {{"top_k", -1, kMaxCount},
                                      {"seed", kMinInt, kMaxInt},
                                      {"max_tokens", 1, kMaxCount},
                                      {"max_completion_tokens", 1, kMaxCount},
                                      {"min_tokens", 0, kMaxCount}};
// Each would change the answer.
constexpr const char* kUnsupported[] = {"functions",
                                        "function_call",
                                        "audio",
                                        "suffix",
                                        "prompt_logprobs",
                                        "use_beam_search",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "guided_grammar",
                                        "structured_outputs",
                                        "length_penalty",
                                        "continue_final_message",
                                        "chat_template"};

std::optional<std::int64_t> whole_number(const OrderedJson& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(kMaxInt)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (number != std::nearbyint(number) || std::abs(number) > 0x1p53) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

// The last member of the body that the parser has begun before it found a fault; empty when it has met none.
std::string field_before_fault(std::string_view text) {
  std::string field;
  const OrderedJson::parser_callback_t note = [&](int depth, OrderedJson::parse_event_t event, OrderedJson& parsed) {
    if (event == OrderedJson::parse_event_t::key && depth == 1) field = parsed.get<std::string>();
    return true;
  };
  const bool is_sound = !OrderedJson::parse(text.begin(), text.end(), note, false).is_discarded();
  return is_sound ? std::string() : field;
}

Status read_stop(const OrderedJson& body, Params& fields) {
  const OrderedJson* const stop = find_member(body, "stop");
  if (!stop) return ok_status();
  std::vector<std::string> strings;
  const auto add = [&](const OrderedJson& value) -> Status {
    if (!value.is_string()) return bad_field("stop", "must be a string or a list of strings");
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty()) return bad_field("stop", "holds an empty string");
    if (text.size() > kMaxStopBytes)
      return bad_field("stop", "holds a string of more than " + std::to_string(kMaxStopBytes) + " bytes");
    strings.push_back(text);
    return ok_status();
  };
  if (!stop->is_array()) {
    MSTAR_TRY(add(*stop));
  } else {
    if (stop->size() > kMaxStopStrings)
      return bad_field("stop", "may hold " + std::to_string(kMaxStopStrings) + " strings at most");
    for (const OrderedJson& each : *stop) MSTAR_TRY(add(each));
  }
  if (!strings.empty()) fields.set("stop", std::move(strings));
  return ok_status();
}

Status read_stop_ids(const OrderedJson& body, Params& fields) {
  const OrderedJson* const list = find_member(body, "stop_token_ids");
  if (!list) return ok_status();
  const auto wrong = [] { return bad_field("stop_token_ids", "must be a list of token ids"); };
  if (!list->is_array()) return wrong();
  if (list->size() > kMaxStopIds)
    return bad_field("stop_token_ids", "may hold " + std::to_string(kMaxStopIds) + " ids at most");
  std::vector<double> ids;
  for (const OrderedJson& each : *list) {
    const auto id = whole_number(each);
    if (!id || *id < 0 || *id > std::numeric_limits<std::int32_t>::max()) return wrong();
    ids.push_back(static_cast<double>(*id));
  }
  if (!ids.empty()) fields.set("stop_token_ids", std::move(ids));
  return ok_status();
}

Status read_logit_bias(const OrderedJson& body, Params& fields) {
  const OrderedJson* const bias = find_member(body, "logit_bias");
  if (!bias) return ok_status();
  if (!bias->is_object()) return bad_field("logit_bias", "must be an object from token ids to numbers");
  std::vector<double> ids, values;
  for (const auto& [name, value] : bias->items()) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0)
      return bad_field("logit_bias", "has a name that is no token id");
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
      return bad_field("logit_bias", "must hold numbers from -100 to 100");
    ids.push_back(id);
    values.push_back(value.get<double>());
  }
  if (ids.empty()) return ok_status();
  fields.set("logit_bias_ids", std::move(ids));
  fields.set("logit_bias_values", std::move(values));
  return ok_status();
}

}  // namespace

Error bad_field(std::string_view field, std::string_view what) {
  std::string message = "'";
  message.append(field).append("' ").append(what);
  return invalid_request(std::move(message)).with_field(std::string(field));
}

Result<JsonBody> parse_json_body(std::string_view text) {
  MSTAR_TRY(check_json_bounds(text, "the request body", kMaxJsonMembers));
  JsonBody out{OrderedJson::parse(text.begin(), text.end(), nullptr, false)};
  if (out.json.is_discarded()) {
    const std::string field = field_before_fault(text);
    if (field.empty()) return invalid_request("the request body is not valid JSON");
    return invalid_request("the request body is not valid JSON, in or after '" + field + "'").with_field(field);
  }
  if (!out.json.is_object()) return invalid_request("the request body must be a JSON object");
  if (const auto member = member_with_large_integer(text))
    return bad_field(std::string(*member), "holds an integer beyond 64 bits");
  return out;
}

std::string json_text(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

const OrderedJson* find_member(const OrderedJson& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(std::string(name));
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<std::optional<double>> number_member(const OrderedJson& object, std::string_view name, double least,
                                            double most) {
  const OrderedJson* const value = find_member(object, name);
  if (!value) return std::optional<double>();
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (number >= least && number <= most) return std::optional<double>(number);
  char text[96];
  std::snprintf(text, sizeof text, "must be a number from %g to %g", least, most);
  return bad_field(name, text);
}

Result<std::optional<std::int64_t>> integer_member(const OrderedJson& object, std::string_view name, std::int64_t least,
                                                   std::int64_t most) {
  const OrderedJson* const value = find_member(object, name);
  if (!value) return std::optional<std::int64_t>();
  const auto number = whole_number(*value);
  if (number && *number >= least && *number <= most) return number;
  return bad_field(name, "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<bool> bool_member(const OrderedJson& object, std::string_view name, bool fallback) {
  const OrderedJson* const value = find_member(object, name);
  if (!value) return fallback;
  if (!value->is_boolean()) return bad_field(name, "must be true or false");
  return value->get<bool>();
}

Result<std::string> string_member(const OrderedJson& object, std::string_view name, std::string fallback) {
  const OrderedJson* const value = find_member(object, name);
  if (!value) return fallback;
  if (!value->is_string()) return bad_field(name, "must be a string");
  return value->get<std::string>();
}

Result<std::string> read_model(const OrderedJson& body) {
  MSTAR_TRY_ASSIGN(std::string model, string_member(body, "model", ""));
  if (model.empty()) return bad_field("model", "is missing");
  // Answers repeat it in every event of every choice.
  if (model.size() > kMaxNameBytes) return bad_field("model", "is longer than any model's name");
  return model;
}

Result<StreamOptions> read_stream_options(const OrderedJson& body) {
  StreamOptions out;
  MSTAR_TRY_ASSIGN(out.stream, bool_member(body, "stream", false));
  const OrderedJson* const options = find_member(body, "stream_options");
  if (!options) return out;
  if (!options->is_object()) return bad_field("stream_options", "must be an object");
  if (!out.stream) return bad_field("stream_options", "is only allowed when 'stream' is true");
  auto wanted = bool_member(*options, "include_usage", false);
  if (!wanted) return bad_field("stream_options", "has an 'include_usage' that is not true or false");
  out.include_usage = *wanted;
  return out;
}

Result<int> read_num_choices(const OrderedJson& body) {
  MSTAR_TRY_ASSIGN(const auto n, integer_member(body, "n", 1, kMaxChoices));
  // The best of several is not chosen here.
  MSTAR_TRY_ASSIGN(const auto best_of, integer_member(body, "best_of", 1, kMaxChoices));
  if (best_of && *best_of != n.value_or(1)) return bad_field("best_of", "other than n is not supported");
  return static_cast<int>(n.value_or(1));
}

Status read_sampling_fields(const OrderedJson& body, Params& fields) {
  for (const NumberField& each : kNumbers) {
    MSTAR_TRY_ASSIGN(const auto value, number_member(body, each.name, each.least, each.most));
    if (value) fields.set(each.name, *value);
  }
  for (const IntegerField& each : kIntegers) {
    MSTAR_TRY_ASSIGN(const auto value, integer_member(body, each.name, each.least, each.most));
    if (value) fields.set(each.name, *value);
  }
  MSTAR_TRY_ASSIGN(const bool ignore_eos, bool_member(body, "ignore_eos", false));
  if (ignore_eos) fields.set("ignore_eos", true);
  MSTAR_TRY_ASSIGN(const bool parse_special, bool_member(body, "parse_special", false));
  if (parse_special) fields.set("parse_special", true);
  MSTAR_TRY_ASSIGN(const std::string salt, string_member(body, "cache_salt", ""));
  if (salt.size() > kMaxNameBytes) return bad_field("cache_salt", "is longer than 256 bytes");
  if (!salt.empty()) fields.set("cache_salt", salt);
  MSTAR_TRY(read_stop(body, fields));
  MSTAR_TRY(read_stop_ids(body, fields));
  return read_logit_bias(body, fields);
}

Status refuse_unsupported(const OrderedJson& body) {
  for (const char* name : kUnsupported) {
    const OrderedJson* const value = find_member(body, name);
    if (!value || (value->is_boolean() && !value->get<bool>()) || (value->is_structured() && value->empty()) ||
        (value->is_string() && value->get_ref<const std::string&>().empty()))
      continue;
    return bad_field(name, "is not supported");
  }
  const OrderedJson* const format = find_member(body, "response_format");
  if (!format) return ok_status();
  if (!format->is_object()) return bad_field("response_format", "must be an object");
  const OrderedJson* const type = find_member(*format, "type");
  if (!type || !type->is_string()) return bad_field("response_format", "needs a 'type'");
  if (*type != "text") return bad_field("response_format", "of a type other than 'text' is not supported");
  return ok_status();
}

}  // namespace mstar::server
