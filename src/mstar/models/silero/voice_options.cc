#include "mstar/models/silero/voice_options.h"

#include <cstdio>

namespace mstar::models {

Result<SpeechOptions> read_speech_options(const Params& fields, const std::string& prefix, SpeechOptions defaults) {
  const auto read = [&](const char* name, double& out, double least, double most) -> Status {
    const std::string field = prefix + name;
    if (!fields.has(field)) return ok_status();
    const auto value = fields.get_number(field, out);
    if (value && *value >= least && *value <= most) {
      out = *value;
      return ok_status();
    }
    char text[96];
    std::snprintf(text, sizeof text, "' must be a number from %g to %g", least, most);
    return std::move(invalid_request("'" + field + text)).with_field(field);
  };
  SpeechOptions out = defaults;
  MSTAR_TRY(read("threshold", out.threshold, 0.01, 0.99));
  double low = out.neg_threshold.value_or(-1);
  MSTAR_TRY(read("neg_threshold", low, 0, 0.99));
  if (low >= 0) out.neg_threshold = low;
  MSTAR_TRY(read("min_speech_duration_ms", out.min_speech_duration_ms, 0, 60'000));
  MSTAR_TRY(read("max_speech_duration_s", out.max_speech_duration_s, 1, 86'400));
  MSTAR_TRY(read("min_silence_duration_ms", out.min_silence_duration_ms, 0, 60'000));
  MSTAR_TRY(read("speech_pad_ms", out.speech_pad_ms, 0, 10'000));
  if (out.max_speech_duration_s * 1000 <= 2 * out.speech_pad_ms + 32)
    return std::move(invalid_request("'" + prefix + "max_speech_duration_s' leaves no room between two paddings"))
        .with_field(prefix + "max_speech_duration_s");
  return out;
}

}  // namespace mstar::models
