#include "chat_session.h"

#include "mstar/server/json_text.h"

namespace mstar::apps {
namespace {

constexpr std::string_view kHelp =
    "/reset           forget what was said\n"
    "/system [TEXT]   tell the model how to behave, from the start; without TEXT: nothing\n"
    "/exit            the end, as Ctrl-D\n"
    "Ctrl-C stops a reply.";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

ChatSession::Step ChatSession::take(std::string_view line) {
  const std::string_view said = trimmed(line);
  if (said.empty()) return {};
  if (said.front() != '/') {
    messages_.push_back({"user", std::string(said)});
    return {Act::ask, {}};
  }
  const std::string_view command = said.substr(0, said.find(' '));
  const std::string_view rest = trimmed(said.substr(command.size()));
  if (command == "/exit" || command == "/quit" || command == "/bye") return {Act::quit, {}};
  if (command == "/help" || command == "/?") return {Act::tell, std::string(kHelp)};
  if (command == "/reset") {
    messages_.clear();
    return {Act::tell, "Forgotten."};
  }
  if (command == "/system") {
    system_ = rest;
    messages_.clear();
    return {Act::tell, rest.empty() ? "A new chat, without a system message." : "A new chat with this system message."};
  }
  return {Act::tell, "There is no command " + std::string(command) + "; /help shows them all."};
}

std::string ChatSession::messages_json() const {
  std::string out = "[";
  const auto add = [&out](std::string_view role, std::string_view text) {
    if (out.size() > 1) out += ',';
    out.append("{\"role\":\"").append(role).append("\",\"content\":");
    server::append_json_string(out, text);
    out += '}';
  };
  if (!system_.empty()) add("system", system_);
  for (const Message& each : messages_) add(each.role, each.text);
  out += ']';
  return out;
}

void ChatSession::answered(std::string reply) {
  if (reply.empty()) return unanswered();
  messages_.push_back({"assistant", std::move(reply)});
}

void ChatSession::unanswered() {
  if (!messages_.empty()) messages_.pop_back();
}

}  // namespace mstar::apps
