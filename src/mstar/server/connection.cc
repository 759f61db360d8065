#include "mstar/server/connection.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "mstar/base/log.h"

namespace mstar::server {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a client may take to close after its last answer.
constexpr milliseconds kFarewell{2000};
// How often to look for a client's leave while nothing is read from it.
constexpr milliseconds kPeerCheck{1000};

}  // namespace

Connection::Connection(std::shared_ptr<IoLoop> loop, Socket socket, std::shared_ptr<ServerCore> core)
    : loop_(std::move(loop)),
      core_(std::move(core)),
      config_(core_->config),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      reader_(config_, core_->budget),
      phase_began_(steady_clock::now()),
      body_watch_(config_.body_timeout, config_.min_bytes_per_s, config_.transfer_timeout),
      request_began_(phase_began_),
      write_watch_(config_.write_timeout, config_.min_bytes_per_s, config_.transfer_timeout) {
  core_->metrics.connection_opened();
}

Connection::~Connection() {
  // Reached without close() only when it was refused, or when a handler was lost to an exception.
  lose();
}

void Connection::start() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::closed) return;
    error_code ignored;
    self->socket_.non_blocking(true, ignored);  // for write_through
    self->read();
    self->arm_timer();
  });
}

void Connection::start_turned_away() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::closed) return;
    self->core_->metrics.connection_refused();
    self->begin_request();
    self->reply_error(http_error(503, "too many connections; try again", "overloaded"), true);
    self->arm_timer();
  });
}

void Connection::stop_when_idle() {
  core_->set_busy(true);  // so that nobody takes the server for idle before this is settled
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::head && !self->in_request_) {
      // A request that has arrived already is still answered.
      error_code ignored;
      if (self->socket_.available(ignored) == 0) {
        self->close();
      } else {
        self->begin_request();
      }
    }
    if (const auto session = self->session_.lock()) session->stop();
    self->core_->set_busy(false);
  });
}

void Connection::stop_now() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::closed) return;
    if (const auto session = self->session_.lock()) return session->stop();
    self->abort_call("shutdown");
    self->close();
  });
}

void Connection::read() {
  if (reading_ || phase_ == Phase::closed) return;
  if (peer_done_) {
    if (phase_ == Phase::head || phase_ == Phase::body) on_read_end(true);
    return;
  }
  if (phase_ == Phase::linger) reader_.discard();
  const std::span<char> room = reader_.room();
  if (room.empty()) {  // a client that pipelines without end waits until its current request is answered
    if (phase_ == Phase::call) peer_check_at_ = steady_clock::now() + kPeerCheck;
    return;
  }
  reading_ = true;
  socket_.async_read_some(
      net::buffer(room.data(), room.size()),
      [self = shared_from_this()](const error_code& error, std::size_t bytes) { self->on_read(error, bytes); });
}

void Connection::on_read(const error_code& error, std::size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::closed) return;
  if (error) {
    peer_done_ = true;
    on_read_end(error == net::error::eof);
  } else {
    core_->metrics.received(bytes);
    if (phase_ != Phase::linger) reader_.commit(bytes);
    if (phase_ == Phase::head || phase_ == Phase::body) {
      read_requests();
    } else {
      read();
    }
  }
  arm_timer();
}

void Connection::on_read_end(bool orderly) {
  switch (phase_) {
    case Phase::body:
      if (!orderly) return close();
      return reply_error(http_error(400, "the request's body is cut short", "malformed_http"), true);
    case Phase::call:
      abort_call("client_gone");
      return close();
    case Phase::flush:
      // It may have closed only its sending side.
      if (!orderly) close();
      return;
    case Phase::upgraded:
      return;
    case Phase::head:
    case Phase::linger:
    case Phase::closed:
      return close();
  }
}

void Connection::begin_request() {
  in_request_ = true;
  request_began_ = phase_began_ = steady_clock::now();
  set_busy(true);
}

void Connection::read_requests() {
  while (phase_ == Phase::head || phase_ == Phase::body) {
    const RequestReader::Step step = reader_.advance();
    if (!in_request_ && reader_.started()) begin_request();
    switch (step) {
      case RequestReader::Step::need_more:
        if (phase_ == Phase::body) body_watch_.moved_to(reader_.body_bytes(), steady_clock::now());
        return read();
      case RequestReader::Step::head_done:
        phase_ = Phase::body;
        phase_began_ = steady_clock::now();
        body_watch_.begin(phase_began_, 0);
        if (reader_.head().expect_continue && reader_.buffered_bytes() == 0) enqueue("HTTP/1.1 100 Continue\r\n\r\n");
        break;
      case RequestReader::Step::complete:
        return on_request();
      case RequestReader::Step::failed:
        return reply_error(*reader_.error(), true);
    }
  }
}

void Connection::linger(bool unread_body) {
  if (peer_done_) return close();
  phase_ = Phase::linger;
  phase_began_ = steady_clock::now();
  unread_body_ = unread_body;
  reader_.next();  // what it holds of a refused body is of no more use
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  read();
}

void Connection::close() {
  if (sending_) loop_->flush_sends();
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  set_busy(false);
  end_call();
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  core_->remove(this);
  core_->metrics.connection_closed();
}

void Connection::lose() {
  abort_call("lost");
  close();
}

SteadyTime Connection::read_deadline() const {
  switch (phase_) {
    case Phase::head:
      return phase_began_ + (in_request_ ? config_.header_timeout : config_.idle_timeout);
    case Phase::body:
      return body_watch_.deadline();
    case Phase::linger:
      return phase_began_ + (unread_body_ ? config_.linger_timeout : kFarewell);
    case Phase::call:
    case Phase::flush:
    case Phase::upgraded:
    case Phase::closed:
      break;
  }
  return SteadyTime::max();
}

SteadyTime Connection::write_deadline() const { return writing_ ? write_watch_.deadline() : SteadyTime::max(); }

// What the client's side has of the bytes sent. The socket takes more of them only when a large part of its buffer is
// free again, which a slow reader reaches seldom.
std::size_t Connection::acknowledged_bytes() {
  int queued = 0;
  if (::ioctl(socket_.native_handle(), SIOCOUTQ, &queued) != 0 || queued < 0) queued = 0;
  return sent_bytes_ - std::min(sent_bytes_, static_cast<std::size_t>(queued));
}

void Connection::arm_timer() {
  if (phase_ == Phase::closed) return;
  const SteadyTime next = std::min({read_deadline(), write_deadline(), call_deadline_, keep_alive_at_, peer_check_at_});
  // Waking too early is harmless, so a deadline that moved on needs no new timer.
  if (next >= timer_at_) return;
  timer_at_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->phase_ == Phase::closed) return;
    self->timer_at_ = SteadyTime::max();
    self->check_deadlines();
    self->arm_timer();
  });
}

// No read is pending that would see the client close or, with TCP's keep-alive, vanish.
void Connection::check_peer() {
  peer_check_at_ = SteadyTime::max();
  if (phase_ != Phase::call || reading_) return;
  pollfd peer{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  if (::poll(&peer, 1, 0) > 0 && (peer.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
    peer_done_ = true;
    return on_read_end(false);
  }
  peer_check_at_ = steady_clock::now() + kPeerCheck;
}

void Connection::check_deadlines() {
  const SteadyTime now = steady_clock::now();
  if (now >= write_deadline()) write_watch_.moved_to(acknowledged_bytes(), now);
  if (now >= write_deadline()) {
    abort_call("slow_reader");
    log_warn("{} closed: the client does not read its answer", request_id_);
    return close();
  }
  if (now >= read_deadline()) {
    if (phase_ == Phase::linger || !in_request_) return close();
    return reply_error(http_error(408, "the request took too long to arrive", "request_timeout"), true);
  }
  if (now >= call_deadline_) {
    const std::string limit = std::to_string(config_.request_timeout.count() / 1000) + " s";
    const HttpError error =
        http_error(504,
                   has_events_ ? "the request took longer than " + limit
                               : "the request waited longer than " + limit + " for its turn; try again later",
                   "request_timeout");
    abort_call("timeout");
    std::string nothing;
    return finish_call(&error, false, nothing);
  }
  if (now >= peer_check_at_) check_peer();
  if (now >= keep_alive_at_) send_keep_alive();
}

}  // namespace mstar::server
