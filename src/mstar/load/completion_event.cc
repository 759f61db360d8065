#include "mstar/load/completion_event.h"

#include <simdjson.h>

#include <nlohmann/json.hpp>

namespace mstar::load {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

// Nothing where the key is missing or null.
std::optional<element> member(const object& at, std::string_view key) {
  element value;
  if (at[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

Error malformed(std::string_view what) {
  return invalid_request("the stream has an event that is no completion: " + std::string(what));
}

Status read_text(const object& choice, CompletionEvent& out) {
  object from = choice;
  if (const auto delta = member(choice, "delta"); delta && delta->get(from) != simdjson::SUCCESS)
    return malformed("'delta' is no object");
  for (const std::string_view key : {"text", "content", "reasoning_content"}) {
    const auto value = member(from, key);
    if (!value) continue;
    std::string_view text;
    if (value->get(text) != simdjson::SUCCESS) return malformed("'" + std::string(key) + "' is no string");
    out.has_text |= !text.empty();
  }
  return ok_status();
}

Status read_choices(const element& value, CompletionEvent& out) {
  simdjson::dom::array choices;
  if (value.get(choices) != simdjson::SUCCESS) return malformed("'choices' is no list");
  for (const element each : choices) {
    object choice;
    if (each.get(choice) != simdjson::SUCCESS) return malformed("a choice is no object");
    MSTAR_TRY(read_text(choice, out));
    const auto reason = member(choice, "finish_reason");
    std::string_view text;
    if (reason && reason->get(text) != simdjson::SUCCESS) return malformed("'finish_reason' is no string");
    if (reason) out.finish_reason = text;
  }
  return ok_status();
}

Status read_count(const object& at, std::string_view key, std::int64_t& out) {
  const auto value = member(at, key);
  if (value && (value->get(out) != simdjson::SUCCESS || out < 0))
    return malformed("'" + std::string(key) + "' is no count");
  return ok_status();
}

Status read_usage(const element& value, CompletionEvent& out) {
  object usage;
  if (value.get(usage) != simdjson::SUCCESS) return malformed("'usage' is no object");
  TokenUsage read;
  MSTAR_TRY(read_count(usage, "prompt_tokens", read.prompt_tokens));
  MSTAR_TRY(read_count(usage, "completion_tokens", read.completion_tokens));
  if (const auto details = member(usage, "prompt_tokens_details")) {
    object at;
    if (details->get(at) != simdjson::SUCCESS) return malformed("'prompt_tokens_details' is no object");
    MSTAR_TRY(read_count(at, "cached_tokens", read.cached_tokens));
  }
  out.usage = read;
  return ok_status();
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  for (const char c : text.substr(0, limit)) out += c >= ' ' && c < 0x7F ? c : ' ';
  return out;
}

}  // namespace

struct CompletionEventReader::Parser {
  simdjson::dom::parser json;
};

CompletionEventReader::CompletionEventReader() : parser_(std::make_unique<Parser>()) {}
CompletionEventReader::~CompletionEventReader() = default;
CompletionEventReader::CompletionEventReader(CompletionEventReader&&) noexcept = default;

Result<CompletionEvent> CompletionEventReader::read(std::string_view data) {
  CompletionEvent out;
  if (data == "[DONE]") {
    out.is_last = true;
    return out;
  }
  element root;
  object event;
  if (parser_->json.parse(data.data(), data.size()).get(root) != simdjson::SUCCESS ||
      root.get(event) != simdjson::SUCCESS)
    return malformed(printable(data, 80));
  if (member(event, "error")) {
    out.error = error_message(data);
    return out;
  }
  if (const auto choices = member(event, "choices")) MSTAR_TRY(read_choices(*choices, out));
  if (const auto usage = member(event, "usage")) MSTAR_TRY(read_usage(*usage, out));
  return out;
}

std::string error_message(std::string_view body) {
  const nlohmann::json parsed = nlohmann::json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error")) {
    const nlohmann::json& error = parsed["error"];
    if (error.is_string()) return printable(error.get_ref<const std::string&>(), 500);
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return printable(error["message"].get_ref<const std::string&>(), 500);
  }
  return printable(body, 200);
}

}  // namespace mstar::load
