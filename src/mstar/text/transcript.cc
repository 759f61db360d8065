#include "mstar/text/transcript.h"

#include <nlohmann/json.hpp>

namespace mstar {
namespace {

using nlohmann::json;

std::optional<double> figure(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// The elements of an array, none where there is no such array.
const json& elements(const json& object, const char* name) {
  static const json kNone = json::array();
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : kNone;
}

}  // namespace

Result<TranscriptSegment> parse_transcript_segment(std::string_view text) {
  const json parsed = json::parse(text.begin(), text.end(), nullptr, false);
  const auto said = parsed.is_object() ? parsed.find("text") : parsed.end();
  const auto start = parsed.is_object() ? figure(parsed, "start") : std::nullopt;
  const auto end = parsed.is_object() ? figure(parsed, "end") : std::nullopt;
  if (said == parsed.end() || !said->is_string() || !start || !end)
    return internal_error("the model gave a segment that is not the JSON it should be");
  TranscriptSegment out;
  out.text = said->get<std::string>();
  out.start_s = *start;
  out.end_s = *end;
  if (const auto seek = parsed.find("seek"); seek != parsed.end() && seek->is_number_integer())
    out.seek_frames = seek->get<std::int64_t>();
  for (const json& each : elements(parsed, "tokens"))
    if (each.is_number_integer()) out.tokens.push_back(each.get<std::int32_t>());
  out.temperature = figure(parsed, "temperature");
  out.avg_logprob = figure(parsed, "avg_logprob");
  out.compression_ratio = figure(parsed, "compression_ratio");
  out.no_speech_prob = figure(parsed, "no_speech_prob");
  for (const json& each : elements(parsed, "words")) {
    const auto word = each.is_object() ? each.find("word") : each.end();
    if (word == each.end() || !word->is_string()) continue;
    out.words.push_back({.text = word->get<std::string>(),
                         .start_s = figure(each, "start").value_or(0),
                         .end_s = figure(each, "end").value_or(0),
                         .probability = figure(each, "probability")});
  }
  return out;
}

}  // namespace mstar
