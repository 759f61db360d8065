#include "mstar/server/transcript.h"

#include <algorithm>
#include <cmath>

#include "mstar/server/ascii.h"
#include "mstar/server/json_text.h"
#include "mstar/text/subtitles.h"

namespace mstar::server {
namespace {

// The cues of a subtitle file: the segments, or the whole text where the model gave none.
std::vector<TranscriptSegment> cues_of(const Transcript& transcript) {
  if (!transcript.segments.empty() || trim(transcript.text).empty()) return transcript.segments;
  TranscriptSegment whole;
  whole.end_s = transcript.duration_s;
  whole.text = transcript.text;
  return {whole};
}

// `json`, an object, with OpenAI's "usage" as its last member.
std::string with_usage(std::string json, double duration_s) {
  json.pop_back();
  json += ",\"usage\":{\"type\":\"duration\",\"seconds\":";
  append_json_number(json, std::ceil(std::max(0.0, duration_s)));
  return json + "}}";
}

std::string write_verbose(Transcript transcript, const VerboseOptions& options) {
  transcript.task = options.translate ? "translate" : "transcribe";
  transcript.language = options.translate ? "english" : language_name(transcript.language);
  return with_usage(write_verbose_json(transcript, {.segments = options.segments, .words = options.words}),
                    transcript.duration_s);
}

}  // namespace

std::string write_transcript(const Transcript& transcript, TranscriptFormat format, const VerboseOptions& options) {
  switch (format) {
    case TranscriptFormat::text:
      return transcript.text + "\n";
    case TranscriptFormat::srt:
      return write_srt(cues_by_rules(cues_of(transcript), options.cues));
    case TranscriptFormat::vtt:
      return write_vtt(cues_by_rules(cues_of(transcript), options.cues), {.always_hours = true});
    case TranscriptFormat::verbose_json:
      return write_verbose(transcript, options);
    case TranscriptFormat::json:
      break;
  }
  return with_usage(write_json(transcript), transcript.duration_s);
}

}  // namespace mstar::server
