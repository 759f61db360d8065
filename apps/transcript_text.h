// The files that are written from a transcript. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/subtitles.h"

namespace mstar::apps {

enum class TranscriptFormat { txt, srt, vtt, json };
inline constexpr const char* kTranscriptFormats[] = {"txt", "srt", "vtt", "json"};  // also the files' extensions
// invalid_request lists the formats.
Result<TranscriptFormat> transcript_format(const std::string& name);

// The text of all segments, without space at its ends.
std::string whole_text(const std::vector<TranscriptSegment>& segments);

// The whole file, ending with a newline; an empty txt for a recording without speech. `partial` marks JSON so.
std::string render_transcript(const Transcript& transcript, TranscriptFormat format, bool partial,
                              const CueRules& cues = {});
// The same as one line of JSON that names its file first.
std::string render_json_line(const Transcript& transcript, std::string_view file, bool partial);

}  // namespace mstar::apps
