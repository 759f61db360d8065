// null: a language model without weights that computes nothing. What a request to it costs is what the server, the
// conductor and the step loop cost.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "mstar/models/model.h"

namespace mstar::models {

// Routes: /generate, /v1/completions, /v1/chat/completions. Fields: those of language models that ask for a number of
// tokens (max_tokens, 16 when it is missing) and `seed`; the others are checked and have no effect. A prompt's tokens
// are `prompt_ids`, or the bytes of the text or of the messages' JSON. Answers have exactly max_tokens tokens; there is
// no stop token. Each is one chunk of text: a space and a number. Options (`options:` of a YAML): step_us, microseconds
// that each step takes at least, as if a device worked (0).
Result<decl::Decl> declare_null_model(const ModelSource& source);

// What the model answers.
std::string null_model_text(std::span<const std::int32_t> prompt, std::uint64_t seed, int num_tokens);

}  // namespace mstar::models
