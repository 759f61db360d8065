// Whisper's token conventions: special ids, decoding rules, prompts, and how a window's tokens become segments.
// Source: Radford et al. 2022 (arXiv 2212.04356), sections 2.3 and 4.5; greedy decoding as faster-whisper 1.2 does it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/text/tokenizer.h"

namespace mstar::models {

inline constexpr int kWindowFrames = 3000;      // 30 s of 10 ms mel frames
inline constexpr int kEncoderPositions = 1500;  // of a window, 20 ms each
inline constexpr double kFrameSeconds = 0.01;
inline constexpr double kTimestampSeconds = 0.02;
inline constexpr int kMaxInitialTimestamp = 50;  // 1 s
inline constexpr int kMaxWindowTokens = 224;     // sampled in one window, end of text included
inline constexpr int kMaxHistoryTokens = 223;    // of the text before a window that its prompt carries

struct WhisperTokens {
  std::int32_t eot = 0, sot = 0, transcribe = 0, translate = 0, sot_prev = 0, no_speech = 0, no_timestamps = 0;
  std::int32_t timestamp_begin = 0;
  std::int32_t vocab = 0;
  bool multilingual = false;
  std::vector<std::int32_t> languages;       // ids; empty when English only
  std::vector<std::int32_t> suppress;        // at each step
  std::vector<std::int32_t> suppress_first;  // at the first sampled token of a window

  // From the tokenizer's special tokens. `vocab` is the number of logits. bad_model when one is missing or has no
  // logit, and for a model of many languages that names none.
  static Result<WhisperTokens> from(const Tokenizer& tokenizer, std::int32_t vocab);
  // The id of a language code ("en"), -1 when the model does not know it.
  std::int32_t language_id(const Tokenizer& tokenizer, const std::string& code) const;
  // "en" of the id of <|en|>.
  static std::string language_code(const Tokenizer& tokenizer, std::int32_t id);
};

// What the rules need to know of the tokens sampled so far in a window.
struct DecodingState {
  int num_tokens = 0;
  std::int32_t last = -1;
  std::int32_t before_last = -1;
  std::int32_t latest_timestamp = -1;
  void push(std::int32_t token, const WhisperTokens& tokens);
};

// The masks of one row's next token: suppressed ids, pairs and order of timestamps, the probability rule.
// `ranges` is storage for the row's span and must outlive it.
void apply_decoding_rules(const DecodingState& state, const WhisperTokens& tokens, std::vector<TokenRange>& ranges,
                          SampleRow& row);

// The text without ASCII blanks at both ends; a part of it.
std::string_view without_blanks(std::string_view text);

// Tokens of a text that the first window is to be read as continuing: " " and the text without blanks around it, of
// which only the last kMaxHistoryTokens count. Reads no more of the text than those can come from.
std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text);

// Tokens of words that are to be expected: " " and the text without blanks around it, the first kMaxHistoryTokens.
std::vector<std::int32_t> hotword_tokens(const Tokenizer& tokenizer, std::string_view text);

// [sot_prev] + the last 223 of history (when any) + the start sequence.
std::vector<std::int32_t> window_prompt(const WhisperTokens& tokens, std::span<const std::int32_t> history,
                                        std::int32_t language, bool translate);

struct Segment {
  double start_s = 0;
  double end_s = 0;
  std::vector<std::int32_t> tokens;
};
struct WindowSplit {
  std::vector<Segment> segments;
  int advance_frames = 0;      // where the next window starts, from this one's start
  bool single_ending = false;  // the last token is a time, the one before it none
};
// `window_tokens` without end of text; `segment_frames` is the window's content.
WindowSplit split_window(const WhisperTokens& tokens, std::span<const std::int32_t> window_tokens, int seek_frames,
                         int segment_frames);

// Tokens of the start sequence: sot, and of a multilingual model language and task.
inline int num_start_tokens(const WhisperTokens& tokens) { return tokens.multilingual ? 3 : 1; }

// Bytes of the text over bytes of its zlib compression; 0 for no text.
double compression_ratio(std::string_view text);

}  // namespace mstar::models
