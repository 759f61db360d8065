#include "mstar/text/reply/reply_format.h"

#include <nlohmann/json.hpp>

namespace mstar {
namespace {

using nlohmann::json;

std::string first_type(const json& schema) {
  if (!schema.is_object()) return {};
  const auto type = schema.find("type");
  if (type != schema.end() && type->is_string()) return type->get<std::string>();
  if (type != schema.end() && type->is_array())
    for (const json& each : *type)
      if (each.is_string() && each != "null") return each.get<std::string>();
  for (const char* const key : {"anyOf", "oneOf"})
    if (const auto list = schema.find(key); list != schema.end() && list->is_array())
      for (const json& each : *list)
        if (std::string found = first_type(each); !found.empty() && found != "null") return found;
  return {};
}

}  // namespace

ReplyFormat reply_format_of(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  ReplyFormat out;
  if (has("<|START_ACTION|>")) {
    out.calls = CallStyle::command;
    out.dropped = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"};
    out.has_special_marks = true;
    if (has("<|START_THINKING|>")) {
      out.think_open = "<|START_THINKING|>";
      out.think_close = "<|END_THINKING|>";
    }
    return out;
  }
  if (has("[TOOL_CALLS]")) {
    out.calls = CallStyle::mistral;
    out.has_special_marks = true;
  } else if (has("<｜tool▁call▁begin｜>")) {
    out.calls = CallStyle::deepseek;
    out.has_special_marks = true;
  } else if (has("<tool_call>")) {
    out.calls = CallStyle::tags;
    out.dropped = {"</tool_call>"};
  } else if (has("<|python_tag|>") || (has("ipython") && has("\"parameters\""))) {
    out.calls = CallStyle::json;
    out.dropped = {"<|python_tag|>"};
    out.has_special_marks = true;
  }
  if (has("[THINK]")) {
    out.think_open = "[THINK]";
    out.think_close = "[/THINK]";
    out.has_special_marks = true;
  } else if (has("<think>") || has("</think>")) {
    out.think_open = "<think>";
    out.think_close = "</think>";
  }
  return out;
}

ToolTypes::ToolTypes(const std::string& tools_json) {
  const json tools = json::parse(tools_json, nullptr, false);
  if (!tools.is_array()) return;
  for (const json& tool : tools) {
    if (!tool.is_object()) continue;
    const auto function = tool.find("function");
    const json& about = function != tool.end() ? *function : tool;
    if (!about.is_object() || !about.contains("name") || !about["name"].is_string()) continue;
    auto& types = types_[about["name"].get<std::string>()];
    const auto parameters = about.find("parameters");
    if (parameters == about.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items()) types[name] = first_type(schema);
  }
}

std::string_view ToolTypes::type_of(std::string_view tool, std::string_view parameter) const {
  const auto found = types_.find(tool);
  if (found == types_.end()) return {};
  const auto type = found->second.find(parameter);
  return type == found->second.end() ? std::string_view() : std::string_view(type->second);
}

}  // namespace mstar
