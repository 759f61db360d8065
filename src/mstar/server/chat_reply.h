// The parts of a chat's reply in OpenAI's shapes: text, thoughts, calls of tools.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mstar/decl/plan.h"
#include "mstar/decl/request.h"

namespace mstar::server {

// Formats of text chunks that are not said to the user. A call's chunk holds the tool's name and has metadata "id" and
// "index"; those of its arguments follow, with "index".
inline constexpr std::string_view kThoughtFormat = "thought", kCallFormat = "call", kArgumentsFormat = "arguments";
bool is_said(const decl::Chunk& chunk);

// How a choice with calls ends where it stopped by itself.
decl::Finish finish_of(decl::Finish finish, bool has_calls);

// The object of a streamed choice's "delta" for a chunk that is not said.
void append_delta(std::string& out, const decl::Chunk& chunk);

// A whole reply, chunk by chunk.
class ChatReply {
 public:
  void add(const decl::Chunk& chunk);
  // "content":…, and "reasoning_content" and "tool_calls" where there are any.
  void append_to(std::string& out) const;
  decl::Finish finish(decl::Finish finish) const { return finish_of(finish, !calls_.empty()); }

 private:
  struct ToolCall {
    std::string id, name, arguments;
  };
  std::string text_, thought_;
  std::vector<ToolCall> calls_;
};

}  // namespace mstar::server
