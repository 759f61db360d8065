// Sampled tokens to text: incremental detokenisation, stop strings, log-probabilities.
#pragma once

#include <memory>

#include "mstar/decl/emitter.h"
#include "mstar/models/text_surface.h"

namespace mstar::models {

// Chunks are Modality::text, "utf8": text that never cuts a character and holds no stop string. With log-probabilities
// a chunk's metadata "logprobs" is a JSON array with one object for each of its tokens: {"token", "bytes", "logprob",
// "top_logprobs"}, as OpenAI's chat answers have it. Stop tokens add no text, special or not.
std::unique_ptr<decl::Emitter> make_text_emitter(std::shared_ptr<const TextModel> model,
                                                 const decl::RequestParams& params);

}  // namespace mstar::models
