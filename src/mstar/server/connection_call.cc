// From a request to the runtime and back: what is read at once, what in the background, a call's events.
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "mstar/server/connection.h"
#include "mstar/server/input_api.h"

namespace mstar::server {
namespace {

using std::chrono::steady_clock;

// From this size on a body is read in the background.
constexpr std::size_t kLongBodyBytes = 16 << 10;

HttpError thrown_error(const std::exception& thrown) {  // memory ran out
  return http_error(500, std::string("the request could not be read: ") + thrown.what(), "internal_error");
}

Reply refusal(const HttpError& error) { return {error.status, "application/json", error_body(error)}; }

// Thread: any.
ParsedCall parse_call(Endpoint endpoint, Form form, const ServerCore& core, std::string request_id) {
  ParsedCall out;
  out.request_id = std::move(request_id);
  try {
    auto call = make_call(endpoint, std::move(form), core.frontend, out.request_id);
    if (call) {
      out.call = std::move(*call);
    } else {
      out.error = to_http(call.error(), Stage::body);
    }
  } catch (const std::exception& thrown) {
    out.error = thrown_error(thrown);
  }
  return out;
}

// Gives the runtime all choices of a call, whose events go to `exchange`. Thread: any.
Result<std::vector<RequestId>> submit_choices(Call& call, ServerCore& core, const std::shared_ptr<Exchange>& exchange) {
  try {
    CallRequests asked;
    for (std::size_t i = 0; i < num_choices(call); ++i)
      asked.sinks.push_back(std::make_shared<ChoiceSink>(exchange, i));
    asked.requests = std::move(call.requests);
    asked.choices_per_request = call.choices_per_request;
    asked.wanted = [exchange] { return !exchange->closed(); };
    return core.frontend.submit_call(std::move(asked));
  } catch (const std::exception& thrown) {
    return internal_error(std::string("the request could not be read: ") + thrown.what());
  }
}

}  // namespace

void Connection::on_request() {
  request_id_ = reader_.head().request_id;
  if (reader_.error()) return reply_error(*reader_.error(), false);
  if (reader_.head().method == "OPTIONS") return reply(204, {}, {}, nullptr, true);
  const Endpoint endpoint = reader_.match().route->endpoint;
  if (is_call(endpoint)) return on_call(endpoint);
  if (is_long_work(endpoint)) return on_long_work();
  Reply answer;
  try {
    answer = endpoint == Endpoint::input
                 ? push_input(reader_.head(), reader_.match().rest, reader_.take_form(), *core_)
                 : answer_at_once(reader_.match(), reader_.take_form(), core_->frontend, core_->metrics);
  } catch (const std::exception& thrown) {
    answer = refusal(thrown_error(thrown));
  }
  give(std::move(answer));
}

void Connection::give(Reply answer) {
  HttpError retry;
  retry.retry_after_s = answer.retry_after_s;
  reply(answer.status, answer.content_type, std::move(answer.body), &retry);
}

// Other connections must not wait for it.
bool Connection::is_long_work(Endpoint endpoint) const {
  return is_work(endpoint) && reader_.body_bytes() > kLongBodyBytes;
}

// From here on the request has its time-out, and the client's leave ends it.
void Connection::begin_call() {
  exchange_ = std::make_shared<Exchange>(io_, socket_.get_executor(), weak_from_this());
  core_->metrics.calls_in_flight(1);
  phase_ = Phase::call;
  head_sent_ = false;
  has_events_ = false;
  whole_body_.clear();
  choices_.clear();
  call_deadline_ = steady_clock::now() + config_.request_timeout;
}

void Connection::on_long_work() {
  begin_call();
  auto form = std::make_shared<Form>(reader_.take_form());
  core_->in_background([self = shared_from_this(), exchange = exchange_, match = reader_.match(), form] {
    if (exchange->closed()) return;
    auto answer = std::make_shared<Reply>();
    try {
      *answer = answer_at_once(match, *form, self->core_->frontend, self->core_->metrics);
    } catch (const std::exception& thrown) {
      *answer = refusal(thrown_error(thrown));
    }
    net::post(self->socket_.get_executor(), [self, exchange, answer] {
      if (self->exchange_ != exchange) return;
      self->end_call();
      self->give(std::move(*answer));
      self->arm_timer();
    });
  });
  read();  // only to see the client go
}

void Connection::on_call(Endpoint endpoint) {
  const bool in_background = is_long_work(endpoint);
  begin_call();
  auto form = std::make_shared<Form>(reader_.take_form());
  // Without a client nobody waits for an answer, but perhaps for the word that there is none.
  auto work = [self = shared_from_this(), exchange = exchange_, endpoint, form, id = request_id_,
               wanted = !peer_done_] {
    if (exchange->closed()) return;
    const auto parsed = std::make_shared<ParsedCall>(parse_call(endpoint, std::move(*form), *self->core_, id));
    const bool goes_on = wanted && parsed->call;
    // Before the runtime's first event, which takes the same way.
    net::dispatch(self->socket_.get_executor(), [self, exchange, parsed] { self->on_parsed(exchange, *parsed); });
    if (!goes_on) return;
    auto choices =
        std::make_shared<Result<std::vector<RequestId>>>(submit_choices(*parsed->call, *self->core_, exchange));
    net::dispatch(self->socket_.get_executor(), [self, exchange, parsed, choices] {
      self->on_submitted(exchange, std::move(*choices), parsed->call->head_at_once);
    });
  };
  if (!in_background) return work();
  core_->in_background(std::move(work));
  read();
}

void Connection::on_parsed(const std::shared_ptr<Exchange>& exchange, ParsedCall& parsed) {
  if (exchange_ != exchange) return;  // the client has left meanwhile, or its time is over
  request_id_ = parsed.request_id;
  if (parsed.error) {
    end_call();
    reply_error(*parsed.error, false);
  } else if (peer_done_) {
    close();
  } else {
    answer_ = std::move(parsed.call->answer);
    if (!answer_->keep_alive_frame().empty()) keep_alive_at_ = steady_clock::now() + config_.sse_keep_alive;
  }
  arm_timer();
}

void Connection::on_submitted(const std::shared_ptr<Exchange>& exchange, Result<std::vector<RequestId>> choices,
                              bool head_at_once) {
  if (exchange_ != exchange) {
    for (const RequestId each : choices ? *choices : std::vector<RequestId>()) core_->frontend.abort(each);
    return;
  }
  if (!choices) {
    const HttpError error = to_http(choices.error(), Stage::submit);
    finish_call(&error, false, {});
    return arm_timer();
  }
  choices_ = std::move(*choices);
  num_open_choices_ = choices_.size();
  call_id_ = choices_.front();
  core_->calls.add(request_id_, call_id_);
  if (head_at_once && answer_->streams() && !head_sent_) send_head();
  read();  // only to see the client go
  on_events();
}

void Connection::on_events() {
  if (!exchange_ || choices_.empty()) return;
  std::string out;
  std::optional<HttpError> error;
  bool finished = false;
  for (auto& [choice, event] : exchange_->take()) {
    has_events_ = true;
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

}  // namespace mstar::server
