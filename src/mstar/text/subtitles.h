// Transcripts as SRT, WebVTT, TSV, plain text and JSON. Pure functions. Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/text/transcript.h"

namespace mstar {

// "hh:mm:ss,mmm", more digits for 100 hours and more. Milliseconds round half to even. What is below 0 or no number
// counts as 0. Without always_hours the hours are left out while they are 0.
std::string format_timestamp(double seconds, bool always_hours, char decimal_mark);

// How cues are made of words: those of openai-whisper's writer. 0: no such rule.
struct CueRules {
  int max_line_width = 0;      // characters
  int max_line_count = 0;      // lines of a cue; with a width cues no longer end with their segments
  int max_words_per_line = 0;  // of a cue, where there is no line count
  bool any() const { return max_line_width > 0 || max_line_count > 0 || max_words_per_line > 0; }
};
// Cues as segments: their words' times, lines broken. Segments without words stay as they are.
std::vector<TranscriptSegment> cues_by_rules(std::span<const TranscriptSegment> segments, const CueRules& rules);

// One cue with the blank line after it; `number` counts from 1. The text is stripped, "-->" in it becomes "->", and
// blank lines go, because each of those would end the cue. Otherwise the bytes of openai-whisper's writer.
std::string srt_cue(std::int64_t number, const TranscriptSegment& segment);
std::string write_srt(std::span<const TranscriptSegment> segments);

struct VttOptions {
  bool always_hours = false;  // openai-whisper leaves zero hours out, the OpenAI API writes them
  bool escape_markup = true;  // & and < as the standard asks; openai-whisper writes them as they are
};
std::string_view vtt_header();  // "WEBVTT" and a blank line
std::string vtt_cue(const TranscriptSegment& segment, VttOptions options = {});
std::string write_vtt(std::span<const TranscriptSegment> segments, VttOptions options = {});

// One stripped line a segment.
std::string write_txt(std::span<const TranscriptSegment> segments);
// start and end in milliseconds, and the text, as openai-whisper's TSV.
std::string write_tsv(std::span<const TranscriptSegment> segments);

// {"text": ...}
std::string write_json(const Transcript& transcript);

struct VerboseJsonOptions {
  bool segments = true;
  bool words = false;          // one flat list, as `timestamp_granularities=word`
  bool segment_words = false;  // each segment's words in it, as openai-whisper writes them: not stripped
};
// The OpenAI API's verbose_json: task, language, duration, text, words (stripped), segments (id, seek, start, end,
// text, tokens and the figures that are set). Seconds are rounded to milliseconds. Ill-formed UTF-8 becomes U+FFFD; a
// figure that is no finite number is null.
std::string write_verbose_json(const Transcript& transcript, VerboseJsonOptions options = {});

}  // namespace mstar
