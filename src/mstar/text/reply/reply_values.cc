// Arguments that a model writes one by one, as plain text.
#include <nlohmann/json.hpp>

#include "mstar/text/reply/reply_parser.h"

namespace mstar {
namespace {

using nlohmann::json;

std::string json_string(std::string_view text) {
  return json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

// As the tool's schema has it; where that says nothing, a string, or with `guesses` what the text looks like.
std::string json_value(std::string_view text, std::string_view type, bool guesses) {
  if (type == "string" || (type.empty() && !guesses)) return json_string(text);
  const json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_discarded()) return parsed.dump(-1, ' ', false, json::error_handler_t::replace);
  if (type == "boolean" && (text == "True" || text == "False")) return text == "True" ? "true" : "false";
  if (text == "None") return "null";
  return json_string(text);
}

}  // namespace

void ReplyParser::add_value(std::string_view parameter, std::string_view value, bool guesses,
                            std::vector<ReplyPart>& out) {
  const std::string_view type = types_ ? types_->type_of(name_, parameter) : std::string_view();
  const std::string piece =
      (num_values_++ == 0 ? "{" : ", ") + json_string(parameter) + ": " + json_value(value, type, guesses);
  give(ReplyPart::Kind::arguments, piece, out);
}

// Also of a call that broke off.
void ReplyParser::end_values(std::vector<ReplyPart>& out) {
  if (state_ != State::xml_value && state_ != State::glm_value) return;
  give(ReplyPart::Kind::arguments, num_values_ > 0 ? "}" : "{}", out);
}

}  // namespace mstar
