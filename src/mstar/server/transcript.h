// The formats of a transcript: plain text, SubRip, WebVTT and OpenAI's JSON shapes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::server {

struct Word {
  std::string text;
  double start_s = 0;
  double end_s = 0;
};
struct Segment {
  std::int64_t id = 0;
  std::int64_t seek_frames = 0;
  double start_s = 0;
  double end_s = 0;
  std::string text;  // begins with a space as the model wrote it
  std::vector<std::int64_t> tokens;
  double temperature = 0;
  double avg_logprob = 0;
  double compression_ratio = 0;
  double no_speech_prob = 0;
  std::vector<Word> words;
};
struct Transcript {
  std::string text;  // no space before it
  std::vector<Segment> segments;
  std::string language;  // a code such as "en", as the model gave it
  double duration_s = 0;
};

enum class TranscriptFormat : std::uint8_t { json, text, srt, vtt, verbose_json };

// A segment as the runtime emits it. internal when it is not such JSON; missing members keep their defaults, but for
// "text".
Result<Segment> parse_segment(std::string_view json);

struct VerboseOptions {
  bool translate = false;
  bool segments = true;
  bool words = false;
};
// A whole answer's body.
std::string write_transcript(const Transcript& transcript, TranscriptFormat format, const VerboseOptions& options);
// "en" -> "english", as OpenAI names them; an unknown code is given back as it is.
std::string_view language_name(std::string_view code);

}  // namespace mstar::server
