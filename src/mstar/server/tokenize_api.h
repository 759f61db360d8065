// POST /tokenize and /detokenize: what a model makes of text, without running it.
#pragma once

#include <string_view>

#include "mstar/conductor/frontend.h"
#include "mstar/server/endpoints.h"

namespace mstar::server {

// {"model", "prompt" | "messages" with "tools" and "add_generation_prompt"} -> {"tokens","count","max_model_len"}. The
// tokens are those that a request with this prompt would have. `model` may be left out where one model reads text.
Reply tokenize(std::string_view body, const Frontend& frontend);
// {"model", "tokens"} -> {"prompt"}
Reply detokenize(std::string_view body, const Frontend& frontend);

}  // namespace mstar::server
