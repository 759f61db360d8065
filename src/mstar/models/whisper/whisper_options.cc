#include "mstar/models/whisper/whisper_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "mstar/models/silero/voice_options.h"

namespace mstar::models {
namespace {

Error bad(const char* field, const std::string& message) {
  return std::move(invalid_request("'" + std::string(field) + "' " + message)).with_field(field);
}

Result<std::optional<double>> threshold(const Params& fields, const char* name, std::optional<double> fallback) {
  if (!fields.has(name)) return fallback;
  const auto found = fields.values().find(name);
  if (const auto* text = std::get_if<std::string>(&found->second); text && (*text == "none" || *text == "null"))
    return std::optional<double>();
  const auto number = fields.get_number(name, 0);
  if (!number || !std::isfinite(*number)) return bad(name, "must be a number, or none");
  return std::optional<double>(*number);
}

Result<std::vector<double>> temperatures(const Params& fields) {
  MSTAR_TRY_ASSIGN(const double first, fields.get_number("temperature", 0.0));
  if (!(first >= 0 && first <= 2)) return bad("temperature", "must be between 0 and 2");
  MSTAR_TRY_ASSIGN(const auto step, threshold(fields, "temperature_increment_on_fallback", 0.2));
  std::vector<double> out = {first};
  if (!step || *step == 0) return out;
  if (*step < 0.05) return bad("temperature_increment_on_fallback", "must be at least 0.05, or 0 for one temperature");
  // As people write them: 0.6 and not 0.6000000000000001.
  for (int i = 1; first + i * *step <= 1.0 + 1e-6; ++i) out.push_back(std::round((first + i * *step) * 1e6) / 1e6);
  return out;
}

Result<std::vector<double>> seconds_of(const Params& fields) {
  constexpr const char* kField = "clip_timestamps";
  const auto found = fields.values().find(kField);
  std::vector<double> out;
  if (found == fields.values().end()) return out;
  if (const auto* numbers = std::get_if<std::vector<double>>(&found->second)) return *numbers;
  const auto text = fields.get_string(kField, "");
  if (!text) return bad(kField, "must be seconds in pairs, such as 0,12.5,30,40");
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t comma = std::min(text->find(',', at), text->size());
    std::string_view part = std::string_view(*text).substr(at, comma - at);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    double value = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), value);
    if (read.ec != std::errc() || read.ptr != part.data() + part.size())
      return bad(kField, "has '" + std::string(part.substr(0, 40)) + "', which is no number of seconds");
    out.push_back(value);
    at = comma + 1;
  }
  return out;
}

Result<std::vector<std::pair<int, int>>> clips_of(const Params& fields) {
  constexpr const char* kField = "clip_timestamps";
  MSTAR_TRY_ASSIGN(const std::vector<double> seconds, seconds_of(fields));
  if (seconds.empty()) return std::vector<std::pair<int, int>>{{0, WhisperOptions::kOpenEnd}};
  std::vector<int> frames;
  for (const double each : seconds) {
    if (!(each >= 0 && each < 1e7)) return bad(kField, "must be seconds from 0 on");
    frames.push_back(static_cast<int>(std::lround(each / kFrameSeconds)));
    if (frames.size() > 1 && frames.back() < frames[frames.size() - 2]) return bad(kField, "must not go back in time");
  }
  if (frames.size() % 2) frames.push_back(WhisperOptions::kOpenEnd);
  std::vector<std::pair<int, int>> out;
  for (std::size_t i = 0; i < frames.size(); i += 2)
    if (frames[i] < frames[i + 1]) out.emplace_back(frames[i], frames[i + 1]);
  if (out.empty()) return bad(kField, "names no part of the recording");
  return out;
}

Status read_words(const Params& fields, WhisperOptions& out) {
  MSTAR_TRY_ASSIGN(out.word_timestamps, fields.get_bool("word_timestamps", false));
  MSTAR_TRY_ASSIGN(const auto granularities, fields.get_strings("timestamp_granularities"));
  if (std::find(granularities.begin(), granularities.end(), "word") != granularities.end()) out.word_timestamps = true;
  constexpr std::size_t kMostBytes = 1000;
  for (const auto& [name, set] : {std::pair{"prepend_punctuations", &out.prepend_punctuations},
                                  std::pair{"append_punctuations", &out.append_punctuations}}) {
    MSTAR_TRY_ASSIGN(*set, fields.get_string(name, *set));
    if (set->size() > kMostBytes) return bad(name, "must be no longer than 1000 bytes");
  }
  constexpr const char* kSilence = "hallucination_silence_threshold";
  MSTAR_TRY_ASSIGN(out.hallucination_silence_threshold, threshold(fields, kSilence, std::nullopt));
  if (!out.hallucination_silence_threshold) return ok_status();
  if (*out.hallucination_silence_threshold < 0) return bad(kSilence, "must be seconds from 0 on, or none");
  if (!out.word_timestamps) return bad(kSilence, "needs word_timestamps=true: silence is found between words");
  return ok_status();
}

Result<std::optional<SpeechOptions>> speech_of(const Params& fields) {
  SpeechOptions defaults;
  defaults.min_speech_duration_ms = 0;
  defaults.min_silence_duration_ms = 2000;
  defaults.speech_pad_ms = 400;
  defaults.cuts_at_longest_silence = false;
  MSTAR_TRY_ASSIGN(const bool wanted, fields.get_bool("vad_filter", false));
  MSTAR_TRY_ASSIGN(const SpeechOptions options, read_speech_options(fields, "vad_", defaults));
  return wanted ? std::optional(options) : std::nullopt;
}

}  // namespace

Result<WhisperOptions> WhisperOptions::read(const Params& fields) {
  WhisperOptions out;
  MSTAR_TRY_ASSIGN(out.temperatures, models::temperatures(fields));
  if (fields.has("max_tokens")) out.temperatures.resize(1);
  MSTAR_TRY_ASSIGN(out.compression_ratio_threshold,
                   threshold(fields, "compression_ratio_threshold", out.compression_ratio_threshold));
  // openai-whisper's name, then faster-whisper's.
  MSTAR_TRY_ASSIGN(out.log_prob_threshold, threshold(fields, "logprob_threshold", out.log_prob_threshold));
  MSTAR_TRY_ASSIGN(out.log_prob_threshold, threshold(fields, "log_prob_threshold", out.log_prob_threshold));
  MSTAR_TRY_ASSIGN(out.no_speech_threshold, threshold(fields, "no_speech_threshold", out.no_speech_threshold));
  MSTAR_TRY_ASSIGN(out.condition_on_previous_text, fields.get_bool("condition_on_previous_text", true));
  MSTAR_TRY_ASSIGN(out.prompt_reset_on_temperature,
                   fields.get_number("prompt_reset_on_temperature", out.prompt_reset_on_temperature));
  MSTAR_TRY(read_words(fields, out));
  MSTAR_TRY_ASSIGN(out.hotwords, fields.get_string("hotwords", ""));
  MSTAR_TRY_ASSIGN(out.clips, clips_of(fields));
  MSTAR_TRY_ASSIGN(out.speech, speech_of(fields));
  if (out.speech && fields.has("clip_timestamps"))
    return bad("vad_filter", "and 'clip_timestamps' exclude each other: both say which parts are heard");
  return out;
}

bool needs_fallback(const WhisperOptions& options, const WindowAttempt& attempt, double no_speech) {
  const bool unlikely = options.log_prob_threshold && attempt.avg_logprob < *options.log_prob_threshold;
  if (unlikely && options.no_speech_threshold && no_speech > *options.no_speech_threshold) return false;  // silence
  const auto& most = options.compression_ratio_threshold;
  return unlikely || (most && attempt.compression_ratio > *most);
}

bool is_silent(const WhisperOptions& options, const WindowAttempt& attempt, double no_speech) {
  if (!options.no_speech_threshold || !(no_speech > *options.no_speech_threshold)) return false;
  return !(options.log_prob_threshold && attempt.avg_logprob > *options.log_prob_threshold);
}

std::size_t best_attempt(const WhisperOptions& options, const std::vector<WindowAttempt>& attempts) {
  const auto repeats = [&](const WindowAttempt& each) {
    return options.compression_ratio_threshold && each.compression_ratio > *options.compression_ratio_threshold;
  };
  const bool all_repeat = std::all_of(attempts.begin(), attempts.end(), repeats);
  std::size_t best = attempts.size();
  for (std::size_t i = 0; i < attempts.size(); ++i)
    if ((all_repeat || !repeats(attempts[i])) &&
        (best == attempts.size() || attempts[i].avg_logprob > attempts[best].avg_logprob))
      best = i;
  return best;
}

}  // namespace mstar::models
