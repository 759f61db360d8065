#include "mstar/media/speech_sound.h"

#include <algorithm>
#include <cmath>

namespace mstar {
namespace {

constexpr std::size_t kPiece = kVoiceRateHz;  // samples between two looks whether somebody waits

Error given_up() { return cancelled("the request has ended"); }

}  // namespace

Result<FoundSpeech> find_speech(AudioSource& source, std::shared_ptr<const VoiceNetwork> network,
                                const SpeechOptions& options, const std::function<bool()>& gives_up) {
  FoundSpeech out;
  VoiceDetector detector(std::move(network));
  SpeechSegments segments(options);
  std::vector<float> samples(kPiece), probabilities;
  for (bool ends = false; !ends;) {
    if (gives_up()) return given_up();
    MSTAR_TRY_ASSIGN(const std::size_t count, source.read(samples));
    out.num_samples += static_cast<std::int64_t>(count);
    ends = count < samples.size();
    probabilities.clear();
    detector.push(std::span<const float>(samples).first(count), probabilities);
    if (ends) detector.finish(probabilities);
    for (const float each : probabilities) segments.push(each, out.segments);
  }
  segments.finish(out.num_samples, out.segments);
  return out;
}

Result<std::size_t> SpeechSound::read(std::span<float> out, const std::function<bool()>& gives_up) {
  std::size_t done = 0;
  while (done < out.size() && next_ < segments_.size()) {
    const SpeechSegment& segment = segments_[next_];
    if (at_ < segment.begin) {
      if (gives_up()) return given_up();
      dropped_.resize(std::min(kPiece, static_cast<std::size_t>(segment.begin - at_)));
      MSTAR_TRY_ASSIGN(const std::size_t count, source_.read(dropped_));
      at_ += static_cast<std::int64_t>(count);
      if (count < dropped_.size()) next_ = segments_.size();
      continue;
    }
    const std::size_t wanted = std::min(out.size() - done, static_cast<std::size_t>(segment.end - at_));
    MSTAR_TRY_ASSIGN(const std::size_t count, source_.read(out.subspan(done, wanted)));
    at_ += static_cast<std::int64_t>(count);
    done += count;
    if (at_ >= segment.end) ++next_;
    if (count < wanted) next_ = segments_.size();
  }
  return done;
}

SpeechTimes::SpeechTimes(const std::vector<SpeechSegment>& segments) {
  std::int64_t silence = 0, end = 0;
  for (const SpeechSegment& each : segments) {
    silence += each.begin - end;
    end = each.end;
    ends_.push_back(each.end - silence);
    silence_s_.push_back(static_cast<double>(silence) / kVoiceRateHz);
  }
}

std::size_t SpeechTimes::stretch_of(double time_s, bool is_end) const {
  const auto sample = static_cast<std::int64_t>(time_s * kVoiceRateHz);
  const auto at = is_end ? std::lower_bound(ends_.begin(), ends_.end(), sample)
                         : std::upper_bound(ends_.begin(), ends_.end(), sample);
  return std::min(static_cast<std::size_t>(at - ends_.begin()), ends_.size() - 1);
}

double SpeechTimes::original_of(double time_s, double within_s) const {
  const double silence_s = ends_.empty() ? 0 : silence_s_[stretch_of(within_s, false)];
  return std::round((silence_s + time_s) * 100) / 100;
}

double SpeechTimes::original(double time_s, bool is_end) const {
  const double silence_s = ends_.empty() ? 0 : silence_s_[stretch_of(time_s, is_end)];
  return std::round((silence_s + time_s) * 100) / 100;
}

}  // namespace mstar
