// From a request to the runtime and back: what is read at once, what in the background, a call's events.
#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "mstar/base/log.h"
#include "mstar/server/connection.h"
#include "mstar/server/input_api.h"
#include "mstar/server/io_loop.h"
#include "mstar/server/workers_api.h"

namespace mstar::server {
namespace {

using std::chrono::steady_clock;

// From this size on a body is read in the background.
constexpr std::size_t kLongBodyBytes = 16 << 10;

// Of "a=1&b=2"; names and values of models need no decoding but for %2F.
std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (!pair.starts_with(name) || pair.size() <= name.size() || pair[name.size()] != '=') continue;
    std::string out(pair.substr(name.size() + 1));
    for (std::size_t at = 0; (at = std::min(out.find("%2F", at), out.find("%2f", at))) != std::string::npos;)
      out.replace(at, 3, "/");
    return out;
  }
  return {};
}

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

// Gives the runtime all choices of a call, whose events go to the loop. Thread: any.
Result<std::vector<RequestId>> submit_choices(Call& call, ServerCore& core, const std::shared_ptr<IoLoop>& loop,
                                              const std::shared_ptr<OpenCall>& open) {
  try {
    CallRequests asked;
    for (std::size_t i = 0; i < num_choices(call); ++i)
      asked.sinks.push_back(std::make_shared<ChoiceSink>(loop, open->slot, i));
    asked.requests = std::move(call.requests);
    asked.choices_per_request = call.choices_per_request;
    asked.wanted = [open] { return !open->closed(); };
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
  if (endpoint == Endpoint::realtime) return on_upgrade();
  Reply answer;
  try {
    if (endpoint == Endpoint::input) {
      answer = push_input(reader_.head(), reader_.match().rest, reader_.take_form(), *core_);
    } else if (endpoint == Endpoint::worker_order) {
      answer = is_foreign_page()
                   ? refusal(http_error(403, "pages of this origin may not give orders", "foreign_origin"))
                   : order_worker(reader_.match().rest, core_->frontend);
    } else {
      answer = answer_at_once(reader_.match(), reader_.take_form(), core_->frontend, core_->metrics);
    }
  } catch (const std::exception& thrown) {
    answer = refusal(thrown_error(thrown));
  }
  give(std::move(answer));
}

// The socket goes to a session, which keeps this connection as one of the server's.
void Connection::on_upgrade() {
  const RequestHead& head = reader_.head();
  const auto lower = [](std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return out;
  };
  if (head.method != "GET" || lower(head.header("upgrade")) != "websocket" || head.header("sec-websocket-key").empty())
    return reply_error(http_error(426, "this is a WebSocket: connect with ws://", "upgrade_required"), false);
  if (core_->draining) return reply_error(http_error(503, "the server is shutting down", "unavailable"), true);
  const auto& origins = config_.cors_origins;
  if (std::find(origins.begin(), origins.end(), "*") == origins.end() && is_foreign_page())
    return reply_error(http_error(403, "pages of this origin may not listen here", "foreign_origin"), false);
  RealtimeSettings settings;
  settings.model = query_value(head.query, "model");
  const auto model = find_live_model(core_->frontend, settings.model);
  if (!model) return reply_error(to_http(model.error(), Stage::body), false);
  settings.model = *model;
  if (reader_.buffered_bytes() > 0)
    return reply_error(http_error(400, "bytes came before the connection was a WebSocket", "malformed_http"), true);
  log_info("{} GET /v1/realtime: a session begins", request_id_);
  phase_ = Phase::upgraded;
  timer_.cancel();
  const auto session =
      std::make_shared<RealtimeSession>(std::move(socket_), core_, std::move(settings), [self = shared_from_this()] {
        log_info("{} GET /v1/realtime: the session has ended", self->request_id_);
        self->close();
      });
  session_ = session;
  session->start(head);
}

// A browser sends such a POST for any page without asking first; "*" lets pages read, not give orders.
bool Connection::is_foreign_page() const {
  const std::string_view origin = reader_.head().header("origin");
  const auto& named = config_.cors_origins;
  return !origin.empty() && std::find(named.begin(), named.end(), origin) == named.end();
}

void Connection::give(Reply answer) {
  HttpError retry;
  retry.retry_after_s = answer.retry_after_s;
  reply(answer.status, answer.content_type, std::move(answer.body), &retry);
}

// Other connections must not wait for it.
bool Connection::is_long_work(Endpoint endpoint) const {
  return endpoint == Endpoint::profile || (is_work(endpoint) && reader_.body_bytes() > kLongBodyBytes);
}

// From here on the request has its time-out, and the client's leave ends it.
void Connection::begin_call() {
  call_ = std::make_shared<OpenCall>(loop_->open_call(*this));
  core_->metrics.calls_in_flight(1);
  phase_ = Phase::call;
  head_sent_ = false;
  has_events_ = false;
  whole_body_.clear();
  choices_.clear();
  fault_.reset();
  call_deadline_ = steady_clock::now() + config_.request_timeout;
}

// The connection may end with what was the last to know of it, which must happen on its loop.
void Connection::in_background(std::function<void()> work) {
  core_->in_background([self = shared_from_this(), work = std::move(work)]() mutable {
    std::exchange(work, nullptr)();
    const Executor executor = self->socket_.get_executor();
    net::post(executor, [self = std::move(self)] {});
  });
}

void Connection::on_long_work() {
  begin_call();
  auto form = std::make_shared<Form>(reader_.take_form());
  in_background([self = shared_from_this(), call = call_, match = reader_.match(), form] {
    if (call->closed()) return;
    auto answer = std::make_shared<Reply>();
    try {
      *answer = answer_at_once(match, *form, self->core_->frontend, self->core_->metrics);
    } catch (const std::exception& thrown) {
      *answer = refusal(thrown_error(thrown));
    }
    net::post(self->socket_.get_executor(), [self, call, answer] {
      if (self->call_ != call) return;
      self->end_call();
      self->give(std::move(*answer));
      self->arm_timer();
    });
  });
  read();  // only to see the client go
}

void Connection::on_call(Endpoint endpoint) {
  const bool is_long = is_long_work(endpoint);
  begin_call();
  auto form = std::make_shared<Form>(reader_.take_form());
  // Without a client nobody waits for an answer, but perhaps for the word that there is none.
  auto work = [self = shared_from_this(), call = call_, endpoint, form, id = request_id_, wanted = !peer_done_] {
    if (call->closed()) return;
    const auto parsed = std::make_shared<ParsedCall>(parse_call(endpoint, std::move(*form), *self->core_, id));
    const bool goes_on = wanted && parsed->call;
    // At once: places for its choices may take a while.
    net::dispatch(self->socket_.get_executor(), [self, call, parsed] { self->on_parsed(call, *parsed); });
    if (!goes_on) return;
    auto choices = std::make_shared<Result<std::vector<RequestId>>>(
        submit_choices(*parsed->call, *self->core_, self->loop_, call));
    net::dispatch(self->socket_.get_executor(), [self, call, parsed, choices] {
      self->on_submitted(call, std::move(*choices), parsed->call->head_at_once);
    });
  };
  if (!is_long) return work();
  in_background(std::move(work));
  read();
}

void Connection::on_parsed(const std::shared_ptr<OpenCall>& call, ParsedCall& parsed) {
  if (call_ != call) return;  // the client has left meanwhile, or its time is over
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

void Connection::on_submitted(const std::shared_ptr<OpenCall>& call, Result<std::vector<RequestId>> choices,
                              bool head_at_once) {
  if (call_ != call) {
    for (const RequestId each : choices ? *choices : std::vector<RequestId>()) core_->frontend.abort(each);
    return;
  }
  if (!choices) {
    const HttpError error = to_http(choices.error(), Stage::submit);
    std::string nothing;
    finish_call(&error, false, nothing);
    return arm_timer();
  }
  choices_ = std::move(*choices);
  num_open_choices_ = choices_.size();
  call_id_ = choices_.front();
  core_->calls.add(request_id_, call_id_);
  if (head_at_once && answer_->streams() && !head_sent_) send_head();
  read();  // only to see the client go
  std::string out;
  for (ChoiceEvent& each : std::exchange(held_, {})) on_event(each.choice, std::move(each.event), out);
  end_of_events(out);
}

void Connection::on_event(std::size_t choice, RequestEvent&& event, std::string& out) {
  if (choices_.empty()) {
    held_.push_back({choice, std::move(event)});
    return;
  }
  if (fault_ || num_open_choices_ == 0) return;
  has_events_ = true;
  Status written;
  if (const auto* chunk = std::get_if<decl::Chunk>(&event)) {
    written = answer_->on_chunk(choice, *chunk, out);
  } else {
    choices_[choice] = RequestId();
    if (const auto* done = std::get_if<Finished>(&event)) {
      written = answer_->on_finished(choice, *done, out);
      --num_open_choices_;
    } else {
      fault_ = std::make_unique<HttpError>(to_http(std::get<Failed>(event).error, Stage::running));
    }
  }
  if (!written) fault_ = std::make_unique<HttpError>(to_http(written.error(), Stage::running));
}

void Connection::end_of_events(std::string& out) {
  if (!call_ || choices_.empty()) return;
  const std::unique_ptr<HttpError> error = std::move(fault_);
  if (error) abort_choices();
  finish_call(error.get(), num_open_choices_ == 0, out);
  arm_timer();
}

}  // namespace mstar::server
