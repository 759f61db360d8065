#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "mstar/base/log.h"
#include "mstar/server/connection.h"
#include "mstar/server/input_api.h"

namespace mstar::server {
namespace {

using boost::system::error_code;
using std::chrono::steady_clock;

// Small pieces are joined into buffers of about this size.
constexpr std::size_t kJoinBytes = 64 << 10;
// From this size on a text's request is made in the background.
constexpr std::size_t kLongBodyBytes = 16 << 10;

// The route's path, or what is printable of an unknown one.
std::string log_name(const RequestReader& reader) {
  if (!reader.head_parsed()) return "?";
  std::string out = reader.head().method + " ";
  if (reader.match().route) return out.append(reader.match().route->path);
  for (const char c : reader.head().path.substr(0, 100)) out += c > ' ' && c < 0x7F ? c : '?';
  return out;
}

// Those whose prompt may be long.
bool endpoint_reads_text(Endpoint endpoint) {
  return endpoint == Endpoint::chat_completions || endpoint == Endpoint::completions;
}

void submit_choices(Endpoint endpoint, Form form, ServerCore& core, BegunCall& out) {
  auto call = make_call(endpoint, std::move(form), core.frontend, out.request_id);
  if (!call) {
    out.error = to_http(call.error(), Stage::body);
    return;
  }
  for (std::size_t i = 0; i < num_choices(*call); ++i) {
    auto submitted = core.frontend.submit(take_choice(*call, i), std::make_shared<ChoiceSink>(out.exchange, i));
    if (!submitted) {
      out.error = to_http(submitted.error(), Stage::submit);
      return;
    }
    out.choices.push_back(*submitted);
  }
  out.answer = std::move(call->answer);
  out.head_at_once = call->head_at_once;
}

// Parses the call and submits its requests; their events go to `exchange`. Thread: any.
BegunCall begin_call(Endpoint endpoint, Form form, ServerCore& core, std::shared_ptr<Exchange> exchange,
                     std::string request_id) {
  BegunCall out;
  out.exchange = std::move(exchange);
  out.request_id = std::move(request_id);
  try {
    submit_choices(endpoint, std::move(form), core, out);
  } catch (const std::exception& thrown) {  // memory ran out
    out.error = http_error(500, std::string("the request could not be read: ") + thrown.what(), "internal_error");
  }
  return out;
}

}  // namespace

void Connection::set_busy(bool busy) {
  if (busy_ == busy) return;
  busy_ = busy;
  core_->set_busy(busy);
}

void Connection::on_request() {
  request_id_ = reader_.head().request_id;
  if (reader_.error()) return reply_error(*reader_.error(), false);
  if (reader_.head().method == "OPTIONS") return reply(204, {}, {}, nullptr, true);
  const Endpoint endpoint = reader_.match().route->endpoint;
  if (is_call(endpoint)) return on_call();
  Reply answer = endpoint == Endpoint::input
                     ? push_input(reader_.head(), reader_.match().rest, reader_.take_form(), *core_)
                     : answer_at_once(reader_.match(), reader_.take_form(), core_->frontend, core_->metrics);
  HttpError retry;
  retry.retry_after_s = answer.retry_after_s;
  reply(answer.status, answer.content_type, std::move(answer.body), &retry);
}

void Connection::on_call() {
  const Endpoint endpoint = reader_.match().route->endpoint;
  if (peer_done_) {  // nobody waits for an answer, but perhaps for the word that there is none
    auto call = make_call(endpoint, reader_.take_form(), core_->frontend, request_id_);
    return call ? close() : reply_error(to_http(call.error(), Stage::body), false);
  }
  exchange_ = std::make_shared<Exchange>(io_, socket_.get_executor(), weak_from_this());
  core_->metrics.calls_in_flight(1);
  phase_ = Phase::call;
  head_sent_ = false;
  whole_body_.clear();
  choices_.clear();
  // A long prompt takes its time to become tokens, which other connections must not wait for.
  if (endpoint_reads_text(endpoint) && reader_.body_bytes() > kLongBodyBytes) {
    auto form = std::make_shared<Form>(reader_.take_form());
    core_->in_background([self = shared_from_this(), exchange = exchange_, endpoint, form, id = request_id_] {
      auto begun = std::make_shared<BegunCall>(begin_call(endpoint, std::move(*form), *self->core_, exchange, id));
      net::post(self->socket_.get_executor(), [self, begun] {
        self->on_begun(std::move(*begun));
        self->arm_timer();
      });
    });
    return read();
  }
  on_begun(begin_call(endpoint, reader_.take_form(), *core_, exchange_, request_id_));
}

void Connection::on_begun(BegunCall call) {
  if (exchange_ != call.exchange) {  // the client has left meanwhile
    for (const RequestId each : call.choices) core_->frontend.abort(each);
    return;
  }
  request_id_ = std::move(call.request_id);
  choices_ = std::move(call.choices);
  if (call.error) {
    end_call();
    abort_choices();
    return reply_error(*call.error, false);
  }
  answer_ = std::move(call.answer);
  num_open_choices_ = choices_.size();
  call_id_ = choices_.front();
  core_->calls.add(request_id_, call_id_);
  if (call.head_at_once && answer_->streams()) send_head();
  const SteadyTime now = steady_clock::now();
  call_deadline_ = now + config_.request_timeout;
  if (!answer_->keep_alive_frame().empty()) keep_alive_at_ = now + config_.sse_keep_alive;
  read();  // only to see the client go
  on_events();
}

void Connection::on_events() {
  if (!exchange_ || !answer_) return;
  std::string out;
  std::optional<HttpError> error;
  bool finished = false;
  for (auto& [choice, event] : exchange_->take()) {
    Status written;
    if (const auto* chunk = std::get_if<decl::Chunk>(&event)) {
      written = answer_->on_chunk(choice, *chunk, out);
    } else {
      choices_[choice] = RequestId();
      if (const auto* done = std::get_if<Finished>(&event)) {
        written = answer_->on_finished(choice, *done, out);
        finished = --num_open_choices_ == 0;
      } else {
        error = to_http(std::get<Failed>(event).error, Stage::running);
      }
    }
    if (!written) error = to_http(written.error(), Stage::running);
    if (error || finished) break;
  }
  if (error) abort_choices();
  finish_call(error ? &*error : nullptr, finished, std::move(out));
  arm_timer();
}

void Connection::finish_call(const HttpError* error, bool finished, std::string out) {
  const bool last = error || finished;
  if (!answer_->streams()) {
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
  send_stream(std::move(out), last);
}

void Connection::send_head() {
  head_sent_ = true;
  status_ = 200;
  ResponseHead head;
  head.content_type = answer_->content_type();
  // Without chunks the end of the answer is the end of the connection.
  close_after_ = !reader_.head().keep_alive || !config_.keep_alive || core_->draining || reader_.head().version < 11;
  head.keep_alive = !close_after_;
  enqueue(response_head(head, named_head(), config_.cors_origins));
}

// The request's head with the id that its form may have given.
RequestHead Connection::named_head() const {
  RequestHead out = reader_.head();
  if (!request_id_.empty()) out.request_id = request_id_;
  return out;
}

void Connection::send_stream(std::string bytes, bool last) {
  if (bytes.empty() && !last) return;
  if (pending_out_bytes_ > config_.max_pending_out_bytes) {
    abort_call("slow_reader");
    log_warn("{} closed: the client does not read its answer", request_id_);
    return close();
  }
  if (!head_sent_) send_head();
  std::string out;
  if (reader_.head().version >= 11) {
    append_http_chunk(out, bytes, last);
  } else {
    out += bytes;
  }
  if (!answer_->keep_alive_frame().empty() && !last) keep_alive_at_ = steady_clock::now() + config_.sse_keep_alive;
  if (!last) return write_through(std::move(out));
  enqueue(std::move(out));
  end_of_answer();
}

void Connection::send_keep_alive() {
  keep_alive_at_ = steady_clock::now() + config_.sse_keep_alive;
  // A client that reads nothing needs no more of them.
  if (pending_out_bytes_ == 0) send_stream(std::string(answer_->keep_alive_frame()), false);
}

void Connection::end_call() {
  call_deadline_ = keep_alive_at_ = peer_check_at_ = SteadyTime::max();
  if (!exchange_) return;
  exchange_->close();
  exchange_.reset();
  core_->calls.remove(request_id_, call_id_);
  core_->metrics.calls_in_flight(-1);
}

void Connection::abort_call(std::string_view reason) {
  if (!exchange_) return;
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
  enqueue(response_head(head, named_head(), config_.cors_origins));
  if (reader_.head().method != "HEAD" && !body.empty()) enqueue(std::move(body));
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
    const std::string number = call_id_.valid() ? " (request " + std::to_string(call_id_.value) + ")" : "";
    log_info("{}{} {} {} in {:.1f} ms", request_id_, number, log_name(reader_), status_, seconds * 1e3);
  }
  if (!writing_ && out_.empty()) on_flushed();
}

void Connection::enqueue(std::string bytes) {
  pending_out_bytes_ += bytes.size();
  if (!out_.empty() && out_.back().size() + bytes.size() <= kJoinBytes) {
    out_.back() += bytes;
  } else {
    out_.push_back(std::move(bytes));
  }
  write();
}

// A token's way to an idle socket: no operation is set up and no handler comes back. Faults show in the next write.
void Connection::write_through(std::string bytes) {
  if (!writing_ && batch_.empty() && out_.empty()) {
    error_code error;
    const std::size_t written = socket_.write_some(net::buffer(bytes), error);
    if (!error) {
      core_->metrics.sent(written);
      sent_bytes_ += written;
      bytes.erase(0, written);
    }
  }
  if (!bytes.empty()) enqueue(std::move(bytes));
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
