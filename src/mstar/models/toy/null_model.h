// null: a language model without weights that computes nothing. What a request to it costs is what the server, the
// conductor and the step loop cost.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "mstar/models/model.h"
#include "mstar/models/toy/step_costs.h"

namespace mstar::models {

// Routes: /generate, /v1/completions, /v1/chat/completions. Fields: those of language models that ask for a number of
// tokens (max_tokens, 16 when it is missing) and `seed`; the others are checked and have no effect. A prompt's tokens
// are `prompt_ids`, or the bytes of the text or of the messages' JSON. Answers have exactly max_tokens tokens; there is
// no stop token. Each is one chunk of text: a space and a number. Options (`options:` of a YAML): step_us, microseconds
// that each step takes at least, as if a device worked (0). Or step_costs, a file of step costs (step_costs.h): then
// the model has prompts in parts, paged KV and a prefix cache as a text model has, its context is 16384 tokens, and its
// steps sleep for as long as the file says; with max_rows (256) rows a step at most, kv_tokens places of all requests
// together (0: the worst case) and prefix_cache (true).
Result<decl::Decl> declare_null_model(const ModelSource& source);

// The same with a table's times, on a timer that may be a simulator's.
struct TimedModel {
  std::shared_ptr<const StepCosts> costs = {};
  std::shared_ptr<StepTimer> timer = {};
  int max_rows = 256;
  int context_tokens = 1 << 14;
  std::int64_t kv_tokens = 0;
  bool prefix_cache = true;
};
decl::Decl declare_timed_model(const std::string& name, const TimedModel& timed);

// What the model answers, timed or not.
std::string null_model_text(std::span<const std::int32_t> prompt, std::uint64_t seed, int num_tokens);

}  // namespace mstar::models
