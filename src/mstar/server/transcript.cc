#include "mstar/server/transcript.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "mstar/server/ascii.h"
#include "mstar/server/json_text.h"

namespace mstar::server {
namespace {

using nlohmann::json;

double number(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number() ? it->get<double>() : 0.0;
}
std::int64_t integer(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number_integer() ? it->get<std::int64_t>() : 0;
}

// "00:01:02,345"; hours take as many digits as they need.
std::string timestamp(double seconds, char point) {
  const double clamped = std::isfinite(seconds) ? std::clamp(seconds, 0.0, 3.6e9) : 0.0;
  const long long ms = std::llround(clamped * 1000.0);
  char text[48];
  std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld%c%03lld", ms / 3'600'000, ms / 60'000 % 60, ms / 1000 % 60,
                point, ms % 1000);
  return text;
}

// An arrow inside the text would end a cue's timing line for some players.
std::string cue_text(std::string_view text) {
  std::string out(trim(text));
  for (std::size_t at = out.find("-->"); at != std::string::npos; at = out.find("-->")) out.replace(at, 3, "->");
  return out;
}

// The cues of a subtitle file: the segments, or the whole text where the model gave none.
std::vector<Segment> cues_of(const Transcript& transcript) {
  if (!transcript.segments.empty() || trim(transcript.text).empty()) return transcript.segments;
  Segment whole;
  whole.end_s = transcript.duration_s;
  whole.text = transcript.text;
  return {whole};
}

std::string write_srt(const Transcript& transcript) {
  std::string out;
  int index = 0;
  for (const Segment& s : cues_of(transcript))
    out += std::to_string(++index) + "\n" + timestamp(s.start_s, ',') + " --> " + timestamp(s.end_s, ',') + "\n" +
           cue_text(s.text) + "\n\n";
  return out;
}

std::string write_vtt(const Transcript& transcript) {
  std::string out = "WEBVTT\n\n";
  for (const Segment& s : cues_of(transcript))
    out += timestamp(s.start_s, '.') + " --> " + timestamp(s.end_s, '.') + "\n" + cue_text(s.text) + "\n\n";
  return out;
}

void append_usage(std::string& out, double duration_s) {
  out += "\"usage\":{\"type\":\"duration\",\"seconds\":";
  append_json_number(out, std::ceil(std::max(0.0, duration_s)));
  out += '}';
}

void append_segment(std::string& out, const Segment& s) {
  const auto member = [&out](std::string_view name, double value) {
    out.append(",\"").append(name).append("\":");
    append_json_number(out, value);
  };
  out += "{\"id\":" + std::to_string(s.id) + ",\"seek\":" + std::to_string(s.seek_frames);
  member("start", s.start_s);
  member("end", s.end_s);
  out += ",\"text\":";
  append_json_string(out, s.text);
  out += ",\"tokens\":[";
  for (std::size_t i = 0; i < s.tokens.size(); ++i) {
    if (i) out += ',';
    out += std::to_string(s.tokens[i]);
  }
  out += ']';
  member("temperature", s.temperature);
  member("avg_logprob", s.avg_logprob);
  member("compression_ratio", s.compression_ratio);
  member("no_speech_prob", s.no_speech_prob);
  out += '}';
}

void append_words(std::string& out, const Transcript& transcript) {
  bool first = true;
  for (const Segment& s : transcript.segments) {
    for (const Word& w : s.words) {
      if (!first) out += ',';
      first = false;
      out += "{\"word\":";
      append_json_string(out, trim(w.text));
      out += ",\"start\":";
      append_json_number(out, w.start_s);
      out += ",\"end\":";
      append_json_number(out, w.end_s);
      out += '}';
    }
  }
}

std::string write_verbose(const Transcript& transcript, const VerboseOptions& options) {
  std::string out = options.translate ? "{\"task\":\"translate\"" : "{\"task\":\"transcribe\"";
  out += ",\"language\":";
  append_json_string(out, options.translate ? "english" : language_name(transcript.language));
  out += ",\"duration\":";
  append_json_number(out, transcript.duration_s);
  out += ",\"text\":";
  append_json_string(out, transcript.text);
  if (options.words) {
    out += ",\"words\":[";
    append_words(out, transcript);
    out += ']';
  }
  if (options.segments) {
    out += ",\"segments\":[";
    for (std::size_t i = 0; i < transcript.segments.size(); ++i) {
      if (i) out += ',';
      append_segment(out, transcript.segments[i]);
    }
    out += ']';
  }
  out += ',';
  append_usage(out, transcript.duration_s);
  out += '}';
  return out;
}

}  // namespace

Result<Segment> parse_segment(std::string_view text) {
  const json parsed = json::parse(text.begin(), text.end(), nullptr, false);
  const auto said = parsed.is_object() ? parsed.find("text") : parsed.end();
  if (!parsed.is_object() || said == parsed.end() || !said->is_string())
    return internal_error("a transcript segment is not the JSON that it should be");
  Segment out;
  out.id = integer(parsed, "id");
  out.seek_frames = integer(parsed, "seek");
  out.start_s = number(parsed, "start");
  out.end_s = number(parsed, "end");
  out.text = said->get<std::string>();
  if (const auto tokens = parsed.find("tokens"); tokens != parsed.end() && tokens->is_array())
    for (const json& each : *tokens)
      if (each.is_number_integer()) out.tokens.push_back(each.get<std::int64_t>());
  out.temperature = number(parsed, "temperature");
  out.avg_logprob = number(parsed, "avg_logprob");
  out.compression_ratio = number(parsed, "compression_ratio");
  out.no_speech_prob = number(parsed, "no_speech_prob");
  if (const auto words = parsed.find("words"); words != parsed.end() && words->is_array()) {
    for (const json& each : *words) {
      if (!each.is_object()) continue;
      const auto word = each.find("word");
      if (word != each.end() && word->is_string())
        out.words.push_back({word->get<std::string>(), number(each, "start"), number(each, "end")});
    }
  }
  return out;
}

std::string write_transcript(const Transcript& transcript, TranscriptFormat format, const VerboseOptions& options) {
  switch (format) {
    case TranscriptFormat::text:
      return transcript.text + "\n";
    case TranscriptFormat::srt:
      return write_srt(transcript);
    case TranscriptFormat::vtt:
      return write_vtt(transcript);
    case TranscriptFormat::verbose_json:
      return write_verbose(transcript, options);
    case TranscriptFormat::json:
      break;
  }
  std::string out = "{\"text\":";
  append_json_string(out, transcript.text);
  out += ',';
  append_usage(out, transcript.duration_s);
  out += '}';
  return out;
}

}  // namespace mstar::server
