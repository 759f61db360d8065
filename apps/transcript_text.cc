#include "transcript_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "mstar/text/utf8.h"

namespace mstar::apps {
namespace {

using nlohmann::json;

// `members` go first into the object that `text` is.
std::string with_members(const std::string& text, const std::string& members) {
  return "{" + members + "," + text.substr(1);
}

std::string json_text(const Transcript& transcript, bool partial) {
  const bool has_words = std::any_of(transcript.segments.begin(), transcript.segments.end(),
                                     [](const TranscriptSegment& each) { return !each.words.empty(); });
  std::string out = write_verbose_json(transcript, {.segment_words = has_words});
  return partial ? with_members(out, "\"partial\":true") : out;
}

}  // namespace

Result<TranscriptFormat> transcript_format(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kTranscriptFormats); ++i)
    if (name == kTranscriptFormats[i]) return static_cast<TranscriptFormat>(i);
  return invalid_request("--format must be txt, srt, vtt or json, not '" + name + "'");
}

std::string whole_text(const std::vector<TranscriptSegment>& segments) {
  std::string out;
  for (const TranscriptSegment& each : segments) out += each.text;
  return std::string(strip_spaces(out));
}

std::string render_transcript(const Transcript& transcript, TranscriptFormat format, bool partial,
                              const CueRules& cues) {
  switch (format) {
    case TranscriptFormat::srt:
      return write_srt(cues_by_rules(transcript.segments, cues));
    case TranscriptFormat::vtt:
      return write_vtt(cues_by_rules(transcript.segments, cues));
    case TranscriptFormat::json:
      return json_text(transcript, partial) + "\n";
    case TranscriptFormat::txt:
      break;
  }
  return write_txt(transcript.segments);
}

std::string render_json_line(const Transcript& transcript, std::string_view file, bool partial) {
  const std::string name = json(file).dump(-1, ' ', false, json::error_handler_t::replace);
  return with_members(json_text(transcript, partial), "\"file\":" + name) + "\n";
}

}  // namespace mstar::apps
