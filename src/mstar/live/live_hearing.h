// Somebody who speaks now, heard while they speak: turns of speech, text that grows, its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mstar/conductor/frontend.h"
#include "mstar/live/live_text.h"
#include "mstar/media/speech_segments.h"

namespace mstar {

struct LiveOptions {
  std::string model;
  Params fields;                     // of each hearing, such as language and prompt
  std::optional<TurnOptions> turns;  // found by voice activity; without, commit() ends a turn
};

struct LiveEvent {
  enum class Kind : std::uint8_t {
    speech_started,
    speech_stopped,
    committed,  // the turn has ended and is heard to its end
    delta,      // more of its text, for good
    completed,  // text: all of its deltas
    failed
  };
  Kind kind = Kind::delta;
  std::uint64_t turn = 0;  // counts from 1
  std::string text;
  double time_s = 0;   // of speech_started and speech_stopped, since the first sample
  double sound_s = 0;  // of completed: what the turn took
  Error error = {};    // of failed
};

// Sound comes in, events go out. The turn that is spoken is heard again and again as it grows, one hearing at a time,
// and at last as a whole; a long one is cut where its text has settled. Each hearing is a request like others. One that
// finds no place is tried again. Memory: the sound that is not settled; see backlog_s().
// Thread: any. `tell` is called with a lock held: it must not block nor call back.
class LiveHearing final : public std::enable_shared_from_this<LiveHearing> {
 public:
  // `frontend` outlives it, or close() came before its end. `network` may be null without turns.
  LiveHearing(Frontend& frontend, std::shared_ptr<const VoiceNetwork> network, LiveOptions options,
              std::function<void(LiveEvent)> tell);
  ~LiveHearing();

  // Samples of kVoiceRateHz.
  void append(std::span<const float> samples);
  // Ends the turn. False when there is none of at least 0.1 s.
  bool commit();
  // Forgets the sound of the turn.
  void clear();
  // From the next sound on. Turns that run keep what they are.
  void set_options(LiveOptions options);
  // Tries again what found no place; to be called a few times a second.
  void tick();
  // No events after it; what runs is aborted.
  void close();
  // Whether all turns are over and told.
  bool is_idle() const;
  // Sound that waits to be heard.
  double backlog_s() const;

 private:
  using Clock = std::chrono::steady_clock;
  class Sink;
  struct Heard {
    std::string text;
    double end_s = 0;
  };
  struct Turn {
    std::uint64_t id = 0;
    std::vector<float> sound;   // not settled yet
    std::size_t num_heard = 0;  // samples of it that the last hearing had
    std::size_t num_samples = 0;
    bool ended = false;
    LiveText text;
    std::string told;
    Params fields;
  };
  struct Hearing {
    std::uint64_t number = 0, turn = 0;
    std::size_t num_samples = 0;
    bool is_last = false;
    std::optional<RequestId> request;
  };

  Turn& begin_turn();
  void end_turn(Turn& turn);
  void look_for_turns(std::span<const float> samples);
  void hear_next(std::unique_lock<std::mutex>& lock);
  void submit(std::unique_lock<std::mutex>& lock, const Turn& turn, bool is_last);
  void on_heard(std::uint64_t number, std::vector<Heard> heard, const std::optional<Error>& error);
  void cut(Turn& turn, const Hearing& hearing, const std::vector<Heard>& heard);
  void settle(Turn& turn, const std::string& text);
  void tell_more(Turn& turn, std::string text);
  void tell(LiveEvent event);

  Frontend& frontend_;
  const std::shared_ptr<const VoiceNetwork> network_;
  const std::function<void(LiveEvent)> tell_;
  mutable std::mutex mutex_;  // guards the rest
  LiveOptions options_;
  std::unique_ptr<SpeechTurns> finder_;
  std::vector<float> recent_;  // sound in front of the next turn
  std::int64_t now_ = 0;       // samples so far
  std::deque<Turn> turns_;     // the last one may go on
  std::optional<Hearing> hearing_;
  std::uint64_t num_turns_ = 0, num_hearings_ = 0;
  Clock::time_point not_before_ = {};
  bool closed_ = false;
};

// 16-bit mono WAV of kVoiceRateHz.
std::string wav_of(std::span<const float> samples);

}  // namespace mstar
