#include "mstar/live/live_hearing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mstar/text/transcript.h"

namespace mstar {
namespace {

constexpr std::size_t kRate = kVoiceRateHz;
constexpr std::size_t kFresh = kRate * 2 / 5;   // sound that is worth another hearing
constexpr std::size_t kLeastHeard = kRate / 2;  // shorter sound is filled up with silence
constexpr std::size_t kLeastTurn = kRate / 10;
constexpr std::size_t kLongTurn = kRate * 20;     // from here on it is cut where its text has settled
constexpr std::size_t kLongestTurn = kRate * 28;  // and here at any price
constexpr std::size_t kRecent = kRate * 3;        // more than a turn's beginning can lie back
constexpr std::chrono::milliseconds kRetry{500};

}  // namespace

std::string wav_of(std::span<const float> samples) {
  const auto data_bytes = static_cast<std::uint32_t>(samples.size() * 2);
  std::string out;
  out.reserve(44 + data_bytes);
  const auto number = [&](std::uint32_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) out += static_cast<char>(value >> (8 * i) & 255);
  };
  out += "RIFF";
  number(36 + data_bytes, 4);
  out += "WAVEfmt ";
  number(16, 4);
  number(1, 2);
  number(1, 2);
  number(kVoiceRateHz, 4);
  number(2 * kVoiceRateHz, 4);
  number(2, 2);
  number(16, 2);
  out += "data";
  number(data_bytes, 4);
  for (const float x : samples)
    number(static_cast<std::uint32_t>(std::clamp(std::lround(x * 32768.0f), -32768L, 32767L)) & 0xffff, 2);
  return out;
}

// Gathers what one hearing gives. The session may be gone.
class LiveHearing::Sink final : public EventSink {
 public:
  Sink(std::weak_ptr<LiveHearing> hearing, std::uint64_t number) : hearing_(std::move(hearing)), number_(number) {}
  void on_event(RequestEvent event) override {
    if (const auto* const chunk = std::get_if<decl::Chunk>(&event)) {
      if (chunk->format != "segment") return;
      if (auto segment = parse_transcript_segment(chunk->value.text()))
        heard_.push_back({std::move(segment->text), segment->end_s});
      return;
    }
    const auto hearing = hearing_.lock();
    if (!hearing) return;
    auto* const failed = std::get_if<Failed>(&event);
    hearing->on_heard(number_, std::move(heard_), failed ? std::optional(std::move(failed->error)) : std::nullopt);
  }

 private:
  const std::weak_ptr<LiveHearing> hearing_;
  const std::uint64_t number_;
  std::vector<Heard> heard_;
};

LiveHearing::LiveHearing(Frontend& frontend, std::shared_ptr<const VoiceNetwork> network, LiveOptions options,
                         std::function<void(LiveEvent)> tell)
    : frontend_(frontend), network_(std::move(network)), tell_(std::move(tell)) {
  set_options(std::move(options));
}

LiveHearing::~LiveHearing() { close(); }

void LiveHearing::set_options(LiveOptions options) {
  std::lock_guard lock(mutex_);
  options_ = std::move(options);
  if (!options_.turns || !network_) {
    finder_.reset();
  } else if (finder_) {
    finder_->set_options(*options_.turns);
  } else {
    finder_ = std::make_unique<SpeechTurns>(network_, *options_.turns);
  }
}

void LiveHearing::tell(LiveEvent event) {
  if (!closed_) tell_(std::move(event));
}

LiveHearing::Turn& LiveHearing::begin_turn() {
  Turn& turn = turns_.emplace_back();
  turn.id = ++num_turns_;
  turn.fields = options_.fields;
  return turn;
}

void LiveHearing::end_turn(Turn& turn) {
  turn.ended = true;
  tell({.kind = LiveEvent::Kind::committed, .turn = turn.id, .text = {}});
}

void LiveHearing::append(std::span<const float> samples) {
  std::unique_lock lock(mutex_);
  if (closed_) return;
  if (finder_) {
    look_for_turns(samples);
  } else {
    if (turns_.empty() || turns_.back().ended) begin_turn();
    Turn& turn = turns_.back();
    turn.sound.insert(turn.sound.end(), samples.begin(), samples.end());
    turn.num_samples += samples.size();
    now_ += std::ssize(samples);
  }
  hear_next(lock);
}

// In pieces of a frame: an event lies in the piece that made it.
void LiveHearing::look_for_turns(std::span<const float> samples) {
  std::vector<SpeechTurn> found;
  while (!samples.empty()) {
    const auto piece = samples.first(std::min<std::size_t>(samples.size(), kVoiceFrame));
    samples = samples.subspan(piece.size());
    now_ += std::ssize(piece);
    recent_.insert(recent_.end(), piece.begin(), piece.end());
    if (!turns_.empty() && !turns_.back().ended) {
      Turn& turn = turns_.back();
      turn.sound.insert(turn.sound.end(), piece.begin(), piece.end());
      turn.num_samples += piece.size();
    }
    found.clear();
    finder_->push(piece, found);
    for (const SpeechTurn& event : found) {
      const double time_s = static_cast<double>(event.sample) / kRate;
      if (event.begins && (turns_.empty() || turns_.back().ended)) {
        Turn& turn = begin_turn();
        const std::int64_t back = std::clamp<std::int64_t>(now_ - event.sample, 0, std::ssize(recent_));
        turn.sound.assign(recent_.end() - back, recent_.end());
        turn.num_samples = turn.sound.size();
        tell({.kind = LiveEvent::Kind::speech_started, .turn = turn.id, .text = {}, .time_s = time_s});
      } else if (!event.begins && !turns_.empty() && !turns_.back().ended) {
        tell({.kind = LiveEvent::Kind::speech_stopped, .turn = turns_.back().id, .text = {}, .time_s = time_s});
        end_turn(turns_.back());
      }
    }
    if (recent_.size() > 2 * kRecent) recent_.erase(recent_.begin(), recent_.end() - kRecent);
  }
}

bool LiveHearing::commit() {
  std::unique_lock lock(mutex_);
  if (closed_ || turns_.empty() || turns_.back().ended || turns_.back().num_samples < kLeastTurn) return false;
  if (finder_) finder_->end_turn();
  end_turn(turns_.back());
  hear_next(lock);
  return true;
}

void LiveHearing::clear() {
  std::unique_lock lock(mutex_);
  recent_.clear();
  if (finder_) finder_->end_turn();
  if (turns_.empty() || turns_.back().ended) return;
  const std::uint64_t id = turns_.back().id;
  turns_.pop_back();
  std::optional<RequestId> running;
  if (hearing_ && hearing_->turn == id) {
    running = hearing_->request;
    hearing_.reset();
  }
  hear_next(lock);
  lock.unlock();
  if (running) frontend_.abort(*running);
}

void LiveHearing::tick() {
  std::unique_lock lock(mutex_);
  hear_next(lock);
}

void LiveHearing::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  turns_.clear();
  const std::optional<RequestId> running = hearing_ ? hearing_->request : std::nullopt;
  hearing_.reset();
  lock.unlock();
  if (running) frontend_.abort(*running);
}

bool LiveHearing::is_idle() const {
  std::lock_guard lock(mutex_);
  return turns_.empty() && !hearing_;
}

double LiveHearing::backlog_s() const {
  std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const Turn& each : turns_) count += each.sound.size() - std::min(each.num_heard, each.sound.size());
  return static_cast<double>(count) / kRate;
}

// The oldest turn first: its end before the next one's beginning.
void LiveHearing::hear_next(std::unique_lock<std::mutex>& lock) {
  if (closed_ || hearing_ || turns_.empty() || Clock::now() < not_before_) return;
  const Turn& turn = turns_.front();
  if (turn.ended) return submit(lock, turn, turn.sound.size() <= kLongestTurn);
  if (turn.sound.size() >= turn.num_heard + kFresh) submit(lock, turn, false);
}

// What is said of a turn while it goes on comes of hearings without second tries.
void LiveHearing::submit(std::unique_lock<std::mutex>& lock, const Turn& turn, bool is_last) {
  const std::size_t count = std::min(turn.sound.size(), kLongestTurn);
  std::vector<float> sound(turn.sound.begin(), turn.sound.begin() + static_cast<std::ptrdiff_t>(count));
  if (sound.size() < kLeastHeard) sound.resize(kLeastHeard, 0.0f);
  const std::uint64_t number = ++num_hearings_;
  hearing_ = Hearing{.number = number, .turn = turn.id, .num_samples = count, .is_last = is_last, .request = {}};
  decl::ApiRequest request;
  request.route = decl::Route::audio_transcriptions;
  request.model = options_.model;
  request.fields = turn.fields;
  if (!is_last) request.fields.set("temperature_increment_on_fallback", 0.0);
  request.output_modalities = {decl::Modality::text};
  decl::Media media;
  media.modality = decl::Modality::audio;
  media.field = "file";
  media.file_name = "live.wav";
  auto sink = std::make_shared<Sink>(weak_from_this(), number);
  lock.unlock();
  media.bytes = HostValue::shared_blob(std::make_shared<const std::string>(wav_of(sound)));
  request.media.push_back(std::move(media));
  auto id = frontend_.submit(std::move(request), std::move(sink));
  lock.lock();
  const bool waits = hearing_ && hearing_->number == number;
  if (id) {
    if (waits) {
      hearing_->request = *id;
    } else if (closed_) {
      lock.unlock();
      frontend_.abort(*id);
      lock.lock();
    }
    return;
  }
  if (!waits) return;
  hearing_.reset();
  not_before_ = Clock::now() + kRetry;
  if (id.error().code == Code::exhausted || id.error().code == Code::unavailable) return;
  // It will be refused again.
  tell({.kind = LiveEvent::Kind::failed, .turn = turns_.front().id, .text = {}, .error = id.error()});
  turns_.pop_front();
}

void LiveHearing::on_heard(std::uint64_t number, std::vector<Heard> heard, const std::optional<Error>& error) {
  std::unique_lock lock(mutex_);
  if (closed_ || !hearing_ || hearing_->number != number) return;
  const Hearing hearing = *std::exchange(hearing_, std::nullopt);
  if (turns_.empty() || turns_.front().id != hearing.turn) return hear_next(lock);
  Turn& turn = turns_.front();
  if (error) {
    not_before_ = Clock::now() + kRetry;
    if (error->code == Code::unavailable || error->code == Code::exhausted) return;  // tick() tries again
    tell({.kind = LiveEvent::Kind::failed, .turn = turn.id, .text = {}, .error = *error});
    turns_.pop_front();
    return hear_next(lock);
  }
  std::string text;
  for (const Heard& each : heard) text += each.text;
  turn.num_heard = hearing.num_samples;
  if (hearing.is_last) {
    settle(turn, text);
    tell({.kind = LiveEvent::Kind::completed,
          .turn = turn.id,
          .text = turn.told,
          .sound_s = static_cast<double>(turn.num_samples) / kRate});
    turns_.pop_front();
  } else {
    tell_more(turn, turn.text.hear(text));
    if (hearing.num_samples >= kLongTurn) cut(turn, hearing, heard);
  }
  hear_next(lock);
}

// All but the last segment is settled; where there is one only, all of it once it is too long.
void LiveHearing::cut(Turn& turn, const Hearing& hearing, const std::vector<Heard>& heard) {
  std::string text;
  std::size_t end = hearing.num_samples;
  if (heard.size() > 1) {
    for (std::size_t i = 0; i + 1 < heard.size(); ++i) text += heard[i].text;
    const double end_s = heard[heard.size() - 2].end_s;
    end = std::min(end, static_cast<std::size_t>(std::max(0.0, end_s) * static_cast<double>(kRate)));
  } else if (hearing.num_samples < kLongestTurn) {
    return;
  } else if (!heard.empty()) {
    text = heard.front().text;
  }
  if (end == 0) end = hearing.num_samples;
  settle(turn, text);
  turn.sound.erase(turn.sound.begin(), turn.sound.begin() + static_cast<std::ptrdiff_t>(end));
  turn.num_heard = 0;
}

void LiveHearing::settle(Turn& turn, const std::string& text) { tell_more(turn, turn.text.settle(text)); }

void LiveHearing::tell_more(Turn& turn, std::string text) {
  if (turn.told.empty()) text.erase(0, std::min(text.size(), text.find_first_not_of(' ')));
  if (text.empty()) return;
  turn.told += text;
  tell({.kind = LiveEvent::Kind::delta, .turn = turn.id, .text = std::move(text)});
}

}  // namespace mstar
