#include "mstar/text/reply/json_call.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace mstar {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of what is kept

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool names_tool(std::string_view key) { return key == "name" || key == "tool_name" || key == "function"; }
bool has_arguments(std::string_view key) {
  return key == "arguments" || key == "parameters" || key == "args" || key == "input";
}

}  // namespace

std::size_t JsonSpan::take(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      continue;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
    begun_ = true;
    if (depth_ <= 0) {
      depth_ = 0;
      return i + 1;
    }
  }
  return text.size();
}

JsonCall::State JsonCall::take(std::string_view text, std::size_t& num_taken, std::string& arguments) {
  for (num_taken = 0; num_taken < text.size();) {
    const State state = on_byte(text[num_taken], arguments);
    if (state == State::bad) return state;
    ++num_taken;
    if (state == State::done) return state;
    if (key_.size() + value_.size() + early_.size() > kMostBytes) return State::bad;
  }
  return State::reads;
}

void JsonCall::begin_value(char c) {
  at_ = At::in_value;
  value_.clear();
  is_container_ = c == '{' || c == '[';
  is_string_ = c == '"';
  escaped_ = false;
  span_ = {};
  // A string's text is known at its end.
  streams_ = is_container_ && has_arguments(key_) && !has_arguments_ && !name_.empty();
}

JsonCall::State JsonCall::end_value(std::string& arguments) {
  at_ = At::end;
  if (names_tool(key_) && name_.empty()) {
    const auto text = nlohmann::json::parse(value_, nullptr, false);
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) return State::bad;
    name_ = text.get<std::string>();
    arguments += std::exchange(early_, {});
  } else if (has_arguments(key_) && !has_arguments_) {
    has_arguments_ = true;
    if (streams_) return State::reads;
    std::string whole = value_;
    if (is_string_) {
      const auto text = nlohmann::json::parse(value_, nullptr, false);
      if (text.is_string()) whole = text.get<std::string>();
    } else if (value_ == "null") {
      whole = "{}";
    }
    (name_.empty() ? early_ : arguments) += whole;
  }
  return State::reads;
}

JsonCall::State JsonCall::on_byte(char c, std::string& arguments) {
  switch (at_) {
    case At::open:
      if (is_blank(c)) return State::reads;
      at_ = At::key;
      return c == '{' ? State::reads : State::bad;
    case At::key:
      if (is_blank(c)) return State::reads;
      if (c == '}') break;
      if (c != '"') return State::bad;
      key_.clear();
      escaped_ = false;
      at_ = At::in_key;
      return State::reads;
    case At::in_key:
      if (c == '"' && !escaped_) {
        at_ = At::colon;
      } else {
        key_ += c;
        escaped_ = c == '\\' && !escaped_;
      }
      return State::reads;
    case At::colon:
      if (is_blank(c)) return State::reads;
      at_ = At::value;
      return c == ':' ? State::reads : State::bad;
    case At::value:
      if (is_blank(c)) return State::reads;
      if (c == ',' || c == '}' || c == ']' || c == ':') return State::bad;
      begin_value(c);
      [[fallthrough]];
    case At::in_value:
      if (is_container_) {
        span_.take({&c, 1});
        (streams_ ? arguments : value_) += c;
        return span_.done() ? end_value(arguments) : State::reads;
      }
      if (is_string_) {
        const bool ends = c == '"' && !escaped_ && !value_.empty();
        escaped_ = c == '\\' && !escaped_;
        value_ += c;
        return ends ? end_value(arguments) : State::reads;
      }
      if (c != ',' && c != '}' && !is_blank(c)) {
        value_ += c;
        return State::reads;
      }
      if (end_value(arguments) == State::bad) return State::bad;
      [[fallthrough]];
    case At::end:
      if (is_blank(c)) return State::reads;
      if (c == ',') {
        at_ = At::key;
        return State::reads;
      }
      if (c != '}') return State::bad;
      break;
  }
  if (name_.empty()) return State::bad;
  if (!has_arguments_) arguments += "{}";
  return State::done;
}

}  // namespace mstar
