// What the answers of /v1/chat/completions and /v1/completions share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/conductor/frontend.h"
#include "mstar/decl/plan.h"
#include "mstar/decl/request.h"

namespace mstar::server {

// What an answer says of itself.
struct AnswerName {
  std::string id;
  std::string model;  // as the client named it
  std::int64_t created_s = 0;
  // Without `id` made unique by a prefix, such as "chatcmpl-".
  static AnswerName now(std::string_view prefix, std::string_view request_id, std::string model);
};
// {"id":…,"object":…,"created":…,"model":…,"choices":[
void append_answer_head(std::string& out, const AnswerName& name, std::string_view object);

// stop, length or tool_calls.
std::string_view finish_name(decl::Finish finish);

// The log-probabilities of a chunk: the items of its metadata "logprobs", a JSON array, without the brackets. Empty
// when it has none.
std::string_view logprob_items(const decl::Chunk& chunk);
// Puts `items` behind those that are there.
void append_items(std::string& list, std::string_view items);

// Adds up what the choices used. A prompt counts once, however many choices it has: of its tokens those were cached
// that none of its choices had to compute, for one choice may find what another has computed.
class UsageSum {
 public:
  // Choices [k·n, (k + 1)·n) answer prompt k.
  explicit UsageSum(std::size_t choices_per_prompt) : choices_per_prompt_(choices_per_prompt) {}
  void add(std::size_t choice, const Usage& usage);
  // {"prompt_tokens":…,"completion_tokens":…,"total_tokens":…,"prompt_tokens_details":{"cached_tokens":…}}
  void append_to(std::string& out) const;

 private:
  struct Prompt {
    std::int64_t num_tokens = 0;
    std::int64_t num_cached = -1;  // not counted
  };
  std::size_t choices_per_prompt_;
  std::vector<Prompt> prompts_;
  std::int64_t completion_tokens_ = 0;
};

// The end of a stream of choices: an event without choices that tells the usage, unless that is null, and [DONE].
// `base` is an event up to the items of "choices".
void append_stream_end(std::string_view base, const UsageSum* usage, std::string& out);

}  // namespace mstar::server
