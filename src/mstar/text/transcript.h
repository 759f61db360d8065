// What was said when: a model's segments and the whole that they make. Pure data; subtitles.h writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"

namespace mstar {

struct TranscriptWord {
  std::string text;  // as decoded, so most start with a space
  double start_s = 0;
  double end_s = 0;
  std::optional<double> probability;
};

struct TranscriptSegment {
  double start_s = 0;
  double end_s = 0;
  std::string text;  // as decoded, so most start with a space
  std::vector<std::int32_t> tokens;
  std::int64_t seek_frames = 0;  // where the window starts, in mel frames of 10 ms
  std::optional<double> temperature;
  std::optional<double> avg_logprob;
  std::optional<double> compression_ratio;
  std::optional<double> no_speech_prob;
  std::vector<TranscriptWord> words;
};

struct Transcript {
  std::string task = "transcribe";
  std::string language;  // as the client is to see it
  double duration_s = 0;
  std::string text;
  std::vector<TranscriptSegment> segments;
};

// One chunk of format "segment", as speech models emit it: JSON with "text", "start" and "end"; the other members of
// TranscriptSegment may miss, and others are not looked at. Errors: internal, when it is not such JSON.
Result<TranscriptSegment> parse_transcript_segment(std::string_view json);

}  // namespace mstar
