// Sampled tokens to text: incremental detokenisation, stop strings, log-probabilities.
#pragma once

#include <memory>

#include "mstar/decl/emitter.h"
#include "mstar/models/text_surface.h"

namespace mstar::models {

// Chunks are Modality::text, "utf8": text that never cuts a character and holds no stop string. With log-probabilities
// a chunk's metadata "logprobs" is a JSON array with one object for each of its tokens: {"token", "bytes", "logprob",
// "top_logprobs"}, as OpenAI's chat answers have it. Stop tokens add no text, special or not.
//
// Of a chat whose model thinks aloud, or which has tools (fields kThinksField, kToolsField), thoughts are chunks of
// format "thought", and of each call there is one of format "call", the tool's name with metadata "id" and "index", and
// then its arguments in pieces, "arguments" with "index" (text/reply/reply_parser.h).
std::unique_ptr<decl::Emitter> make_text_emitter(std::shared_ptr<const TextModel> model,
                                                 const decl::RequestParams& params);

// Fields that the intake of a chat leaves for its emitter: the tools' JSON; whether thoughts stand apart, and whether
// the prompt has opened them.
inline constexpr const char* kToolsField = "tools_json";
inline constexpr const char* kThinksField = "thinks";
inline constexpr const char* kBeginsThinkingField = "begins_thinking";

}  // namespace mstar::models
