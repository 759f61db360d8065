// From a window's tokens to segments of text, or to another try at a higher temperature.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "mstar/models/whisper/whisper_body.h"
#include "mstar/models/whisper/whisper_options.h"
#include "mstar/models/whisper/whisper_stages.h"

namespace mstar::models {
namespace {

class SegmentStage final : public decl::HostStage {
 public:
  SegmentStage(std::shared_ptr<const WhisperConfig> config, const decl::RequestParams& params)
      : config_(std::move(config)),
        options_(WhisperOptions::read(params.fields).value_or({})),  // checked at intake
        history_(prompt_history(params)) {}

  Result<decl::HostOutputs> run(const decl::HostInputs& inputs) override {
    const auto window = inputs.ports[0].front().as<std::int32_t>();
    const float no_speech = inputs.ports[4].front().as<float>()[0];
    attempts_.push_back(attempt_of(inputs));
    decl::HostOutputs out;
    auto& segments = out.ports.emplace_back();
    const int seek = window[kWindowSeek], segment_frames = window[kWindowSegmentFrames];
    const std::int32_t again[1] = {next_attempt(segment_frames, no_speech)};
    std::int32_t next[1] = {seek};
    if (again[0] < 0) next[0] = seek + close_window(seek, segment_frames, no_speech, segments);
    const std::int32_t language = inputs.ports[1].front().as<std::int32_t>()[0];
    const std::string code = language < 0 ? "en" : WhisperTokens::language_code(*config_->tokenizer, language);
    const float duration_s = inputs.ports.back().front().as<float>()[0];
    out.ports.push_back({HostValue::i32(next)});
    out.ports.push_back({HostValue::i32(history_)});
    out.ports.push_back({HostValue::utf8(code + " " + std::to_string(duration_s))});
    out.ports.push_back({HostValue::i32(again)});
    return out;
  }

 private:
  WindowAttempt attempt_of(const decl::HostInputs& inputs) const {
    WindowAttempt out;
    double score = 0;
    const auto take = [&](const std::vector<HostValue>& ids, const std::vector<HostValue>& scores) {
      for (const HostValue& id : ids) out.tokens.push_back(id.as<std::int32_t>()[0]);
      for (const HostValue& each : scores) score += each.as<float>()[0];
    };
    take(inputs.ports[2], inputs.ports[3]);
    if (inputs.ports.size() > 6) take(inputs.ports[5], inputs.ports[6]);
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

  // Emits what is best of the attempts. How far the next window starts from this one.
  int close_window(int seek, int segment_frames, float no_speech, std::vector<HostValue>& segments) {
    WindowAttempt& last = attempts_.back();
    const double last_temperature = last.temperature;
    const bool none_passed = needs_fallback(options_, last, no_speech);
    WindowAttempt chosen = std::move(none_passed ? attempts_[best_attempt(options_, attempts_)] : last);
    chosen.temperature = last_temperature;  // how far it went, whichever is taken
    attempts_.clear();
    if (segment_frames <= 0 || is_silent(options_, chosen, no_speech)) return std::max(segment_frames, 1);
    const WindowSplit split = split_window(config_->tokens, chosen.tokens, seek, segment_frames);
    emit(split, seek, chosen, no_speech, segments);
    // A model that breaks its rules must not hold a request in place for ever.
    return split.advance_frames > 0 ? split.advance_frames : segment_frames;
  }

  std::string text_of(const std::vector<std::int32_t>& tokens) const {
    std::vector<std::int32_t> words;
    for (const std::int32_t token : tokens)
      if (token < config_->tokens.eot) words.push_back(token);
    return config_->tokenizer->decode(words);
  }

  void emit(const WindowSplit& split, int seek, const WindowAttempt& attempt, float no_speech,
            std::vector<HostValue>& segments) {
    for (const Segment& segment : split.segments) {
      const std::string text = text_of(segment.tokens);
      if (segment.start_s == segment.end_s || without_blanks(text).empty()) continue;
      const nlohmann::json json = {{"id", num_segments_++},
                                   {"seek", seek},
                                   {"start", segment.start_s},
                                   {"end", segment.end_s},
                                   {"text", text},
                                   {"tokens", segment.tokens},
                                   {"temperature", attempt.temperature},
                                   {"avg_logprob", attempt.avg_logprob},
                                   {"compression_ratio", attempt.compression_ratio},
                                   {"no_speech_prob", no_speech}};
      segments.push_back(HostValue::utf8(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
      history_.insert(history_.end(), segment.tokens.begin(), segment.tokens.end());
    }
    if (!options_.condition_on_previous_text || attempt.temperature > options_.prompt_reset_on_temperature)
      history_.clear();
    if (history_.size() > kMaxHistoryTokens) history_.erase(history_.begin(), history_.end() - kMaxHistoryTokens);
  }

  std::shared_ptr<const WhisperConfig> config_;
  const WhisperOptions options_;
  std::vector<std::int32_t> history_;
  std::vector<WindowAttempt> attempts_;  // of the running window
  int num_segments_ = 0;
};

}  // namespace

std::unique_ptr<decl::HostStage> make_segment_stage(std::shared_ptr<const WhisperConfig> config,
                                                    const decl::RequestParams& params) {
  return std::make_unique<SegmentStage>(std::move(config), params);
}

}  // namespace mstar::models
