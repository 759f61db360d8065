#include "mstar/media/speech_segments.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mstar {
namespace {

constexpr double kPerMs = kVoiceRateHz / 1000.0;

}  // namespace

SpeechSegments::SpeechSegments(const SpeechOptions& options)
    : options_(options),
      neg_threshold_(options.neg_threshold.value_or(std::max(options.threshold - 0.15, 0.01))),
      min_speech_(options.min_speech_duration_ms * kPerMs),
      max_speech_(options.max_speech_duration_s * kVoiceRateHz - kVoiceFrame - 2 * options.speech_pad_ms * kPerMs),
      min_silence_(options.min_silence_duration_ms * kPerMs),
      pad_(options.speech_pad_ms * kPerMs),
      min_silence_at_max_(options.min_silence_at_max_speech_ms * kPerMs) {}

void SpeechSegments::forget_silences() {
  silence_ = last_end_ = next_begin_ = 0;
  silences_.clear();
}

// Neighbours share the silence between them where it is shorter than their paddings.
void SpeechSegments::add(SpeechSegment segment, std::vector<SpeechSegment>& out) {
  const auto pad = static_cast<double>(pad_);
  if (!waiting_) {
    segment.begin = static_cast<std::int64_t>(std::max(0.0, static_cast<double>(segment.begin) - pad));
  } else {
    const std::int64_t silence = segment.begin - waiting_->end;
    if (static_cast<double>(silence) < 2 * pad) {
      waiting_->end += silence / 2;
      segment.begin = std::max<std::int64_t>(0, segment.begin - silence / 2);
    } else {
      waiting_->end = static_cast<std::int64_t>(static_cast<double>(waiting_->end) + pad);
      segment.begin = static_cast<std::int64_t>(std::max(0.0, static_cast<double>(segment.begin) - pad));
    }
    out.push_back(*waiting_);
  }
  waiting_ = segment;
}

void SpeechSegments::end_speech(std::int64_t end, bool checks_length, std::vector<SpeechSegment>& out) {
  if (begin_ && (!checks_length || static_cast<double>(end - *begin_) > min_speech_)) add({*begin_, end}, out);
  begin_.reset();
}

// True: the frame is done with.
bool SpeechSegments::cut_long_speech(std::int64_t now, std::vector<SpeechSegment>& out) {
  if (options_.cuts_at_longest_silence && !silences_.empty()) {
    const auto longest = std::max_element(silences_.begin(), silences_.end(),
                                          [](const Silence& a, const Silence& b) { return a.count < b.count; });
    end_speech(longest->begin, false, out);
    begin_ = longest->begin + longest->count;
    forget_silences();
    return false;
  }
  if (last_end_ > 0) {
    end_speech(last_end_, false, out);
    speaks_ = next_begin_ >= last_end_;  // else it is silent since
    if (speaks_) begin_ = next_begin_;
    forget_silences();
    return false;
  }
  end_speech(now, false, out);
  speaks_ = false;
  forget_silences();
  return true;
}

void SpeechSegments::push(float probability, std::vector<SpeechSegment>& out) {
  const std::int64_t now = std::exchange(now_, now_ + kVoiceFrame);
  const bool is_speech = static_cast<double>(probability) >= options_.threshold;
  if (is_speech && silence_ > 0) {
    const bool limited = std::isfinite(max_speech_);
    if (limited && static_cast<double>(now - silence_) > min_silence_at_max_)
      silences_.push_back({silence_, now - silence_});
    silence_ = 0;
    if (next_begin_ < last_end_) next_begin_ = now;
  }
  if (is_speech && !speaks_) {
    speaks_ = true;
    begin_ = now;
    return;
  }
  if (speaks_ && begin_ && static_cast<double>(now - *begin_) > max_speech_ && cut_long_speech(now, out)) return;
  if (!(static_cast<double>(probability) < neg_threshold_) || !speaks_) return;
  if (silence_ == 0) silence_ = now;
  const auto count = static_cast<double>(now - silence_);
  if (!options_.cuts_at_longest_silence && count > min_silence_at_max_) last_end_ = silence_;
  if (count < min_silence_) return;
  end_speech(silence_, true, out);
  speaks_ = false;
  forget_silences();
}

void SpeechSegments::finish(std::int64_t num_samples, std::vector<SpeechSegment>& out) {
  if (begin_ && static_cast<double>(num_samples - *begin_) > min_speech_) add({*begin_, num_samples}, out);
  begin_.reset();
  if (!waiting_) return;
  waiting_->end =
      static_cast<std::int64_t>(std::min(static_cast<double>(num_samples), static_cast<double>(waiting_->end) + pad_));
  out.push_back(*waiting_);
  waiting_.reset();
}

SpeechTurns::SpeechTurns(std::shared_ptr<const VoiceNetwork> network, const TurnOptions& options)
    : detector_(std::move(network)), options_(options) {}

void SpeechTurns::push(std::span<const float> samples, std::vector<SpeechTurn>& out) {
  probabilities_.clear();
  detector_.push(samples, probabilities_);
  for (const float probability : probabilities_) {
    const std::int64_t now = std::exchange(now_, now_ + kVoiceFrame);
    const auto p = static_cast<double>(probability);
    if (p >= options_.threshold) silence_.reset();
    if (p >= options_.threshold && !speaks_) {
      speaks_ = true;
      const auto padding = static_cast<std::int64_t>(options_.prefix_padding_ms * kPerMs);
      out.push_back({true, std::max<std::int64_t>(0, now - padding)});
      continue;
    }
    if (!(p < options_.threshold - 0.15) || !speaks_) continue;
    if (!silence_) silence_ = now;
    if (static_cast<double>(now_ - *silence_) < options_.silence_duration_ms * kPerMs) continue;
    end_turn();
    out.push_back({false, now_});
  }
}

void SpeechTurns::end_turn() {
  speaks_ = false;
  silence_.reset();
}

}  // namespace mstar
