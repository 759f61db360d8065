// The body of a null model that takes time: rows, prompts and pages as a text decoder has them, and no arithmetic.
#pragma once

#include <memory>

#include "mstar/decl/refs.h"
#include "mstar/engine/component_body.h"
#include "mstar/models/toy/step_costs.h"

namespace mstar::models {

// Of answers: each token follows from the one before it, the first one from the prompt's last one.
std::int32_t next_null_token(std::int32_t token, std::uint64_t seed);

struct TimedRefs {
  decl::PortRef prompt, token;
  decl::ResourceRef kv;
};

// Works with prompts in parts, prefixes that are found, and rows that run ahead. Costs: what `timer` makes of a step.
std::unique_ptr<engine::ComponentBody> make_timed_body(const TimedRefs& refs, std::shared_ptr<const StepCosts> costs,
                                                       std::shared_ptr<StepTimer> timer, Device& device);

}  // namespace mstar::models
