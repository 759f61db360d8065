// A model's declaration for people and for programs. Pure.
#pragma once

#include <string>

#include "runtime.h"

namespace mstar::apps {

// Components, ports, resources with their memory, walks as trees by partition, placement, weight map. bad_model when
// the weight rules do not fit the checkpoint.
Result<std::string> inspect_text(const OpenedModel& model, const resource::PoolLimits& limits);
// The same facts as one JSON object.
Result<std::string> inspect_json(const OpenedModel& model, const resource::PoolLimits& limits);

}  // namespace mstar::apps
