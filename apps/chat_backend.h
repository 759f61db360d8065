// Who answers an `mstar chat`: a model in this process, or a server of OpenAI's chats.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "commands.h"
#include "mstar/base/result.h"

namespace mstar::apps {

struct ChatReply {
  bool stopped = false;  // by stop()
  bool cut = false;      // by the limit of tokens
  std::int64_t completion_tokens = -1;
};

class ChatBackend {
 public:
  virtual ~ChatBackend() = default;
  virtual const std::string& model() const = 0;
  // Blocks until the reply has ended. Its text goes to `on_text` as it comes, on any thread, one call at a time.
  using OnText = std::function<void(std::string_view)>;
  virtual Result<ChatReply> reply(const std::string& messages_json, const OnText& on_text) = 0;
  // Ends the reply that is under way, if any. Thread: any.
  virtual void stop() = 0;
};

// Loads the model, as `mstar run` does. Without a name: the chat model of the cache.
Result<std::unique_ptr<ChatBackend>> local_chat(const ChatFlags& flags);
// Asks the server which models it has.
Result<std::unique_ptr<ChatBackend>> remote_chat(const ChatFlags& flags);

// The body of a POST to /v1/chat/completions. A parameter's value that is JSON travels as that, else as text.
std::string chat_body(const std::string& model, const std::string& messages_json, const Params& params);
// What one event of the streamed answer says.
struct ChatEvent {
  std::string text;
  std::string finish_reason;
  std::int64_t completion_tokens = -1;
};
// unavailable with the server's message for an event that tells of a failure, or that is none of OpenAI's.
Result<ChatEvent> read_chat_event(std::string_view data);

}  // namespace mstar::apps
