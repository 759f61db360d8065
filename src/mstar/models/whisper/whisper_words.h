// From the first frames of a window's tokens to words with times. Rules and figures are faster-whisper 1.2's
// (add_word_timestamps, generate_segments). Pure functions. Thread: any.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mstar/models/whisper/whisper_options.h"
#include "mstar/models/whisper/whisper_text.h"

namespace mstar::models {

// Of a time in seconds, as Python rounds.
int to_frames(double seconds);

struct Word {
  std::string text;  // as decoded, so most start with a space; empty once it is part of another
  int num_tokens = 0;
  double start_s = 0, end_s = 0;
  double probability = 0;  // the mean of its tokens'
};

// Pieces of `tokens`, which are text and at the end the end of text: words where spaces part them, else (Chinese,
// Japanese, Thai, Lao, Burmese, Cantonese, by `language` code) whole characters. The times are not set.
std::vector<Word> split_words(const Tokenizer& tokenizer, const WhisperTokens& tokens, std::string_view language,
                              std::span<const std::int32_t> text);

// Words of a window, from its start on.
struct WindowWords {
  std::vector<Word> words;
  double median_s = 0;  // of the words that last, at most 0.7
};
// Punctuation is merged, and overlong words at the ends of sentences are shortened.
WindowWords finish_words(std::vector<Word> words, const WhisperOptions& options);

// All of it: of a window's text [n]. first_frames, probabilities: [n + 1] of each token and the end, positions of 20
// ms.
WindowWords words_of(const Tokenizer& tokenizer, const WhisperTokens& tokens, std::string_view language,
                     const WhisperOptions& options, std::span<const std::int32_t> text,
                     std::span<const std::int32_t> first_frames, std::span<const float> probabilities);

struct TimedSegment {
  Segment segment;
  std::vector<Word> words;  // in seconds of the recording
};

// Gives the segments of a window their words, and moves their ends to them. `last_speech_s`: where the words before the
// window ended.
std::vector<TimedSegment> place_words(const WhisperTokens& tokens, WindowWords window, std::vector<Segment> segments,
                                      double offset_s, double last_speech_s);

// Where the last word ends, or the last segment without words; nothing without segments.
std::optional<double> speech_end(const std::vector<TimedSegment>& segments);

// What of a window is taken for an invention in silence.
struct WindowPlace {
  int seek_frames = 0, segment_frames = 0;
  int content_frames = 0;  // of the whole recording
};
struct Verdict {
  bool skips_window = false;            // its start is silent: nothing of it counts, the next one starts later
  std::size_t num_kept = 0;             // segments from the first on
  std::optional<int> next_seek_frames;  // where the next window starts, if not where the words say
};
Verdict find_inventions(const std::vector<TimedSegment>& segments, WindowPlace window, double threshold_s,
                        double last_speech_s);

}  // namespace mstar::models
