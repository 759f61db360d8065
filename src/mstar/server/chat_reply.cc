#include "mstar/server/chat_reply.h"

#include "mstar/server/json_text.h"

namespace mstar::server {
namespace {

std::string id_of(const decl::Chunk& call) { return call.metadata.get_string("id", "").value_or(""); }

void append_call(std::string& out, std::string_view id, std::string_view name, std::string_view arguments) {
  out += "\"id\":";
  append_json_string(out, id);
  out += ",\"type\":\"function\",\"function\":{\"name\":";
  append_json_string(out, name);
  out += ",\"arguments\":";
  append_json_string(out, arguments);
  out += '}';
}

}  // namespace

bool is_said(const decl::Chunk& chunk) {
  return chunk.format != kThoughtFormat && chunk.format != kCallFormat && chunk.format != kArgumentsFormat;
}

decl::Finish finish_of(decl::Finish finish, bool has_calls) {
  return has_calls && finish == decl::Finish::stop ? decl::Finish::tool_calls : finish;
}

void append_delta(std::string& out, const decl::Chunk& chunk) {
  const std::string_view text = chunk.value.text();
  if (chunk.format == kThoughtFormat) {
    out += "{\"reasoning_content\":";
    append_json_string(out, text);
    out += '}';
    return;
  }
  out += "{\"tool_calls\":[{\"index\":" + std::to_string(chunk.metadata.get_int("index", 0).value_or(0)) + ',';
  if (chunk.format == kCallFormat) {
    append_call(out, id_of(chunk), text, "");
  } else {
    out += "\"function\":{\"arguments\":";
    append_json_string(out, text);
    out += '}';
  }
  out += "}]}";
}

void ChatReply::add(const decl::Chunk& chunk) {
  const std::string_view text = chunk.value.text();
  if (is_said(chunk)) {
    text_ += text;
  } else if (chunk.format == kThoughtFormat) {
    thought_ += text;
  } else if (chunk.format == kCallFormat) {
    calls_.push_back({id_of(chunk), std::string(text), ""});
  } else if (!calls_.empty()) {
    calls_.back().arguments += text;
  }
}

void ChatReply::append_to(std::string& out) const {
  out += "\"content\":";
  if (text_.empty() && !calls_.empty()) {
    out += "null";
  } else {
    append_json_string(out, text_);
  }
  if (!thought_.empty()) {
    out += ",\"reasoning_content\":";
    append_json_string(out, thought_);
  }
  if (calls_.empty()) return;
  out += ",\"tool_calls\":[";
  for (const ToolCall& each : calls_) {
    out += &each == calls_.data() ? "{" : ",{";
    append_call(out, each.id, each.name, each.arguments);
    out += '}';
  }
  out += ']';
}

}  // namespace mstar::server
