// A request's fields about voice activity.
#pragma once

#include "mstar/base/params.h"
#include "mstar/base/result.h"
#include "mstar/media/speech_segments.h"

namespace mstar::models {

// `prefix` + threshold, neg_threshold, min_speech_duration_ms, max_speech_duration_s, min_silence_duration_ms,
// speech_pad_ms; what is not there is `defaults`'. invalid_request with the field.
Result<SpeechOptions> read_speech_options(const Params& fields, const std::string& prefix, SpeechOptions defaults);

}  // namespace mstar::models
