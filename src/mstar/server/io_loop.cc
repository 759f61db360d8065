#include "mstar/server/io_loop.h"

#include <boost/asio/post.hpp>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "mstar/base/log.h"
#include "mstar/server/connection.h"

namespace mstar::server {
namespace {

// Frames that leave together: the first waits for the last to be made.
constexpr std::size_t kMaxSends = 64;
// From here on a connection has its say before more events are read: its client may be too slow.
constexpr std::size_t kMaxAnswerBytes = 64 << 10;
// Above these the memory of a batch of events, and of what they make, is given back.
constexpr std::size_t kKeptLetters = 4096;
constexpr std::size_t kKeptBytes = 1 << 20;

void lose(Connection& connection, const std::exception& thrown) {
  log_error("a connection was lost to an exception: {}", thrown.what());
  connection.lose();
}

}  // namespace

IoLoop::IoLoop(Metrics& metrics, bool io_uring, std::chrono::microseconds stays_awake)
    : metrics_(metrics), sends_(io_uring), stays_awake_(stays_awake) {
  senders_.reserve(kMaxSends);
}

void IoLoop::run() {
  for (;;) {
    try {
      context_.run();
      return;
    } catch (const std::exception& thrown) {
      log_error("a connection was lost to an exception: {}", thrown.what());
    }
  }
}

void IoLoop::put(CallSlot call, std::size_t choice, RequestEvent&& event) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    letters_.emplace_back(call, choice, std::move(event));
    if (std::exchange(woken_, true)) return;
  }
  boost::asio::post(context_, [this] { deliver(); });
}

void IoLoop::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  letters_.clear();
}

CallSlot IoLoop::open_call(Connection& connection) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
    called_.reserve(slots_.capacity());
  }
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.connection = &connection;
  return {index, ++slot.generation};
}

void IoLoop::close_call(CallSlot call) {
  slots_[call.index].connection = nullptr;
  free_slots_.push_back(call.index);
}

void IoLoop::stay_awake() {
  if (stays_awake_.count() == 0 || has_open_calls()) return;
  awake_until_ = std::chrono::steady_clock::now() + stays_awake_;
  if (!std::exchange(watching_, true)) boost::asio::post(context_, [this] { watch(); });
}

// Handlers run inside of this one, until there is a call whose events will wake the loop.
void IoLoop::watch() {
  const std::shared_ptr<void> ends(nullptr, [this](void*) { watching_ = false; });
  while (!has_open_calls() && std::chrono::steady_clock::now() < awake_until_)
    if (context_.poll_one() == 0) std::this_thread::yield();
}

void IoLoop::deliver() {
  {
    std::lock_guard lock(mutex_);
    woken_ = false;
    batch_.swap(letters_);
  }
  delivering_ = true;
  began_ = std::chrono::steady_clock::now();
  sort_by_call();
  for (std::size_t i = 0; i < called_.size(); ++i) {
    prefetch(i);
    hand_over(called_[i]);
  }
  flush_sends();
  delivering_ = false;
  called_.clear();
  batch_.clear();
  if (batch_.capacity() > kKeptLetters) batch_.shrink_to_fit();
  if (answer_.capacity() > kKeptBytes) std::string().swap(answer_);
  if (scratch_.capacity() > kKeptBytes) std::string().swap(scratch_);
}

// Chains the letters of each call; those of calls that are over stay out.
void IoLoop::sort_by_call() {
  for (std::uint32_t i = 0; i < batch_.size(); ++i) {
    Slot& slot = slots_[batch_[i].call.index];
    if (!is_open(batch_[i].call)) continue;
    if (slot.first == kNone) {
      slot.first = i;
      called_.push_back(batch_[i].call);
    } else {
      batch_[slot.last].next = i;
    }
    slot.last = i;
  }
}

// A thousand connections do not fit into a core's own cache: theirs are asked for while others are served, and what
// they point to a little later.
void IoLoop::prefetch(std::size_t called) const {
  constexpr std::size_t kFar = 6, kNear = 3;
  const auto at = [&](std::size_t i) -> const Connection* {
    return i < called_.size() ? slots_[called_[i].index].connection : nullptr;
  };
  if (const Connection* const far = at(called + kFar)) far->prefetch();
  if (const Connection* const near = at(called + kNear)) near->prefetch_answer();
}

bool IoLoop::is_open(CallSlot call) const {
  return slots_[call.index].connection != nullptr && slots_[call.index].generation == call.generation;
}

void IoLoop::hand_over(CallSlot call) {
  const std::uint32_t first = std::exchange(slots_[call.index].first, kNone);
  if (!is_open(call)) return;
  const auto connection = slots_[call.index].connection->shared_from_this();
  answer_.clear();
  try {
    for (std::uint32_t i = first; i != kNone && is_open(call); i = batch_[i].next) {
      connection->on_event(batch_[i].choice, std::move(batch_[i].event), answer_);
      if (answer_.size() < kMaxAnswerBytes && batch_[i].next != kNone) continue;
      connection->end_of_events(answer_);
      answer_.clear();
    }
  } catch (const std::exception& thrown) {
    lose(*connection, thrown);
  }
}

void IoLoop::send(Connection& connection, int socket, std::string_view frame) {
  sends_.add(socket, frame);
  senders_.push_back(&connection);
  if (!delivering_ || senders_.size() >= kMaxSends) flush_sends();
}

void IoLoop::flush_sends() {
  if (senders_.empty()) return;
  std::size_t num_bytes = 0;
  const auto& sent = sends_.send();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const std::size_t taken = sent[i].result > 0 ? static_cast<std::size_t>(sent[i].result) : 0;
    num_bytes += taken;
    try {
      senders_[i]->on_sent(sends_.frame(sent[i]), taken);
    } catch (const std::exception& thrown) {
      lose(*senders_[i], thrown);
    }
  }
  if (num_bytes > 0) metrics_.sent(num_bytes);
  senders_.clear();
  sends_.clear();
}

}  // namespace mstar::server
