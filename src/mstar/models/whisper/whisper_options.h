// How a recording is to be transcribed: a request's fields beside the language and the task.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/base/result.h"
#include "mstar/media/speech_segments.h"
#include "mstar/models/whisper/whisper_text.h"

namespace mstar::models {

// Names and defaults are those of openai-whisper and faster-whisper 1.2.
struct WhisperOptions {
  // Tried in turn while a window's text is too repetitive or too unlikely: `temperature`, then in steps of
  // `temperature_increment_on_fallback` up to 1; one alone with `max_tokens`, which
  // all tries would draw from. Never empty.
  std::vector<double> temperatures = {0.0, 0.2, 0.4, 0.6, 0.8, 1.0};
  std::optional<double> compression_ratio_threshold = 2.4;  // more: too repetitive
  std::optional<double> log_prob_threshold = -1.0;          // less, on average: too unlikely
  std::optional<double> no_speech_threshold = 0.6;          // more, and unlikely text: silence
  bool condition_on_previous_text = true;
  double prompt_reset_on_temperature = 0.5;  // text that was drawn at more than this is no prompt of the next window
  bool word_timestamps = false;              // also by `timestamp_granularities` with word
  // What is part of the word behind it, and of the word in front.
  std::string prepend_punctuations = "\"'\u201c\u00bf([{-";
  std::string append_punctuations = "\"'.\u3002,\uff0c!\uff01?\uff1f:\uff1a\u201d)]}\u3001";
  // With word times: silence of more seconds than this around unlikely words, and the words, are passed over.
  std::optional<double> hallucination_silence_threshold;
  std::string hotwords;  // stand before each window's earlier text
  // Only what is spoken is heard (`vad_filter`), where it is as fields that begin with vad_ say; their defaults are
  // faster-whisper's.
  std::optional<SpeechOptions> speech;
  // Parts of the recording in frames, in order; the end of the last may be open (kOpenEnd).
  static constexpr int kOpenEnd = 1 << 30;
  std::vector<std::pair<int, int>> clips = {{0, kOpenEnd}};

  // `none` takes a threshold away. Errors: invalid_request with the field.
  static Result<WhisperOptions> read(const Params& fields);
};

// The transcript of one window at one temperature.
struct WindowAttempt {
  std::vector<std::int32_t> tokens;  // without the end of text
  double avg_logprob = 0;
  double compression_ratio = 0;
  double temperature = 0;
};
// Whether another temperature is worth a try. `no_speech`: the window's probability of none.
bool needs_fallback(const WhisperOptions& options, const WindowAttempt& attempt, double no_speech);
// Whether the window is passed over as silent.
bool is_silent(const WhisperOptions& options, const WindowAttempt& attempt, double no_speech);
// Of attempts that all want another: the likeliest of those that are not too repetitive, or of all where each is.
std::size_t best_attempt(const WhisperOptions& options, const std::vector<WindowAttempt>& attempts);

}  // namespace mstar::models
