// A chat's reply, as it comes, taken apart into what is said, what is thought and which tools are called.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/text/reply/json_call.h"
#include "mstar/text/reply/reply_format.h"

namespace mstar {

struct ReplyPart {
  enum class Kind : std::uint8_t { text, thought, call, arguments };
  Kind kind = Kind::text;
  std::string text;  // of a call: the tool's name; of arguments: a piece of their JSON
  int call = -1;     // counts the reply's calls
  friend bool operator==(const ReplyPart&, const ReplyPart&) = default;
};

// However the reply is cut into pieces, the parts' texts add up to the same. Blanks around thoughts and calls belong to
// nobody. What looks like a call and is none comes out as text; a call that breaks off keeps what was told of it.
// Arguments are JSON where the model's are; values that a family writes as plain text become JSON by the tool's types.
// Thread: one owner. Cost: O(bytes) but for marks, which are looked for again in the few bytes held back.
class ReplyParser {
 public:
  // `types` may be null. `begins_thinking`: the prompt has opened the thoughts.
  ReplyParser(ReplyFormat format, std::shared_ptr<const ToolTypes> types, bool begins_thinking = false);

  void push(std::string_view text, std::vector<ReplyPart>& out);
  // What was held back. Nothing may be pushed after it.
  void finish(std::vector<ReplyPart>& out);
  int num_calls() const { return num_calls_; }

 private:
  enum class State {
    text,
    thought,
    json_call,    // an object
    json_list,    // between objects of a list
    json_next,    // behind an object of the json style
    tag_begin,    // behind <tool_call>
    tag_end,      // before </tool_call>
    xml_begin,    // <function=f>
    xml_value,    // <parameter=p> or </function>
    glm_begin,    // f
    glm_value,    // <arg_key> or </tool_call>
    mistral,      // behind [TOOL_CALLS]
    bare_call,    // arguments alone, of a call that has its name
    deepseek,     // between calls
    deepseek_end  // behind a call's arguments
  };
  // Takes bytes off the front of held_; false: more are needed.
  bool step(std::vector<ReplyPart>& out);
  bool on_text(std::vector<ReplyPart>& out);
  bool on_thought(std::vector<ReplyPart>& out);
  bool on_json_call(std::vector<ReplyPart>& out);
  bool on_json_list(std::vector<ReplyPart>& out);
  bool on_json_next();
  bool on_tag_begin(std::vector<ReplyPart>& out);
  bool on_tag_end();
  bool on_xml_begin(std::vector<ReplyPart>& out);
  bool on_xml_value(std::vector<ReplyPart>& out);
  bool on_glm_begin(std::vector<ReplyPart>& out);
  bool on_glm_value(std::vector<ReplyPart>& out);
  bool on_mistral(std::vector<ReplyPart>& out);
  bool on_bare_call(std::vector<ReplyPart>& out);
  bool on_deepseek(std::vector<ReplyPart>& out);
  bool on_deepseek_end();

  void open_call(std::string_view mark, std::vector<ReplyPart>& out);
  void begin_json_call(State after);
  void begin_bare_call(State after);
  void name_call(std::string name, std::vector<ReplyPart>& out);
  void add_value(std::string_view parameter, std::string_view value, bool guesses, std::vector<ReplyPart>& out);
  void end_values(std::vector<ReplyPart>& out);
  void give_back(std::vector<ReplyPart>& out);
  void give(ReplyPart::Kind kind, std::string_view text, std::vector<ReplyPart>& out);
  void say(ReplyPart::Kind kind, std::string_view text, std::vector<ReplyPart>& out);
  void drop(std::size_t count) { held_.erase(0, count); }
  void take(std::size_t count);
  bool skip_blanks();
  // Whether held_ begins with `mark`; nothing: it may, with more bytes.
  enum class Match { no, maybe, yes };
  Match begins_with(std::string_view mark) const;

  const ReplyFormat format_;
  const std::shared_ptr<const ToolTypes> types_;
  std::vector<std::string_view> open_marks_;  // of calls
  State state_ = State::text, after_call_ = State::text;
  std::string held_;          // not taken yet
  std::string blanks_;        // of text or thoughts, if more of them follows
  std::string taken_;         // of what may be no call: comes back as text
  bool has_thought_ = false;  // thoughts were open once
  bool at_start_ = true;      // of a stretch: its blanks are left out
  bool said_something_ = false;
  bool may_be_json_ = false;  // the reply may be a call from its first byte on
  bool ended_ = false;
  JsonCall json_;
  JsonSpan span_;
  bool is_named_ = false;  // the open call
  std::string name_;       // of the open call
  int num_values_ = 0;     // of the open call
  int num_calls_ = 0;
};

}  // namespace mstar
