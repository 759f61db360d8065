// From a window's tokens to segments of text, or to another try at a higher temperature.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "mstar/media/speech_sound.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/models/whisper/whisper_options.h"
#include "mstar/models/whisper/whisper_stages.h"
#include "mstar/models/whisper/whisper_words.h"

namespace mstar::models {
namespace {

class SegmentStage final : public decl::HostStage {
 public:
  SegmentStage(std::shared_ptr<const WhisperConfig> config, const decl::RequestParams& params)
      : config_(std::move(config)),
        options_(WhisperOptions::read(params.fields).value_or({})),  // checked at intake
        history_(prompt_history(params)) {}

  Result<decl::HostOutputs> run(const decl::HostInputs& inputs) override {
    if (options_.speech && !times_) times_ = times_of(inputs.ports[inputs.ports.size() - 2].front());
    return aligning_ ? end_alignment(inputs) : settle_attempt(inputs);
  }

 private:
  // A window whose text is settled.
  struct Settled {
    WindowPlace place;
    WindowSplit split;
    WindowAttempt attempt;
    float no_speech = 0;
    std::vector<std::int32_t> text;  // of all its segments, without times
  };

  Result<decl::HostOutputs> settle_attempt(const decl::HostInputs& inputs) {
    const auto window = inputs.ports[0].front().as<std::int32_t>();
    const float no_speech = inputs.ports[4].front().as<float>()[0];
    attempts_.push_back(attempt_of(inputs));
    const WindowPlace place{.seek_frames = window[kWindowSeek],
                            .segment_frames = window[kWindowSegmentFrames],
                            .content_frames = window[kWindowContentFrames]};
    const std::int32_t again = next_attempt(place.segment_frames, no_speech);
    std::vector<HostValue> segments;
    int next = place.seek_frames;
    if (again < 0) next += close_window(place, no_speech, inputs, segments);
    return outputs(std::move(segments), next, again, inputs);
  }

  static SpeechTimes times_of(const HostValue& speech) {
    const auto ends = speech.as<std::int32_t>();
    std::vector<SpeechSegment> segments;
    for (std::size_t i = 0; i + 1 < ends.size(); i += 2) segments.push_back({ends[i], ends[i + 1]});
    return SpeechTimes(segments);
  }

  // Inputs: window, language, first_frames, token_probs, speech, length.
  Result<decl::HostOutputs> end_alignment(const decl::HostInputs& inputs) {
    const Settled settled = std::move(*std::exchange(aligning_, std::nullopt));
    const auto first_frames = inputs.ports[2].front().as<std::int32_t>();
    const auto probabilities = inputs.ports[3].front().as<float>();
    if (first_frames.size() != settled.text.size() + 1 || probabilities.size() != first_frames.size())
      return internal_error("the times of a window's words are not those of its tokens");
    WindowWords words = words_of(*config_->tokenizer, config_->tokens, language_of(inputs), options_, settled.text,
                                 first_frames, probabilities);
    std::vector<HostValue> segments;
    const int next = settled.place.seek_frames + emit_with_words(settled, std::move(words), inputs, segments);
    return outputs(std::move(segments), next, -1, inputs);
  }

  decl::HostOutputs outputs(std::vector<HostValue> segments, std::int32_t next, std::int32_t again,
                            const decl::HostInputs& inputs) const {
    const float duration_s = inputs.ports.back().front().as<float>()[0];
    const std::vector<std::int32_t> none;
    decl::HostOutputs out;
    out.ports.push_back(std::move(segments));
    out.ports.push_back({HostValue::i32({&next, 1})});
    out.ports.push_back({HostValue::i32(history_)});
    out.ports.push_back({HostValue::utf8(language_of(inputs) + " " + std::to_string(duration_s))});
    out.ports.push_back({HostValue::i32({&again, 1})});
    out.ports.push_back({HostValue::i32(aligning_ ? aligning_->text : none)});
    return out;
  }

  std::string language_of(const decl::HostInputs& inputs) const {
    const std::int32_t language = inputs.ports[1].front().as<std::int32_t>()[0];
    return language < 0 ? "en" : WhisperTokens::language_code(*config_->tokenizer, language);
  }

  WindowAttempt attempt_of(const decl::HostInputs& inputs) const {
    WindowAttempt out;
    double score = 0;
    const auto take = [&](const std::vector<HostValue>& ids, const std::vector<HostValue>& scores) {
      for (const HostValue& id : ids) out.tokens.push_back(id.as<std::int32_t>()[0]);
      for (const HostValue& each : scores) score += each.as<float>()[0];
    };
    take(inputs.ports[2], inputs.ports[3]);
    if (inputs.ports.size() > 7) take(inputs.ports[5], inputs.ports[6]);
    // Text is what stands before the first end: with ignore_eos more may follow.
    out.tokens.erase(std::find(out.tokens.begin(), out.tokens.end(), config_->tokens.eot), out.tokens.end());
    out.avg_logprob = score / static_cast<double>(out.tokens.size() + 1);
    out.compression_ratio = compression_ratio(without_blanks(text_of(out.tokens)));
    out.temperature = options_.temperatures[std::min(attempts_.size(), options_.temperatures.size() - 1)];
    return out;
  }

  std::int32_t next_attempt(int segment_frames, double no_speech) const {
    const bool again = segment_frames > 0 && attempts_.size() < options_.temperatures.size() &&
                       needs_fallback(options_, attempts_.back(), no_speech);
    return again ? static_cast<std::int32_t>(attempts_.size()) : -1;
  }

  // Emits what is best of the attempts, or leaves it to be aligned. How far the next window starts from this one.
  int close_window(WindowPlace place, float no_speech, const decl::HostInputs& inputs,
                   std::vector<HostValue>& segments) {
    WindowAttempt& last = attempts_.back();
    const double last_temperature = last.temperature;
    const bool none_passed = needs_fallback(options_, last, no_speech);
    WindowAttempt chosen = std::move(none_passed ? attempts_[best_attempt(options_, attempts_)] : last);
    chosen.temperature = last_temperature;  // how far it went, whichever is taken
    attempts_.clear();
    const int frames = place.segment_frames;
    if (frames <= 0 || is_silent(options_, chosen, no_speech)) return std::max(frames, 1);
    Settled settled{.place = place,
                    .split = split_window(config_->tokens, chosen.tokens, place.seek_frames, frames),
                    .attempt = std::move(chosen),
                    .no_speech = no_speech,
                    .text = {}};
    if (!options_.word_timestamps) {
      for (const Segment& each : settled.split.segments) emit(each, {}, settled, segments);
      note_end(settled.attempt);
      return advance(settled, settled.split.advance_frames);
    }
    for (const Segment& segment : settled.split.segments)
      std::copy_if(segment.tokens.begin(), segment.tokens.end(), std::back_inserter(settled.text),
                   [&](std::int32_t token) { return token < config_->tokens.eot; });
    // Only a model of few text positions has not room for all.
    const int room = config_->text_positions - num_start_tokens(config_->tokens) - 2;
    settled.text.resize(std::min(settled.text.size(), static_cast<std::size_t>(std::max(room, 0))));
    if (settled.text.empty()) return emit_with_words(settled, {}, inputs, segments);
    aligning_ = std::move(settled);
    return 0;
  }

  // A model that breaks its rules must not hold a request in place for ever.
  static int advance(const Settled& settled, int frames) { return frames > 0 ? frames : settled.place.segment_frames; }

  int emit_with_words(const Settled& settled, WindowWords words, const decl::HostInputs& inputs,
                      std::vector<HostValue>& segments) {
    const WindowSplit& split = settled.split;
    const int seek = settled.place.seek_frames;
    const double offset_s = seek * kFrameSeconds;
    std::vector<TimedSegment> timed =
        place_words(config_->tokens, std::move(words), split.segments, offset_s, last_speech_s_);
    int next = split.advance_frames;
    const auto end = speech_end(timed);
    if (!split.single_ending && end && *end > offset_s) next = to_frames(*end) - seek;
    if (options_.hallucination_silence_threshold) {
      const Verdict verdict = find_inventions(timed, known_place(settled.place, inputs),
                                              *options_.hallucination_silence_threshold, last_speech_s_);
      if (verdict.next_seek_frames) next = *verdict.next_seek_frames - seek;
      if (verdict.skips_window) return advance(settled, next);
      timed.resize(verdict.num_kept);
    }
    last_speech_s_ = speech_end(timed).value_or(last_speech_s_);
    for (TimedSegment& each : timed) {
      keep_in_order(each);
      emit(each.segment, each.words, settled, segments);
    }
    note_end(settled.attempt);
    return advance(settled, next);
  }

  // Where the recording's end is not known yet, it is as long as its file says.
  WindowPlace known_place(WindowPlace place, const decl::HostInputs& inputs) const {
    const double length_s = times_ ? times_->sound_s() : inputs.ports.back().front().as<float>()[0];
    if (place.content_frames == std::numeric_limits<std::int32_t>::max() && length_s > 0)
      place.content_frames = static_cast<int>(std::min(std::ceil(length_s / kFrameSeconds), 2e9));
    return place;
  }

  // The reference's rules at the ends of segments may set a word back behind the one before it.
  void keep_in_order(TimedSegment& timed) {
    for (Word& word : timed.words) {
      word.start_s = std::max(word.start_s, last_word_s_);
      word.end_s = std::max(word.end_s, word.start_s);
      last_word_s_ = word.end_s;
    }
    if (timed.words.empty()) return;
    timed.segment.start_s = std::min(timed.segment.start_s, timed.words.front().start_s);
    timed.segment.end_s = std::max(timed.segment.end_s, timed.segment.start_s);
  }

  std::string text_of(const std::vector<std::int32_t>& tokens) const {
    std::vector<std::int32_t> words;
    for (const std::int32_t token : tokens)
      if (token < config_->tokens.eot) words.push_back(token);
    return config_->tokenizer->decode(words);
  }

  void emit(const Segment& segment, const std::vector<Word>& words, const Settled& settled,
            std::vector<HostValue>& segments) {
    const std::string text = text_of(segment.tokens);
    if (segment.start_s == segment.end_s || without_blanks(text).empty()) return;
    double start_s = segment.start_s, end_s = segment.end_s;
    if (times_) {  // what was heard is not all
      start_s = words.empty() ? times_->original(start_s) : original(words.front()).first;
      end_s = words.empty() ? times_->original(end_s, true) : original(words.back()).second;
    }
    nlohmann::json json = {{"id", num_segments_++},
                           {"seek", settled.place.seek_frames},
                           {"start", start_s},
                           {"end", end_s},
                           {"text", text},
                           {"tokens", segment.tokens},
                           {"temperature", settled.attempt.temperature},
                           {"avg_logprob", settled.attempt.avg_logprob},
                           {"compression_ratio", settled.attempt.compression_ratio},
                           {"no_speech_prob", settled.no_speech}};
    if (options_.word_timestamps) {
      auto& list = json["words"] = nlohmann::json::array();
      for (const Word& each : words) {
        const auto [word_start_s, word_end_s] = original(each);
        list.push_back(
            {{"word", each.text}, {"start", word_start_s}, {"end", word_end_s}, {"probability", each.probability}});
      }
    }
    segments.push_back(HostValue::utf8(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
    history_.insert(history_.end(), segment.tokens.begin(), segment.tokens.end());
  }

  // Both ends of a word lie in one stretch of speech.
  std::pair<double, double> original(const Word& word) const {
    if (!times_) return {word.start_s, word.end_s};
    const double middle_s = (word.start_s + word.end_s) / 2;
    return {times_->original_of(word.start_s, middle_s), times_->original_of(word.end_s, middle_s)};
  }

  // Of a window: what of its text the next one's prompt has.
  void note_end(const WindowAttempt& attempt) {
    if (!options_.condition_on_previous_text || attempt.temperature > options_.prompt_reset_on_temperature)
      history_.clear();
    if (history_.size() > kMaxHistoryTokens) history_.erase(history_.begin(), history_.end() - kMaxHistoryTokens);
  }

  std::shared_ptr<const WhisperConfig> config_;
  const WhisperOptions options_;
  std::vector<std::int32_t> history_;
  std::vector<WindowAttempt> attempts_;  // of the running window
  std::optional<Settled> aligning_;      // whose words' times are not there yet
  std::optional<SpeechTimes> times_;     // where not all is heard
  double last_speech_s_ = 0;             // where the words so far end, as the reference has it
  double last_word_s_ = 0;               // as they were emitted
  int num_segments_ = 0;
};

}  // namespace

std::unique_ptr<decl::HostStage> make_segment_stage(std::shared_ptr<const WhisperConfig> config,
                                                    const decl::RequestParams& params) {
  return std::make_unique<SegmentStage>(std::move(config), params);
}

}  // namespace mstar::models
