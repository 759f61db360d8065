// From probabilities of speech to stretches of it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "mstar/media/voice_network.h"

namespace mstar {

// As silero-vad 6.2's get_speech_timestamps has them; its defaults.
struct SpeechOptions {
  double threshold = 0.5;               // from it on a frame is speech
  std::optional<double> neg_threshold;  // below it a frame is silence; without: threshold - 0.15, at least 0.01
  double min_speech_duration_ms = 250;  // what is not longer is dropped
  double max_speech_duration_s = std::numeric_limits<double>::infinity();  // longer speech is cut
  double min_silence_duration_ms = 100;                                    // ends a stretch
  double speech_pad_ms = 30;                                               // is added on both sides
  double min_silence_at_max_speech_ms = 98;
  // Long speech is cut at the longest of its silences, and not at the last one.
  bool cuts_at_longest_silence = true;
};

struct SpeechSegment {
  std::int64_t begin = 0, end = 0;  // samples
  friend bool operator==(const SpeechSegment&, const SpeechSegment&) = default;
};

// A stretch comes out once the next one is certain, for padding is shared out between neighbours. Thread: one owner.
// Memory: a few stretches, and the silences of a stretch whose length is limited.
class SpeechSegments {
 public:
  explicit SpeechSegments(const SpeechOptions& options);
  // The probability of the next frame.
  void push(float probability, std::vector<SpeechSegment>& out);
  // `num_samples`: of the whole sound. Nothing may be pushed after it.
  void finish(std::int64_t num_samples, std::vector<SpeechSegment>& out);

 private:
  struct Silence {
    std::int64_t begin = 0, count = 0;
  };
  bool cut_long_speech(std::int64_t now, std::vector<SpeechSegment>& out);
  void end_speech(std::int64_t end, bool checks_length, std::vector<SpeechSegment>& out);
  void add(SpeechSegment segment, std::vector<SpeechSegment>& out);
  void forget_silences();

  const SpeechOptions options_;
  const double neg_threshold_, min_speech_, max_speech_, min_silence_, pad_, min_silence_at_max_;
  std::int64_t now_ = 0;  // the first sample of the next frame
  bool speaks_ = false;
  std::optional<std::int64_t> begin_;           // of the running stretch
  std::int64_t silence_ = 0;                    // begin of the running silence; 0: none
  std::int64_t last_end_ = 0, next_begin_ = 0;  // of the last silence where it may be cut, and of what follows it
  std::vector<Silence> silences_;               // of the running stretch
  std::optional<SpeechSegment> waiting_;        // its end is not padded yet
};

// Turns of somebody who speaks now: what silero-vad's VADIterator tells, with a threshold of its own for each session.
struct SpeechTurn {
  bool begins = false;
  std::int64_t sample = 0;  // of the session; a begin lies `prefix_padding_ms` before the speech, never before sample 0
};
struct TurnOptions {
  double threshold = 0.5;
  double prefix_padding_ms = 300;
  double silence_duration_ms = 500;
};
class SpeechTurns {
 public:
  SpeechTurns(std::shared_ptr<const VoiceNetwork> network, const TurnOptions& options);
  void push(std::span<const float> samples, std::vector<SpeechTurn>& out);
  // From the next frame on. The sound so far stays heard.
  void set_options(const TurnOptions& options) { options_ = options; }
  bool speaks() const { return speaks_; }
  // Somebody else has ended the turn; the next speech begins another one.
  void end_turn();

 private:
  VoiceDetector detector_;
  TurnOptions options_;
  std::vector<float> probabilities_;
  bool speaks_ = false;
  std::int64_t now_ = 0;                 // the first sample of the next frame
  std::optional<std::int64_t> silence_;  // begin of the running silence of a turn
};

}  // namespace mstar
