// One thread of the HTTP server: its event loop, the runtime's events for the calls of its connections, and what these
// send at the same time.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mstar/conductor/frontend.h"
#include "mstar/server/metrics.h"
#include "mstar/server/send_batch.h"

namespace mstar::server {

class Connection;

// A call of a connection of one loop; never the same twice. The default one is none.
struct CallSlot {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  bool operator==(const CallSlot&) const = default;
  bool valid() const { return generation != 0; }
};

// Owners: the server, its connections and their sinks. Events may come when the server is gone: they are dropped.
class IoLoop final {
 public:
  // `metrics` must live while the loop runs. `stays_awake`: for that long after its last open call has ended the loop
  // looks for the next request without sleeping, for the client may send it at once.
  IoLoop(Metrics& metrics, bool io_uring, std::chrono::microseconds stays_awake = {});

  // Runs the loop until it has no work left. What a library throws ends the handler that met it.
  void run();
  boost::asio::io_context& context() { return context_; }

  // Thread: any. Queues the event of a call and wakes the loop, once for all events that it has not seen.
  void put(CallSlot call, std::size_t choice, RequestEvent&& event);
  // Thread: any. Later events are dropped.
  void close();

  // The rest on the loop's thread.
  // `connection` gets the events that are put to this call, until it closes it.
  CallSlot open_call(Connection& connection);
  void close_call(CallSlot call);
  // After an answer was sent.
  void stay_awake();
  // Sends on an idle socket, together with what others send on account of the events in hand. The connection's
  // on_sent() follows, at the latest in flush_sends().
  void send(Connection& connection, int socket, std::string_view frame);
  void flush_sends();
  // While events are delivered it is the time when that began.
  std::chrono::steady_clock::time_point now() const { return delivering_ ? began_ : std::chrono::steady_clock::now(); }
  // Emptied; for one frame at a time.
  std::string& scratch() {
    scratch_.clear();
    return scratch_;
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Letter {
    Letter(CallSlot to, std::size_t of, RequestEvent&& what)
        : call(to), choice(static_cast<std::uint32_t>(of)), event(std::move(what)) {}
    CallSlot call;
    std::uint32_t choice;
    std::uint32_t next = kNone;  // of the same call, in the batch
    RequestEvent event;
  };
  struct Slot {
    Connection* connection = nullptr;  // null: no call
    std::uint32_t generation = 0;
    std::uint32_t first = kNone, last = kNone;  // its letters in the batch
  };

  void deliver();
  void prefetch(std::size_t called) const;
  void sort_by_call();
  void hand_over(CallSlot call);
  bool is_open(CallSlot call) const;
  bool has_open_calls() const { return free_slots_.size() != slots_.size(); }
  void watch();

  Metrics& metrics_;
  boost::asio::io_context context_{1};

  std::mutex mutex_;  // guards the next three
  std::vector<Letter> letters_;
  bool woken_ = false;
  bool closed_ = false;

  std::vector<Letter> batch_;  // being delivered
  std::vector<CallSlot> called_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  bool delivering_ = false;
  std::chrono::steady_clock::time_point began_;  // to deliver
  SendBatch sends_;
  std::vector<Connection*> senders_;
  std::string answer_;  // what the events of one call make
  std::string scratch_;
  const std::chrono::microseconds stays_awake_;
  std::chrono::steady_clock::time_point awake_until_;
  bool watching_ = false;
};

}  // namespace mstar::server
