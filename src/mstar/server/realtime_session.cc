#include "mstar/server/realtime_session.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <cmath>
#include <utility>

#include "mstar/base/log.h"
#include "mstar/server/json_text.h"
#include "mstar/server/request_id.h"

namespace mstar::server {
namespace {

namespace net = boost::asio;
namespace ws = boost::beast::websocket;
using boost::system::error_code;
using std::chrono::steady_clock;

constexpr std::size_t kMostMessage = std::size_t{16} << 20;
constexpr std::size_t kLongMessage = 64 << 10;     // from here on it is read in the background
constexpr double kPauseAt_s = 60, kGoOnAt_s = 30;  // of sound that waits: no more is read meanwhile
constexpr std::chrono::milliseconds kTick{200};
constexpr std::chrono::minutes kSilent{10};  // without a message

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

}  // namespace

RealtimeSession::RealtimeSession(Socket socket, std::shared_ptr<ServerCore> core, RealtimeSettings settings,
                                 std::function<void()> on_end)
    : socket_(std::move(socket)),
      core_(std::move(core)),
      settings_(std::move(settings)),
      on_end_(std::move(on_end)),
      timer_(socket_.get_executor()),
      last_sound_(steady_clock::now()) {}

RealtimeSession::~RealtimeSession() { finish(); }

void RealtimeSession::start(const RequestHead& head) {
  namespace http = boost::beast::http;
  request_.method(http::verb::get);
  request_.target(head.path);
  request_.version(11);
  for (const auto& [name, value] : head.headers) request_.insert(name, value);
  id_ = "sess_" + head.request_id;
  auto timeout = ws::stream_base::timeout::suggested(boost::beast::role_type::server);
  timeout.idle_timeout = std::chrono::seconds(60);
  timeout.keep_alive_pings = true;
  socket_.set_option(timeout);
  socket_.read_message_max(kMostMessage);
  const bool names_protocol = head.header("sec-websocket-protocol").find("realtime") != std::string_view::npos;
  socket_.set_option(ws::stream_base::decorator([names_protocol](ws::response_type& answer) {
    if (names_protocol) answer.set(http::field::sec_websocket_protocol, "realtime");
  }));
  socket_.async_accept(request_, [self = shared_from_this()](const error_code& error) { self->on_accepted(error); });
}

void RealtimeSession::on_accepted(const error_code& error) {
  if (error) return finish();
  is_open_ = true;
  if (settings_.turns && (!core_->config.voice || !core_->config.voice())) settings_.turns.reset();
  apply();
  send("session.created", "\"session\":" + session_json(id_, settings_, false));
  arm_timer();
  read();
}

// The hearing and the resampler as the settings have them.
void RealtimeSession::apply() {
  LiveOptions options{.model = settings_.model, .fields = {}, .turns = settings_.turns};
  if (!settings_.language.empty()) options.fields.set("language", settings_.language);
  if (!settings_.prompt.empty()) options.fields.set("prompt", settings_.prompt);
  if (hearing_) {
    hearing_->set_options(std::move(options));
  } else {
    std::shared_ptr<const VoiceNetwork> network;
    if (core_->config.voice)
      if (auto read = core_->config.voice()) network = *read;
    hearing_ =
        std::make_shared<LiveHearing>(core_->frontend, std::move(network), std::move(options),
                                      [weak = weak_from_this(), executor = socket_.get_executor()](LiveEvent event) {
                                        net::post(executor, [weak, event = std::move(event)] {
                                          if (const auto self = weak.lock()) self->on_event(event);
                                        });
                                      });
  }
  resampler_ = settings_.format.rate_hz == kVoiceRateHz
                   ? nullptr
                   : std::make_unique<Resampler>(settings_.format.rate_hz, kVoiceRateHz);
}

void RealtimeSession::read() {
  if (ending_) return;
  if (hearing_->backlog_s() > kPauseAt_s) {
    is_paused_ = true;  // the timer goes on
    return;
  }
  socket_.async_read(buffer_, [self = shared_from_this()](const error_code& error, std::size_t bytes) {
    self->core_->metrics.received(bytes);
    if (error == ws::error::message_too_big) {
      log_info("{} closed: a message is too large", self->id_);
      return self->end(ws::close_code::too_big, "a message has at most 16 MiB");
    }
    if (error) return self->finish();
    self->on_message();
  });
}

void RealtimeSession::on_message() {
  if (!socket_.got_text()) return end(ws::close_code::unknown_data, "messages are JSON in text frames");
  last_sound_ = steady_clock::now();
  auto text = std::make_shared<const std::string>(boost::beast::buffers_to_string(buffer_.data()));
  buffer_.consume(buffer_.size());
  // Nothing else of the session is read meanwhile, so it keeps its settings.
  auto work = [self = shared_from_this(), text] {
    auto event_id = std::make_shared<std::string>();
    auto event = std::make_shared<Result<ClientEvent>>(read_client_event(*text, self->settings_, *event_id));
    if (*event)
      if (const auto* const sound = std::get_if<AppendSound>(&(*event)->action)) self->on(*sound);
    net::post(self->socket_.get_executor(), [self, event, event_id] {
      if (self->ending_) return;
      if (!*event) {
        self->send_error(event->error(), *event_id, "invalid_value");
      } else if (auto* const update = std::get_if<UpdateSession>(&(*event)->action)) {
        self->on(std::move(*update));
      } else if (std::holds_alternative<CommitSound>((*event)->action)) {
        if (!self->hearing_->commit())
          self->send_error(invalid_request("the buffer holds less than 100 ms of sound"), *event_id,
                           "input_audio_buffer_commit_empty");
      } else if (std::holds_alternative<ClearSound>((*event)->action)) {
        self->hearing_->clear();
        self->send("input_audio_buffer.cleared", "");
      }
      self->read();
    });
  };
  if (text->size() < kLongMessage) return work();
  core_->in_background(std::move(work));
}

void RealtimeSession::on(const AppendSound& sound) {
  const std::vector<float> samples = samples_of(sound.bytes, settings_.format.coding);
  if (!resampler_) return hearing_->append(samples);
  // A second at a time: what is heard meanwhile need not wait for all of it.
  std::vector<float> out(kVoiceRateHz);
  std::span<const float> rest(samples);
  while (!rest.empty()) {
    const Resampler::Progress progress = resampler_->push(rest, out);
    rest = rest.subspan(progress.num_consumed);
    hearing_->append(std::span<const float>(out).first(progress.num_produced));
  }
}

void RealtimeSession::on(UpdateSession update) {
  const std::string field = update.is_beta ? "session.turn_detection" : "session.audio.input.turn_detection";
  if (update.settings.turns) {
    const auto voice =
        core_->config.voice
            ? core_->config.voice()
            : Result<std::shared_ptr<const VoiceNetwork>>(invalid_request("this server has no voice activity"));
    if (!voice) {
      Error error = voice.error();
      return send_error(std::move(error).with_field(field), "", "invalid_value");
    }
  }
  if (const auto model = find_live_model(core_->frontend, update.settings.model)) {
    update.settings.model = *model;
  } else {
    return send_error(model.error(), "", "invalid_value");
  }
  settings_ = std::move(update.settings);
  apply();
  send(update.is_beta ? "transcription_session.updated" : "session.updated",
       "\"session\":" + session_json(id_, settings_, update.is_beta));
}

std::string RealtimeSession::item_of(std::uint64_t turn) const {
  return "item_" + id_.substr(5) + "_" + std::to_string(turn);
}

void RealtimeSession::on_event(const LiveEvent& event) {
  if (ending_) return;
  const std::string item = "\"item_id\":" + quoted(item_of(event.turn));
  const std::string content = item + ",\"content_index\":0";
  const auto ms = [&] { return std::to_string(std::llround(event.time_s * 1000)); };
  switch (event.kind) {
    case LiveEvent::Kind::speech_started:
      return send("input_audio_buffer.speech_started", "\"audio_start_ms\":" + ms() + "," + item);
    case LiveEvent::Kind::speech_stopped:
      return send("input_audio_buffer.speech_stopped", "\"audio_end_ms\":" + ms() + "," + item);
    case LiveEvent::Kind::committed: {
      const std::string previous = last_committed_ > 0 ? quoted(item_of(last_committed_)) : "null";
      last_committed_ = event.turn;
      send("input_audio_buffer.committed", "\"previous_item_id\":" + previous + "," + item);
      return send("conversation.item.created",
                  "\"previous_item_id\":" + previous + ",\"item\":{\"id\":" + quoted(item_of(event.turn)) +
                      ",\"object\":\"realtime.item\",\"type\":\"message\",\"status\":\"completed\",\"role\":\"user\","
                      "\"content\":[{\"type\":\"input_audio\",\"transcript\":null}]}");
    }
    case LiveEvent::Kind::delta:
      return send("conversation.item.input_audio_transcription.delta", content + ",\"delta\":" + quoted(event.text));
    case LiveEvent::Kind::completed:
      return send("conversation.item.input_audio_transcription.completed",
                  content + ",\"transcript\":" + quoted(event.text) + ",\"usage\":{\"type\":\"duration\",\"seconds\":" +
                      std::to_string(std::llround(std::ceil(event.sound_s))) + "}");
    case LiveEvent::Kind::failed: {
      const HttpError error = to_http(event.error, Stage::running);
      return send("conversation.item.input_audio_transcription.failed",
                  content +
                      ",\"error\":{\"type\":" + quoted(error.status < 500 ? "invalid_request_error" : "server_error") +
                      ",\"code\":null,\"message\":" + quoted(event.error.message) + ",\"param\":null}");
    }
  }
}

void RealtimeSession::send_error(const Error& error, const std::string& event_id, const char* code) {
  send("error", "\"error\":{\"type\":\"invalid_request_error\",\"code\":" + quoted(code) + ",\"message\":" +
                    quoted(error.message) + ",\"param\":" + (error.field.empty() ? "null" : quoted(error.field)) +
                    ",\"event_id\":" + (event_id.empty() ? "null" : quoted(event_id)) + "}");
}

void RealtimeSession::send(const std::string& type, const std::string& members) {
  if (ending_) return;
  std::string text = "{\"type\":" + quoted(type) + ",\"event_id\":\"event_" + std::to_string(++num_events_) + "\"";
  if (!members.empty()) text += "," + members;
  text += "}";
  out_bytes_ += text.size();
  out_.push_back(std::move(text));
  if (out_bytes_ > core_->config.max_pending_out_bytes) {
    log_warn("{} closed: the client does not read its events", id_);
    return end(ws::close_code::try_again_later, "events are not read");
  }
  write();
}

void RealtimeSession::write() {
  if (writing_ || out_.empty() || !is_open_) return;
  writing_ = true;
  socket_.text(true);
  socket_.async_write(net::buffer(out_.front()),
                      [self = shared_from_this()](const error_code& error, std::size_t bytes) {
                        self->writing_ = false;
                        if (error) return self->finish();
                        self->core_->metrics.sent(bytes);
                        self->out_bytes_ -= std::min(self->out_bytes_, self->out_.front().size());
                        self->out_.pop_front();
                        self->write();
                      });
}

void RealtimeSession::arm_timer() {
  timer_.expires_after(kTick);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && !self->ending_) self->on_timer();
  });
}

void RealtimeSession::on_timer() {
  hearing_->tick();
  if (is_paused_ && hearing_->backlog_s() < kGoOnAt_s) {
    is_paused_ = false;
    read();
  }
  if (steady_clock::now() - last_sound_ > kSilent && hearing_->is_idle())
    return end(ws::close_code::normal, "nothing came for 10 minutes");
  arm_timer();
}

void RealtimeSession::stop() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->is_open_) return self->end(ws::close_code::going_away, "the server is shutting down");
    self->ending_ = true;
    self->finish();
  });
}

// Tells the client, and waits for no answer of a client that gives none.
void RealtimeSession::end(ws::close_code code, const std::string& reason) {
  if (std::exchange(ending_, true)) return;
  is_open_ = false;
  timer_.cancel();
  if (hearing_) hearing_->close();
  socket_.async_close({code, reason}, [self = shared_from_this()](const error_code&) { self->finish(); });
}

void RealtimeSession::finish() {
  ending_ = true;
  is_open_ = false;
  timer_.cancel();
  if (hearing_) hearing_->close();
  error_code ignored;
  boost::beast::get_lowest_layer(socket_).close(ignored);
  if (const auto on_end = std::exchange(on_end_, nullptr)) on_end();
}

Result<std::string> find_live_model(const Frontend& frontend, const std::string& name) {
  std::string known;
  for (const ServedModel& each : frontend.models()) {
    const bool hears =
        std::find(each.routes.begin(), each.routes.end(), decl::Route::audio_transcriptions) != each.routes.end();
    if (!hears) continue;
    if (name.empty() || name == each.name ||
        std::find(each.aliases.begin(), each.aliases.end(), name) != each.aliases.end())
      return name.empty() ? each.name : name;
    known += (known.empty() ? "" : ", ") + each.name;
  }
  return std::move(invalid_request(known.empty() ? "this server has no model that transcribes"
                                                 : "no model '" + name + "' transcribes here; there is: " + known))
      .with_field("model");
}

}  // namespace mstar::server
