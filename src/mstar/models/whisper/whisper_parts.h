// A recording in parts that are heard at the same time: what is spoken, cut where somebody pauses, at most a window
// each.
#pragma once

#include "mstar/decl/split.h"
#include "mstar/models/whisper/whisper_config.h"

namespace mstar::models {

// Null where the request has no field `parallel`. Parts are what faster-whisper's BatchedInferencePipeline hears:
// speech of at most 30 s together, times restored; no part knows the text before it. Of many languages and none given,
// the first part tells the others'. Memory: a part's samples and those since its last pause. Errors: invalid_request
// for the file and for fields that do not go together.
Result<std::unique_ptr<decl::Splitter>> split_whisper(const std::shared_ptr<const WhisperConfig>& config,
                                                      const decl::ApiRequest& request);

}  // namespace mstar::models
