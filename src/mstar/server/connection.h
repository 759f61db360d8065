// One client connection: reads requests one after the other, hands them on, writes the answers.
#pragma once

#include <atomic>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mstar/server/answer.h"
#include "mstar/server/endpoints.h"
#include "mstar/server/io_loop.h"
#include "mstar/server/realtime_session.h"
#include "mstar/server/request_reader.h"
#include "mstar/server/response_head.h"
#include "mstar/server/server_core.h"
#include "mstar/server/transfer_watch.h"

namespace mstar::server {

namespace net = boost::asio;
using Executor = net::io_context::executor_type;
using Socket = net::basic_stream_socket<net::ip::tcp, Executor>;
using Timer =
    net::basic_waitable_timer<std::chrono::steady_clock, net::wait_traits<std::chrono::steady_clock>, Executor>;

// A call in flight, for those who work for it on other threads.
class OpenCall final {
 public:
  explicit OpenCall(CallSlot in) : slot(in) {}
  void close() { closed_ = true; }
  bool closed() const { return closed_; }  // any: nobody waits for it any more
  const CallSlot slot;                     // for its events

 private:
  std::atomic<bool> closed_{false};
};

// The runtime's end of one choice. It may outlive the connection and the server.
class ChoiceSink final : public EventSink {
 public:
  ChoiceSink(std::shared_ptr<IoLoop> loop, CallSlot call, std::size_t choice)
      : loop_(std::move(loop)), call_(call), choice_(choice) {}
  void on_event(RequestEvent event) override { loop_->put(call_, choice_, std::move(event)); }

 private:
  const std::shared_ptr<IoLoop> loop_;
  const CallSlot call_;
  const std::size_t choice_;
};

struct ChoiceEvent {
  std::size_t choice;
  RequestEvent event;
};

// What a call's body asks for, or why it asks for nothing.
struct ParsedCall {
  std::string request_id;
  std::optional<Call> call;
  std::optional<HttpError> error;
};

// Thread: all of it runs on its loop, but for the functions marked "any", which post to it.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<IoLoop> loop, Socket socket, std::shared_ptr<ServerCore> core);
  ~Connection();

  void start();              // any; once
  void start_turned_away();  // any; once: says 503 and closes
  void stop_when_idle();     // any
  void stop_now();           // any; aborts a call in flight

  // By the loop: an event of the call, and the end of those in hand. `out` collects the answer's bytes in between.
  void on_event(std::size_t choice, RequestEvent&& event, std::string& out);
  void end_of_events(std::string& out);
  // What became of a frame given to IoLoop::send().
  void on_sent(std::string_view frame, std::size_t num_sent);
  void lose();  // after an exception
  // Ask for the memory that an event will touch: first the connection's, then its answer's.
  void prefetch() const;
  void prefetch_answer() const { __builtin_prefetch(answer_.get()); }

 private:
  enum class Phase { head, body, call, flush, linger, upgraded, closed };

  // connection.cc: reading and time
  void read();
  void on_read(const boost::system::error_code& error, std::size_t bytes);
  void on_read_end(bool orderly);
  void read_requests();
  void begin_request();
  void linger(bool unread_body);
  void close();
  SteadyTime read_deadline() const;
  SteadyTime write_deadline() const;
  std::size_t acknowledged_bytes();
  void arm_timer();
  void check_deadlines();
  void check_peer();

  // connection_call.cc: requests and calls
  void on_request();
  bool is_long_work(Endpoint endpoint) const;
  void on_upgrade();
  bool is_foreign_page() const;
  void begin_call();
  void on_long_work();
  void on_call(Endpoint endpoint);
  void in_background(std::function<void()> work);
  void on_parsed(const std::shared_ptr<OpenCall>& call, ParsedCall& parsed);
  void on_submitted(const std::shared_ptr<OpenCall>& call, Result<std::vector<RequestId>> choices, bool head_at_once);
  void give(Reply answer);

  // connection_answer.cc: answers and writing
  void reply(int status, std::string_view content_type, std::string body, const HttpError* error = nullptr,
             bool preflight = false);
  void reply_error(const HttpError& error, bool must_close);
  void end_of_answer();
  void send_head();  // of a streamed answer
  RequestHead named_head() const;
  void send_stream(std::string_view bytes, bool last);
  void finish_call(const HttpError* error, bool finished, std::string& out);
  void end_call();
  void abort_choices();
  void abort_call(std::string_view reason);
  void send_keep_alive();
  void enqueue(std::string bytes);
  void write_through(std::string_view bytes);
  void write();
  void on_written(const boost::system::error_code& error, std::size_t bytes);
  void on_flushed();
  void set_busy(bool busy);

  const std::shared_ptr<IoLoop> loop_;  // first in, last out: what follows lives on it
  const std::shared_ptr<ServerCore> core_;
  const ServerConfig& config_;

  // What each event of a call touches: together, for the cache.
  Phase phase_ = Phase::head;
  bool has_events_ = false;  // something came of the runtime
  bool head_sent_ = false;   // of a streamed answer
  bool in_chunks_ = false;   // HTTP's, which that answer has
  bool writing_ = false;
  bool sending_ = false;                  // a frame is with the loop
  std::shared_ptr<OpenCall> call_;        // null: no call in flight
  std::unique_ptr<AnswerWriter> answer_;  // null: the call's body has not been read
  std::vector<RequestId> choices_;        // invalid where a choice has ended; empty before the runtime has them
  std::size_t num_open_choices_ = 0;
  std::unique_ptr<HttpError> fault_;        // of a choice: the call ends
  std::weak_ptr<RealtimeSession> session_;  // of an upgraded connection, which it keeps
  SteadyTime timer_at_ = SteadyTime::max();
  SteadyTime call_deadline_ = SteadyTime::max();
  SteadyTime keep_alive_at_ = SteadyTime::max();
  SteadyTime peer_check_at_ = SteadyTime::max();
  std::size_t pending_out_bytes_ = 0;  // of out_ and batch_
  std::size_t sent_bytes_ = 0;         // given to the socket, since the connection began
  Socket socket_;

  Timer timer_;
  RequestReader reader_;
  SteadyTime phase_began_;  // for the read deadlines
  TransferWatch body_watch_;
  bool reading_ = false;     // a read is pending
  bool peer_done_ = false;   // it sends no more
  bool in_request_ = false;  // its first byte was seen
  bool busy_ = false;
  bool close_after_ = false;  // the connection ends with the current answer
  bool unread_body_ = false;
  SteadyTime request_began_;
  int status_ = 0;  // of the current answer
  std::string request_id_;
  RequestId call_id_;              // of the call's first choice
  std::vector<ChoiceEvent> held_;  // what came before choices_
  std::string whole_body_;         // of an answer that does not stream

  std::deque<std::string> out_;    // not handed to the socket yet
  std::deque<std::string> batch_;  // being written
  std::size_t batch_offset_ = 0;   // written bytes of its front
  TransferWatch write_watch_;      // of the batch
};

}  // namespace mstar::server
