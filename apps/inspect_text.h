// A model's declaration for people and for programs. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime.h"

namespace mstar::apps {

// Components, ports, resources with their memory, walks as trees by partition, placement, weight map. bad_model when
// the weight rules do not fit the checkpoint.
Result<std::string> inspect_text(const OpenedModel& model, const resource::PoolLimits& limits);
// The same facts as one JSON object, with the model's lines of the plan.
Result<std::string> inspect_json(const OpenedModel& model, const resource::PoolLimits& limits, const MemoryPlan& plan);
// The whole deployment: a box for the host and one for each rank, with what it runs and holds of each model, and then
// which ports go from ranks to others.
std::string draw_ranks(const std::vector<OpenedModel>& models, const RuntimeConfig& config, Backend backend,
                       const MemoryPlan& plan);

}  // namespace mstar::apps
