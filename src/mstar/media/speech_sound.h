// A recording without its silence.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mstar/media/audio_source.h"
#include "mstar/media/speech_segments.h"

namespace mstar {

// Where there is speech in a recording of 16 kHz samples.
struct FoundSpeech {
  std::vector<SpeechSegment> segments;  // in order; they do not overlap
  std::int64_t num_samples = 0;         // of the recording
};
// Reads the recording to its end. `gives_up`, asked about once a second of sound, ends it as cancelled. Memory does not
// grow with the recording but by its stretches of speech. Cost: about 1 ms a second of sound. Errors: the source's.
Result<FoundSpeech> find_speech(AudioSource& source, std::shared_ptr<const VoiceNetwork> network,
                                const SpeechOptions& options, const std::function<bool()>& gives_up);

// The samples of a recording that lie in `segments`, one after the other. Thread: one owner.
class SpeechSound {
 public:
  SpeechSound(AudioSource source, std::vector<SpeechSegment> segments)
      : source_(std::move(source)), segments_(std::move(segments)) {}
  // As AudioSource::read. What lies between the segments is decoded and dropped: gives up likewise.
  Result<std::size_t> read(std::span<float> out, const std::function<bool()>& gives_up);

 private:
  AudioSource source_;
  std::vector<SpeechSegment> segments_;
  std::size_t next_ = 0;  // segment
  std::int64_t at_ = 0;   // sample of the source
  std::vector<float> dropped_;
};

// Times of such sound in the recording. Source: faster-whisper's SpeechTimestampsMap.
class SpeechTimes {
 public:
  explicit SpeechTimes(const std::vector<SpeechSegment>& segments);
  // Seconds of the recording, to 10 ms. `is_end`: where two stretches meet it is the first one's end.
  double original(double time_s, bool is_end = false) const;
  // Of the stretch that holds `within_s`.
  double original_of(double time_s, double within_s) const;
  double sound_s() const { return ends_.empty() ? 0 : static_cast<double>(ends_.back()) / kVoiceRateHz; }

 private:
  std::size_t stretch_of(double time_s, bool is_end) const;
  std::vector<std::int64_t> ends_;  // of the stretches in the sound without silence
  std::vector<double> silence_s_;   // in front of each
};

}  // namespace mstar
