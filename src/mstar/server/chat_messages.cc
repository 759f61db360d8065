#include "mstar/server/chat_messages.h"

#include <memory>
#include <utility>

#include "mstar/server/base64.h"
#include "mstar/server/json_text.h"

namespace mstar::server {
namespace {

constexpr std::size_t kMaxTools = 128;

// One message, as "messages[3]" in what its faults say.
class MessageReader {
 public:
  MessageReader(const OrderedJson& message, std::size_t index, std::vector<decl::Media>& media)
      : message_(message), where_("[" + std::to_string(index) + "]"), media_(media) {}

  Result<JsonBody> read() {
    if (!message_.is_object()) return fault("", "must be an object");
    const OrderedJson* const role = find_member(message_, "role");
    if (!role || !role->is_string()) return fault("role", "must be a string");
    role_ = role->get<std::string>();
    if (role_ == "developer") role_ = "system";
    if (role_ != "system" && role_ != "user" && role_ != "assistant" && role_ != "tool")
      return fault("role", "must be one of system, developer, user, assistant, tool");
    JsonBody out{OrderedJson::object()};
    out.json["role"] = role_;
    MSTAR_TRY(read_content(out.json));
    MSTAR_TRY(copy_string("name", out.json));
    MSTAR_TRY(copy_string("tool_call_id", out.json));
    if (role_ == "tool" && !out.json.contains("tool_call_id")) return fault("tool_call_id", "is missing");
    if (role_ == "assistant") {
      MSTAR_TRY(copy_string("reasoning_content", out.json));
      MSTAR_TRY(read_tool_calls(out.json));
    }
    return out;
  }

 private:
  Error fault(const std::string& member, const std::string& what) const {
    return invalid_request("'messages" + where_ + (member.empty() ? "" : "." + member) + "' " + what)
        .with_field("messages");
  }

  Status copy_string(const char* name, OrderedJson& out) const {
    const OrderedJson* const value = find_member(message_, name);
    if (!value) return ok_status();
    if (!value->is_string()) return fault(name, "must be a string");
    out[name] = *value;
    return ok_status();
  }

  Status read_content(OrderedJson& out) {
    const OrderedJson* const content = find_member(message_, "content");
    if (!content) {
      // Templates tell a call from an answer by this null.
      if (role_ == "assistant" && find_member(message_, "tool_calls")) {
        out["content"] = nullptr;
        return ok_status();
      }
      return fault("content", "is missing");
    }
    if (content->is_string()) {
      out["content"] = *content;
      return ok_status();
    }
    if (!content->is_array()) return fault("content", "must be a string or a list of parts");
    if (content->empty()) return fault("content", "is an empty list");
    const std::size_t num_media = media_.size();
    OrderedJson parts = OrderedJson::array();
    std::string joined;
    for (std::size_t i = 0; i < content->size(); ++i) {
      MSTAR_TRY_ASSIGN(JsonBody part, read_part((*content)[i], "content[" + std::to_string(i) + "]"));
      if (part.json.contains("text")) {
        if (i > 0) joined += '\n';
        joined += part.json["text"].get_ref<const std::string&>();
      }
      parts.push_back(std::move(part.json));
    }
    if (media_.size() == num_media) {
      out["content"] = std::move(joined);
    } else {
      out["content"] = std::move(parts);
    }
    return ok_status();
  }

  Result<JsonBody> read_part(const OrderedJson& part, const std::string& where) {
    if (!part.is_object()) return fault(where, "must be an object");
    const OrderedJson* const type = find_member(part, "type");
    if (!type || !type->is_string()) return fault(where + ".type", "must be a string");
    const auto& kind = type->get_ref<const std::string&>();
    JsonBody out{OrderedJson::object()};
    if (kind == "text" || (kind == "refusal" && role_ == "assistant")) {
      const OrderedJson* const text = find_member(part, kind);
      if (!text || !text->is_string()) return fault(where + "." + kind, "must be a string");
      out.json["type"] = "text";
      out.json["text"] = *text;
      return out;
    }
    if (role_ != "user") return fault(where + ".type", "must be text: only users may send media");
    if (kind == "image_url" || kind == "video_url") {
      const bool is_image = kind == "image_url";
      MSTAR_TRY(take_url(part, kind, where, is_image ? decl::Modality::image : decl::Modality::video));
      out.json["type"] = is_image ? "image" : "video";
      return out;
    }
    if (kind != "input_audio") return fault(where + ".type", "must be text, image_url, video_url or input_audio");
    MSTAR_TRY(take_audio(part, where));
    out.json["type"] = "audio";
    return out;
  }

  Status take_url(const OrderedJson& part, const std::string& kind, const std::string& where, decl::Modality modality) {
    const OrderedJson* const holder = find_member(part, kind);
    const OrderedJson* const url = holder && holder->is_object() ? find_member(*holder, "url") : holder;
    if (!url || !url->is_string()) return fault(where + "." + kind + ".url", "must be a string");
    const std::string_view text = url->get_ref<const std::string&>();
    const std::size_t comma = text.find(',');
    const std::string_view head = text.substr(0, comma);
    if (comma == text.npos || !head.starts_with("data:") || !head.ends_with(";base64"))
      return fault(where + "." + kind + ".url", "must be a data: URL in base64; nothing is fetched from elsewhere");
    const std::string content_type(head.substr(5, head.size() - 5 - 7));
    return take_medium(text.substr(comma + 1), modality, content_type, "", where + "." + kind + ".url");
  }

  Status take_audio(const OrderedJson& part, const std::string& where) {
    const OrderedJson* const audio = find_member(part, "input_audio");
    const OrderedJson* const bytes = audio ? find_member(*audio, "data") : nullptr;
    const OrderedJson* const format = audio ? find_member(*audio, "format") : nullptr;
    if (!bytes || !bytes->is_string()) return fault(where + ".input_audio.data", "must be a string");
    if (!format || !format->is_string()) return fault(where + ".input_audio.format", "must be a string");
    const std::string name = format->get<std::string>();
    return take_medium(bytes->get_ref<const std::string&>(), decl::Modality::audio, "audio/" + name, "audio." + name,
                       where + ".input_audio.data");
  }

  Status take_medium(std::string_view base64, decl::Modality modality, std::string content_type, std::string file_name,
                     const std::string& where) {
    auto bytes = base64_decode(base64);
    if (!bytes || bytes->empty()) return fault(where, "must be base64, and not empty");
    decl::Media medium;
    medium.modality = modality;
    medium.field = "messages";
    medium.file_name = std::move(file_name);
    medium.content_type = std::move(content_type);
    medium.bytes = HostValue::shared_blob(std::make_shared<const std::string>(std::move(*bytes)));
    media_.push_back(std::move(medium));
    return ok_status();
  }

  Status read_tool_calls(OrderedJson& out) const {
    const OrderedJson* const calls = find_member(message_, "tool_calls");
    if (!calls) return ok_status();
    if (!calls->is_array()) return fault("tool_calls", "must be a list");
    if (calls->empty()) return ok_status();
    OrderedJson list = OrderedJson::array();
    for (std::size_t i = 0; i < calls->size(); ++i) {
      const OrderedJson& call = (*calls)[i];
      const std::string where = "tool_calls[" + std::to_string(i) + "]";
      const OrderedJson* const function = find_member(call, "function");
      if (!function || !function->is_object()) return fault(where + ".function", "must be an object");
      const OrderedJson* const id = find_member(call, "id");
      if (id && !id->is_string()) return fault(where + ".id", "must be a string");
      const OrderedJson* const name = find_member(*function, "name");
      if (!name || !name->is_string()) return fault(where + ".function.name", "must be a string");
      const OrderedJson* const arguments = find_member(*function, "arguments");
      if (arguments && !arguments->is_string() && !arguments->is_object())
        return fault(where + ".function.arguments", "must be a string or an object");
      OrderedJson one = OrderedJson::object();
      if (id) one["id"] = *id;
      one["type"] = "function";
      one["function"]["name"] = *name;
      one["function"]["arguments"] = arguments ? arguments_of(*arguments) : OrderedJson::object();
      if (arguments && arguments->is_string() && one["function"]["arguments"].is_object() &&
          member_with_large_integer(arguments->get_ref<const std::string&>()))
        return fault(where + ".function.arguments", "holds an integer beyond 64 bits");
      list.push_back(std::move(one));
    }
    out["tool_calls"] = std::move(list);
    return ok_status();
  }

  static OrderedJson arguments_of(const OrderedJson& value) {
    if (!value.is_string()) return value;
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty()) return OrderedJson::object();
    if (!check_json_bounds(text, "arguments", kMaxJsonMembers)) return value;
    OrderedJson parsed = OrderedJson::parse(text.begin(), text.end(), nullptr, false);
    if (!parsed.is_object()) return value;
    return parsed;
  }

  const OrderedJson& message_;
  const std::string where_;
  std::vector<decl::Media>& media_;
  std::string role_;
};

Status check_tool(const OrderedJson& tool, std::size_t index) {
  const std::string where = "'tools[" + std::to_string(index) + "]";
  const auto fault = [&](const std::string& what) { return invalid_request(where + what).with_field("tools"); };
  const OrderedJson* const type = find_member(tool, "type");
  if (!type || !type->is_string()) return fault(".type' must be a string");
  if (*type != "function") return fault(".type' must be function");
  const OrderedJson* const function = find_member(tool, "function");
  if (!function || !function->is_object()) return fault(".function' must be an object");
  const OrderedJson* const name = find_member(*function, "name");
  if (!name || !name->is_string() || name->get_ref<const std::string&>().empty())
    return fault(".function.name' must be a string that is not empty");
  const OrderedJson* const description = find_member(*function, "description");
  if (description && !description->is_string()) return fault(".function.description' must be a string");
  const OrderedJson* const parameters = find_member(*function, "parameters");
  if (parameters && !parameters->is_object()) return fault(".function.parameters' must be an object");
  return ok_status();
}

}  // namespace

namespace {

// Each text of arguments becomes a tree of its own, beside what the body's bounds count.
constexpr std::size_t kMaxArgumentBytes = std::size_t{1} << 20;

std::size_t argument_bytes(const OrderedJson& message) {
  std::size_t out = 0;
  const OrderedJson* const calls = find_member(message, "tool_calls");
  if (!calls || !calls->is_array()) return out;
  for (const OrderedJson& call : *calls) {
    const OrderedJson* const function = find_member(call, "function");
    const OrderedJson* const arguments = function ? find_member(*function, "arguments") : nullptr;
    if (arguments && arguments->is_string()) out += arguments->get_ref<const std::string&>().size();
  }
  return out;
}

}  // namespace

Status read_messages(const OrderedJson& body, decl::ApiRequest& request) {
  const OrderedJson* const messages = find_member(body, "messages");
  if (!messages) return bad_field("messages", "is missing");
  if (!messages->is_array()) return bad_field("messages", "must be a list");
  if (messages->empty()) return bad_field("messages", "is empty");
  std::size_t num_argument_bytes = 0;
  for (const OrderedJson& each : *messages) num_argument_bytes += argument_bytes(each);
  if (num_argument_bytes > kMaxArgumentBytes)
    return bad_field("messages", "has more than 1 MiB of tool calls' arguments");
  OrderedJson out = OrderedJson::array();
  for (std::size_t i = 0; i < messages->size(); ++i) {
    MSTAR_TRY_ASSIGN(JsonBody message, MessageReader((*messages)[i], i, request.media).read());
    out.push_back(std::move(message.json));
  }
  request.messages_json = json_text(out);
  return ok_status();
}

Status read_tools(const OrderedJson& body, decl::ApiRequest& request) {
  const OrderedJson* const choice = find_member(body, "tool_choice");
  if (choice && *choice != "auto" && *choice != "none")
    return bad_field("tool_choice", "must be auto or none; others are not supported");
  const OrderedJson* const tools = find_member(body, "tools");
  if (!tools) return ok_status();
  if (!tools->is_array()) return bad_field("tools", "must be a list");
  if (tools->size() > kMaxTools) return bad_field("tools", "may hold " + std::to_string(kMaxTools) + " at most");
  for (std::size_t i = 0; i < tools->size(); ++i) MSTAR_TRY(check_tool((*tools)[i], i));
  if (tools->empty() || (choice && *choice == "none")) return ok_status();
  request.tools_json = json_text(*tools);
  return ok_status();
}

}  // namespace mstar::server
