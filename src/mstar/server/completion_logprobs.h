// The log-probabilities of /v1/completions: a column for each property, where chats have an object for each token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::server {

class CompletionLogprobs {
 public:
  // `items` as logprob_items() gives them. internal when they are not what the emitter promises.
  Status add(std::string_view items);
  // {"tokens":[…],"token_logprobs":[…],"top_logprobs":[{token:…}],"text_offset":[…]} of what was added since the last
  // call; null when that is nothing. top_logprobs has the drawn token too. Offsets count characters of the answer's
  // tokens.
  void take(std::string& out);

 private:
  std::string tokens_, logprobs_, top_, offsets_;  // items
  std::size_t num_characters_ = 0;
};

}  // namespace mstar::server
