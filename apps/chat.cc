// mstar chat: a conversation in the terminal, or one turn a line of standard input.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <string>
#include <utility>

#include "chat_backend.h"
#include "chat_session.h"
#include "commands.h"
#include "settings.h"
#include "signals.h"

namespace mstar::apps {
namespace {

// Ctrl-C stops a reply; a second one during the same reply, or at the prompt, ends everything.
class Interrupts {
 public:
  explicit Interrupts(bool on_terminal) : on_terminal_(on_terminal) {}
  void on_signal(int signal) {
    std::lock_guard lock(mutex_);
    const bool first = std::exchange(num_, num_ + 1) == 0;
    if (signal != SIGINT || !on_terminal_ || !first) ::_exit(exit_status_of(signal));
    if (replying_) return replying_->stop();
    std::fputs("\nOnce more, or Ctrl-D, to end.\n> ", stderr);
  }
  // Null: the user's turn.
  void replying(ChatBackend* backend) {
    std::lock_guard lock(mutex_);
    replying_ = backend;
    num_ = 0;
  }

 private:
  const bool on_terminal_;
  std::mutex mutex_;
  ChatBackend* replying_ = nullptr;
  int num_ = 0;
};

// What a terminal that edits lines cuts longer ones to (N_TTY_BUF_SIZE less the line's end).
constexpr std::size_t kTerminalLineBytes = 4095;

// A model's text, which may hold anything, must not drive the terminal.
void print(std::string_view text, bool on_terminal) {
  if (!on_terminal) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      // U+0080 to U+009F are controls too, in two bytes.
      const bool high = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
      if (high) {
        ++i;
      } else if ((byte >= 0x20 && byte != 0x7F) || byte == '\n' || byte == '\t') {
        std::fputc(byte, stdout);
      }
    }
  }
  std::fflush(stdout);
}

// False when the reply failed.
bool answer(ChatSession& session, ChatBackend& backend, Interrupts& interrupts) {
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1;
  std::string said;
  interrupts.replying(&backend);
  const auto reply = backend.reply(session.messages_json(), [&](std::string_view text) {
    said += text;
    print(text, on_terminal);
  });
  interrupts.replying(nullptr);
  if (reply || !said.empty()) std::fputc('\n', stdout);
  std::fflush(stdout);
  if (!reply) {
    session.unanswered();
    std::fprintf(stderr, "mstar: %s\n", reply.error().message.c_str());
    if (::isatty(STDIN_FILENO) == 1)
      std::fputs("(this question is forgotten; /reset forgets the whole chat)\n", stderr);
    return false;
  }
  if (reply->stopped) std::fputs("(stopped)\n", stderr);
  if (reply->cut) std::fputs("(cut off: no more tokens; /reset begins anew)\n", stderr);
  session.answered(std::move(said));
  return true;
}

Result<int> chat(const ChatFlags& flags) {
  const bool on_terminal = ::isatty(STDIN_FILENO) == 1;
  Interrupts interrupts(on_terminal);
  const SignalWatch signals([&](int signal, int) { interrupts.on_signal(signal); });
  MSTAR_TRY_ASSIGN(const std::unique_ptr<ChatBackend> backend,
                   flags.url.empty() ? local_chat(flags) : remote_chat(flags));
  interrupts.replying(nullptr);
  ChatSession session(flags.system);
  if (on_terminal) std::fprintf(stderr, "%s; /help shows what there is\n", backend->model().c_str());
  int status = 0;
  for (std::string line;;) {
    if (on_terminal) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line)) break;
    interrupts.replying(nullptr);
    if (on_terminal && line.size() >= kTerminalLineBytes) {
      std::fputs("The terminal cut this line, so it is not sent: it takes 4094 bytes. Longer ones can be piped in.\n",
                 stderr);
      continue;
    }
    const ChatSession::Step step = session.take(line);
    if (step.act == ChatSession::Act::quit) return status;
    if (step.act == ChatSession::Act::tell) std::fprintf(stderr, "%s\n", step.text.c_str());
    if (step.act == ChatSession::Act::ask && !answer(session, *backend, interrupts) && !on_terminal) status = 1;
  }
  if (on_terminal) std::fputc('\n', stderr);
  return status;
}

}  // namespace

void add_chat_flags(CLI::App& command, ChatFlags& flags) {
  command.add_option("model", flags.model.model,
                     "a checkpoint, fetched weights or a config.yaml; with --url the server's name of the model");
  command.add_option("--url", flags.url, "a server of OpenAI's chats to talk to, such as http://127.0.0.1:8000");
  command.add_option("--api-key", flags.api_key, "sent to the server as a bearer token")->envname("OPENAI_API_KEY");
  command.add_option("--system", flags.system, "the system message: how the model is to behave");
  command.add_option("--param", flags.params,
                     "further request fields as NAME=VALUE, such as top_p=0.9; may be given again");
  // The model's own sampling holds for what is not given.
  const auto field = [&](const char* flag, const std::string& name, const char* what) {
    command.add_option_function<std::string>(
        flag, [&flags, name](const std::string& value) { flags.params.push_back(name + "=" + value); }, what);
  };
  field("--temperature", "temperature", "how freely tokens are drawn; 0: always the likeliest");
  field("--max-tokens", "max_tokens", "the longest reply, in tokens");
  add_model_flags(command, flags.model);
}

int run_chat(const ChatFlags& flags) {
  const auto status = chat(flags);
  if (status) return *status;
  std::fprintf(stderr, "mstar: %s\n", status.error().message.c_str());
  return status.error().code == Code::invalid_request ? 2 : 1;
}

}  // namespace mstar::apps
