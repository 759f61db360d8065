#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

#include "mstar/base/log.h"
#include "mstar/server/connection.h"

namespace mstar::server {
namespace {

using boost::system::error_code;
using std::chrono::steady_clock;

// Small pieces are joined into buffers of about this size.
constexpr std::size_t kJoinBytes = 64 << 10;

// The route's path, or what is printable of an unknown one.
std::string log_name(const RequestReader& reader) {
  if (!reader.head_parsed()) return "?";
  std::string out = reader.head().method + " ";
  if (reader.match().route) return out.append(reader.match().route->path);
  for (const char c : reader.head().path.substr(0, 100)) out += c > ' ' && c < 0x7F ? c : '?';
  return out;
}

}  // namespace

void Connection::prefetch() const {
  const auto* const begin = reinterpret_cast<const char*>(this);
  const auto* const end = reinterpret_cast<const char*>(&socket_ + 1);
  constexpr std::ptrdiff_t kLine = 64;
  for (const char* line = begin; line < end; line += kLine) __builtin_prefetch(line, 1);
}

void Connection::set_busy(bool busy) {
  if (busy_ == busy) return;
  busy_ = busy;
  core_->set_busy(busy);
}

void Connection::finish_call(const HttpError* error, bool finished, std::string& out) {
  const bool last = error || finished;
  if (!answer_ || !answer_->streams()) {
    whole_body_ += out;
    if (!last) return;
    end_call();
    if (error) return reply_error(*error, false);
    return reply(200, answer_->content_type(), std::move(whole_body_));
  }
  if (last) end_call();
  if (error && !head_sent_ && out.empty()) return reply_error(*error, false);
  if (error) {
    answer_->on_failed(*error, out);
    log_warn("{} {} failed after its answer had begun: {} {}", request_id_, log_name(reader_), error->status,
             error->message);
  }
  send_stream(out, last);
}

void Connection::send_head() {
  head_sent_ = true;
  status_ = 200;
  ResponseHead head;
  head.content_type = answer_->content_type();
  // Without chunks the end of the answer is the end of the connection.
  in_chunks_ = reader_.head().version >= 11;
  close_after_ = !reader_.head().keep_alive || !config_.keep_alive || core_->draining || !in_chunks_;
  head.keep_alive = !close_after_;
  enqueue(response_head(head, named_head(), config_.cors_origins));
}

// The request's head with the id that its form may have given.
RequestHead Connection::named_head() const {
  RequestHead out = reader_.head();
  if (!request_id_.empty()) out.request_id = request_id_;
  return out;
}

void Connection::send_stream(std::string_view bytes, bool last) {
  if (bytes.empty() && !last) return;
  if (pending_out_bytes_ > config_.max_pending_out_bytes) {
    abort_call("slow_reader");
    log_warn("{} closed: the client does not read its answer", request_id_);
    return close();
  }
  if (!head_sent_) send_head();
  std::string& frame = loop_->scratch();
  if (in_chunks_) {
    append_http_chunk(frame, bytes, last);
  } else {
    frame += bytes;
  }
  if (!answer_->keep_alive_frame().empty() && !last) keep_alive_at_ = loop_->now() + config_.sse_keep_alive;
  if (!last) return write_through(frame);
  enqueue(frame);
  end_of_answer();
}

void Connection::send_keep_alive() {
  keep_alive_at_ = steady_clock::now() + config_.sse_keep_alive;
  // A client that reads nothing needs no more of them.
  if (pending_out_bytes_ == 0) send_stream(answer_->keep_alive_frame(), false);
}

void Connection::end_call() {
  call_deadline_ = keep_alive_at_ = peer_check_at_ = SteadyTime::max();
  if (!call_) return;
  call_->close();
  loop_->close_call(call_->slot);
  call_.reset();
  held_.clear();
  core_->calls.remove(request_id_, call_id_);
  core_->metrics.calls_in_flight(-1);
}

void Connection::abort_call(std::string_view reason) {
  if (!call_) return;
  end_call();
  core_->metrics.request_aborted(reason);
  log_info("{} {} aborted: {}", request_id_, log_name(reader_), reason);
  abort_choices();
}

// A call stands and falls with each of its choices.
void Connection::abort_choices() {
  for (RequestId& each : choices_)
    if (each.valid()) core_->frontend.abort(std::exchange(each, RequestId()));
}

void Connection::reply(int status, std::string_view content_type, std::string body, const HttpError* error,
                       bool preflight) {
  status_ = status;
  const bool parsed = reader_.head_parsed();
  close_after_ = close_after_ || !parsed || !reader_.head().keep_alive || !config_.keep_alive || core_->draining;
  ResponseHead head;
  head.status = status;
  head.content_type = content_type;
  head.content_length = body.size();
  head.keep_alive = !close_after_;
  head.preflight = preflight;
  if (preflight) head.allow = reader_.match().allow;
  if (error) {
    head.retry_after_s = error->retry_after_s;
    head.allow = error->allow;
  }
  std::string answer = response_head(head, named_head(), config_.cors_origins);
  if (reader_.head().method == "HEAD") body.clear();
  // In one piece where that is cheap: the client would be woken by each.
  if (answer.size() + body.size() <= kJoinBytes) answer.append(std::exchange(body, {}));
  enqueue(std::move(answer));
  if (!body.empty()) enqueue(std::move(body));
  end_of_answer();
}

void Connection::reply_error(const HttpError& error, bool must_close) {
  if (must_close) {
    close_after_ = true;
    unread_body_ = true;
  }
  if (request_id_.empty()) request_id_ = reader_.head().request_id;
  if (error.status >= 500) log_warn("{} {} failed: {} {}", request_id_, log_name(reader_), error.status, error.message);
  reply(error.status, "application/json", error_body(error), &error);
}

void Connection::end_of_answer() {
  phase_ = Phase::flush;
  const double seconds = std::chrono::duration<double>(steady_clock::now() - request_began_).count();
  const ApiRoute* route = reader_.match().route;
  core_->metrics.request_done(route ? route->path : "other", status_, seconds);
  if (!route || is_call(route->endpoint)) {
    loop_->stay_awake();
    const std::string number = call_id_.valid() ? " (request " + std::to_string(call_id_.value) + ")" : "";
    log_info("{}{} {} {} in {:.1f} ms", request_id_, number, log_name(reader_), status_, seconds * 1e3);
  }
  if (!writing_ && out_.empty()) on_flushed();
}

void Connection::enqueue(std::string bytes) {
  if (sending_) loop_->flush_sends();
  pending_out_bytes_ += bytes.size();
  if (!out_.empty() && out_.back().size() + bytes.size() <= kJoinBytes) {
    out_.back() += bytes;
  } else {
    out_.push_back(std::move(bytes));
  }
  write();
}

// A token's way to an idle socket: no operation is set up and no handler comes back.
void Connection::write_through(std::string_view bytes) {
  if (writing_ || sending_ || pending_out_bytes_ > 0) return enqueue(std::string(bytes));
  sending_ = true;
  loop_->send(*this, socket_.native_handle(), bytes);
}

// Faults show in the next write.
void Connection::on_sent(std::string_view frame, std::size_t num_sent) {
  sending_ = false;
  sent_bytes_ += num_sent;
  if (num_sent < frame.size()) enqueue(std::string(frame.substr(num_sent)));
}

void Connection::write() {
  if (writing_ || phase_ == Phase::closed) return;
  if (batch_.empty()) {
    if (out_.empty()) return;
    batch_.swap(out_);
    batch_offset_ = 0;
    write_watch_.begin(steady_clock::now(), acknowledged_bytes());
  }
  constexpr std::size_t kMaxBuffers = 16;
  std::vector<net::const_buffer> buffers;
  for (std::size_t i = 0; i < batch_.size() && i < kMaxBuffers; ++i) {
    const std::size_t skip = i == 0 ? batch_offset_ : 0;
    buffers.emplace_back(batch_[i].data() + skip, batch_[i].size() - skip);
  }
  writing_ = true;
  socket_.async_write_some(buffers, [self = shared_from_this()](const error_code& error, std::size_t bytes) {
    self->on_written(error, bytes);
  });
}

void Connection::on_written(const error_code& error, std::size_t bytes) {
  writing_ = false;
  if (phase_ == Phase::closed) return;
  if (error) {
    abort_call("client_gone");
    return close();
  }
  core_->metrics.sent(bytes);
  pending_out_bytes_ -= bytes;
  sent_bytes_ += bytes;
  for (std::size_t left = bytes; !batch_.empty();) {
    const std::size_t rest = batch_.front().size() - batch_offset_;
    if (left < rest) {
      batch_offset_ += left;
      break;
    }
    left -= rest;
    batch_.pop_front();
    batch_offset_ = 0;
  }
  write();
  if (!writing_ && phase_ == Phase::flush) on_flushed();
  arm_timer();
}

void Connection::on_flushed() {
  set_busy(false);
  in_request_ = false;
  request_id_.clear();
  call_id_ = RequestId();
  answer_.reset();
  if (close_after_ || core_->draining) return linger(unread_body_);
  reader_.next();
  phase_ = Phase::head;
  phase_began_ = steady_clock::now();
  read_requests();
}

}  // namespace mstar::server
