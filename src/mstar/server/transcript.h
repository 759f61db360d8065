// The formats of a transcript: plain text, SubRip, WebVTT and OpenAI's JSON shapes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mstar/text/subtitles.h"
#include "mstar/text/transcript.h"

namespace mstar::server {

enum class TranscriptFormat : std::uint8_t { json, text, srt, vtt, verbose_json };

struct VerboseOptions {
  bool translate = false;
  bool segments = true;
  bool words = false;
  CueRules cues;  // of srt and vtt
};
// A whole answer's body. The transcript's language is a code, as the model gave it.
std::string write_transcript(const Transcript& transcript, TranscriptFormat format, const VerboseOptions& options);
// "en" -> "english", as OpenAI names them; an unknown code is given back as it is.
std::string_view language_name(std::string_view code);

}  // namespace mstar::server
