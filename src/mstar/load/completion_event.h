// What one event of a streamed completion says, for OpenAI's two routes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "mstar/base/result.h"

namespace mstar::load {

struct TokenUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;  // of the prompt
};

struct CompletionEvent {
  bool is_last = false;       // "[DONE]"
  bool has_text = false;      // text of the answer, or of its reasoning
  std::string finish_reason;  // empty: not finished yet
  std::optional<TokenUsage> usage;
  std::string error;  // the server's message; then nothing else is set
};

// Reads `data` of /v1/completions and of /v1/chat/completions. Owner thread: one (a parser's memory is kept).
class CompletionEventReader {
 public:
  CompletionEventReader();
  ~CompletionEventReader();
  CompletionEventReader(CompletionEventReader&&) noexcept;
  // invalid_request when it is no JSON object, or what it has is of another kind than OpenAI's.
  Result<CompletionEvent> read(std::string_view data);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

// The message of an error's body ({"error": {"message"}}, or {"error": "..."}), else the beginning of what is
// printable in it.
std::string error_message(std::string_view body);

}  // namespace mstar::load
