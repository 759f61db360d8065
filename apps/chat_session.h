// What was said in an `mstar chat` so far, and what a line that the user types means; without a terminal.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mstar::apps {

class ChatSession {
 public:
  explicit ChatSession(std::string system = {}) : system_(std::move(system)) {}

  enum class Act {
    nothing,
    ask,   // messages_json() is to be answered: answered() or unanswered() follows
    tell,  // the text, to the user
    quit,
  };
  struct Step {
    Act act = Act::nothing;
    std::string text;
  };
  // A line without its end. One that begins with '/' is a command: /reset, /system [TEXT], /help, /exit. Bytes that are
  // not UTF-8 become U+FFFD.
  Step take(std::string_view line);

  // OpenAI's messages: the system's, if any, then the turns in their order.
  std::string messages_json() const;
  // Of the question asked last. What a stopped reply said so far is kept; a question without any reply is forgotten.
  void answered(std::string reply);
  void unanswered();

 private:
  struct Message {
    const char* role;
    std::string text;
  };
  std::string system_;
  std::vector<Message> messages_;
};

}  // namespace mstar::apps
