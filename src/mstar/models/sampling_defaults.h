// What a checkpoint says its answers should be drawn with, for requests that say nothing.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "mstar/base/params.h"
#include "mstar/weights/metadata.h"

namespace mstar::models {

// Under the names of requests' fields: temperature, top_k, top_p, min_p, repetition_penalty. A value that no request
// could have is left out, with a warning in the log.

// generation_config.json. "do_sample": false means temperature 0.
Params hf_sampling_defaults(const nlohmann::json& generation);
// general.sampling.temp, top_k, top_p, min_p, penalty_repeat.
Params gguf_sampling_defaults(const weights::Metadata& metadata);

}  // namespace mstar::models
