#include "mstar/text/subtitles.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "mstar/text/utf8.h"

namespace mstar {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxSeconds = 1e9;

std::int64_t to_milliseconds(double seconds) {
  if (!(seconds > 0)) return 0;
  return static_cast<std::int64_t>(std::nearbyint(std::fmin(seconds, kMaxSeconds) * 1000.0));
}

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
}

// Every run of line ends becomes one.
std::string join_lines(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool line_end = c == '\n' || c == '\r';
    if (!line_end) {
      out.push_back(c);
    } else if (!out.empty() && out.back() != '\n') {
      out.push_back('\n');
    }
  }
  return out;
}

std::string cue_text(std::string_view text) {
  std::string out = join_lines(strip_spaces(text));
  // What is left of a longer arrow is looked at again.
  for (std::size_t at = out.find("-->"); at != std::string::npos; at = out.find("-->", at - (at > 0 ? 1 : 0)))
    out.replace(at, 3, "->");
  return out;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

double rounded(double seconds) { return static_cast<double>(to_milliseconds(seconds)) / 1000.0; }

void set_figure(Json& json, const char* name, const std::optional<double>& figure) {
  if (figure) json[name] = *figure;
}

Json word_json(const TranscriptWord& word, std::string_view text) {
  Json json;
  json["word"] = text;
  json["start"] = rounded(word.start_s);
  json["end"] = rounded(word.end_s);
  set_figure(json, "probability", word.probability);
  return json;
}

Json segment_json(const TranscriptSegment& segment, std::size_t id, bool with_words) {
  Json json;
  json["id"] = id;
  json["seek"] = segment.seek_frames;
  json["start"] = rounded(segment.start_s);
  json["end"] = rounded(segment.end_s);
  json["text"] = segment.text;
  json["tokens"] = segment.tokens;
  set_figure(json, "temperature", segment.temperature);
  set_figure(json, "avg_logprob", segment.avg_logprob);
  set_figure(json, "compression_ratio", segment.compression_ratio);
  set_figure(json, "no_speech_prob", segment.no_speech_prob);
  if (!with_words) return json;
  json["words"] = Json::array();
  for (const TranscriptWord& word : segment.words) json["words"].push_back(word_json(word, word.text));
  return json;
}

}  // namespace

std::string format_timestamp(double seconds, bool always_hours, char decimal_mark) {
  const std::int64_t ms = to_milliseconds(seconds);
  const std::int64_t hours = ms / 3'600'000;
  const std::string lead = always_hours || hours > 0 ? fmt::format("{:02}:", hours) : std::string();
  return fmt::format("{}{:02}:{:02}{}{:03}", lead, ms / 60'000 % 60, ms / 1000 % 60, decimal_mark, ms % 1000);
}

std::string srt_cue(std::int64_t number, const TranscriptSegment& segment) {
  return fmt::format("{}\n{} --> {}\n{}\n\n", number, format_timestamp(segment.start_s, true, ','),
                     format_timestamp(segment.end_s, true, ','), cue_text(segment.text));
}

std::string write_srt(std::span<const TranscriptSegment> segments) {
  std::string out;
  std::int64_t number = 0;
  for (const TranscriptSegment& segment : segments) out.append(srt_cue(++number, segment));
  return out;
}

std::string_view vtt_header() { return "WEBVTT\n\n"; }

std::string vtt_cue(const TranscriptSegment& segment, VttOptions options) {
  std::string text = cue_text(segment.text);
  if (options.escape_markup) {
    replace_all(text, "&", "&amp;");
    replace_all(text, "<", "&lt;");
  }
  return fmt::format("{} --> {}\n{}\n\n", format_timestamp(segment.start_s, options.always_hours, '.'),
                     format_timestamp(segment.end_s, options.always_hours, '.'), text);
}

std::string write_vtt(std::span<const TranscriptSegment> segments, VttOptions options) {
  std::string out(vtt_header());
  for (const TranscriptSegment& segment : segments) out.append(vtt_cue(segment, options));
  return out;
}

std::string write_txt(std::span<const TranscriptSegment> segments) {
  std::string out;
  for (const TranscriptSegment& segment : segments) out.append(strip_spaces(segment.text)).append("\n");
  return out;
}

std::string write_tsv(std::span<const TranscriptSegment> segments) {
  std::string out = "start\tend\ttext\n";
  for (const TranscriptSegment& segment : segments) {
    std::string text = join_lines(strip_spaces(segment.text));
    replace_all(text, "\t", " ");
    replace_all(text, "\n", " ");
    out.append(fmt::format("{}\t{}\t{}\n", to_milliseconds(segment.start_s), to_milliseconds(segment.end_s), text));
  }
  return out;
}

std::string write_json(const Transcript& transcript) {
  Json json;
  json["text"] = transcript.text;
  return dump(json);
}

std::string write_verbose_json(const Transcript& transcript, VerboseJsonOptions options) {
  Json json;
  json["task"] = transcript.task;
  json["language"] = transcript.language;
  json["duration"] = rounded(transcript.duration_s);
  json["text"] = transcript.text;
  if (options.words) {
    json["words"] = Json::array();
    for (const TranscriptSegment& segment : transcript.segments) {
      for (const TranscriptWord& word : segment.words)
        json["words"].push_back(word_json(word, strip_spaces(word.text)));
    }
  }
  if (options.segments) {
    json["segments"] = Json::array();
    for (std::size_t i = 0; i < transcript.segments.size(); ++i) {
      json["segments"].push_back(segment_json(transcript.segments[i], i, options.segment_words));
    }
  }
  return dump(json);
}

}  // namespace mstar
