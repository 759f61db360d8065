// mstar transcribe --live: sound from a pipe, text as it is spoken.
#pragma once

#include "commands.h"
#include "mstar/base/result.h"
#include "settings.h"

namespace mstar::apps {

// Where the samples of a WAV file's bytes begin, and what they are. The header of a stream may say any length.
struct LiveFormat {
  std::uint32_t rate_hz = 16000;
  int num_channels = 1;
  std::size_t header_bytes = 0;
};
// Of a stream that begins with these bytes: a WAV header of 16-bit samples, or else `raw` as it is. Nothing: more bytes
// are needed. invalid_request for a WAV of other samples, and for other files, which are known by their first bytes.
Result<std::optional<LiveFormat>> live_format(std::string_view begin, const LiveFormat& raw);

// Reads standard input to its end, or until Ctrl-C; then hears the rest. Status of the process.
int run_transcribe_live(const TranscribeFlags& flags, const RuntimeConfig& config);

}  // namespace mstar::apps
