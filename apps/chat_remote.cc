// A chat with a server.
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench_server.h"
#include "chat_backend.h"
#include "mstar/load/completion_event.h"
#include "mstar/load/http_client.h"
#include "mstar/load/sse_parser.h"
#include "mstar/server/json_text.h"
#include "settings.h"

namespace mstar::apps {
namespace {

using nlohmann::json;

// Gathers one answer: events of a stream, or the body of a refusal.
class ReplyReader final : public load::AnswerSink {
 public:
  explicit ReplyReader(const ChatBackend::OnText& on_text) : on_text_(on_text) {}

  void on_start(const load::ResponseStart& start) override { start_ = start; }
  void on_body(std::string_view bytes) override {
    if (start_.status != 200) {
      body_ += bytes;
      return;
    }
    const Status read = events_.push(bytes, [this](std::string_view, std::string_view data) { take(data); });
    if (!read && !error_) error_ = read.error();
  }
  void on_end(load::ExchangeFault fault, const std::string& message) override {
    if (fault != load::ExchangeFault::none && !error_)
      error_ = unavailable((start_.status == 0 ? "nothing answers any more: " : "the reply broke off: ") + message);
    if (start_.status != 200 && !error_) {
      const std::string said = load::error_message(body_);
      error_ = start_.status < 500 ? invalid_request(said) : unavailable(said);
    }
    if (!ended_ && !error_) error_ = unavailable("the reply broke off: the server ended it too soon");
  }
  const std::optional<Error>& error() const { return error_; }
  const ChatReply& reply() const { return reply_; }

 private:
  void take(std::string_view data) {
    if (error_) return;
    if (data == "[DONE]") {
      ended_ = true;
      return;
    }
    auto event = read_chat_event(data);
    if (!event) {
      error_ = std::move(event.error());
      return;
    }
    if (!event->text.empty()) on_text_(event->text);
    if (event->finish_reason == "length") reply_.cut = true;
    if (event->completion_tokens >= 0) reply_.completion_tokens = event->completion_tokens;
  }

  const ChatBackend::OnText& on_text_;
  load::ResponseStart start_;
  load::SseParser events_;
  std::string body_;
  std::optional<Error> error_;
  bool ended_ = false;
  ChatReply reply_;
};

class RemoteChat final : public ChatBackend {
 public:
  RemoteChat(load::HttpUrl url, std::vector<boost::asio::ip::tcp::endpoint> endpoints, std::string api_key,
             std::string model, Params params)
      : url_(std::move(url)),
        api_key_(std::move(api_key)),
        model_(std::move(model)),
        params_(std::move(params)),
        client_(io_, url_, endpoints) {}

  const std::string& model() const override { return model_; }

  Result<ChatReply> reply(const std::string& messages_json, const OnText& on_text) override {
    ReplyReader reader(on_text);
    {
      std::lock_guard lock(mutex_);
      io_.restart();
      busy_ = true;
      stopped_ = false;
    }
    client_.start({.target = url_.base_path + "/v1/chat/completions",
                   .api_key = api_key_,
                   .body = chat_body(model_, messages_json, params_)},
                  reader);
    io_.run();
    std::lock_guard lock(mutex_);
    busy_ = false;
    ChatReply out = reader.reply();
    out.stopped = stopped_;
    if (reader.error() && !stopped_) return *reader.error();
    return out;
  }

  void stop() override {
    std::lock_guard lock(mutex_);
    if (!busy_ || stopped_) return;
    stopped_ = true;
    boost::asio::post(io_, [this] { cancel_if_stopped(); });
  }

 private:
  // Of this reply; what stop() has posted may run in the next one's time.
  void cancel_if_stopped() {
    {
      std::lock_guard lock(mutex_);
      if (!stopped_) return;
    }
    client_.cancel();
  }

  const load::HttpUrl url_;
  const std::string api_key_, model_;
  const Params params_;
  boost::asio::io_context io_{1};
  load::HttpClient client_;
  std::mutex mutex_;  // guards what follows
  bool busy_ = false;
  bool stopped_ = false;
};

}  // namespace

std::string chat_body(const std::string& model, const std::string& messages_json, const Params& params) {
  std::string out = "{\"model\":";
  server::append_json_string(out, model);
  out += ",\"messages\":" + messages_json + ",\"stream\":true,\"stream_options\":{\"include_usage\":true}";
  for (const auto& [name, value] : params.values()) {
    const auto* text = std::get_if<std::string>(&value);
    if (!text) continue;
    out += ',';
    server::append_json_string(out, name);
    out += ':';
    if (json::accept(*text)) {
      out += *text;
    } else {
      server::append_json_string(out, *text);
    }
  }
  out += '}';
  return out;
}

Result<ChatEvent> read_chat_event(std::string_view data) {
  const json event = json::parse(data, nullptr, false);
  const auto foreign = [] { return unavailable("the server's answer is none of a chat"); };
  if (!event.is_object()) return foreign();
  if (event.contains("error")) return unavailable(load::error_message(data));
  ChatEvent out;
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object())
    if (const auto tokens = usage->find("completion_tokens"); tokens != usage->end() && tokens->is_number_integer())
      out.completion_tokens = tokens->get<std::int64_t>();
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array()) return foreign();
  if (choices->empty()) return out;
  const json& choice = choices->front();
  if (!choice.is_object()) return foreign();
  if (const auto reason = choice.find("finish_reason"); reason != choice.end() && reason->is_string())
    out.finish_reason = reason->get<std::string>();
  if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object())
    if (const auto text = delta->find("content"); text != delta->end() && text->is_string())
      out.text = text->get<std::string>();
  return out;
}

Result<std::unique_ptr<ChatBackend>> remote_chat(const ChatFlags& flags) {
  MSTAR_TRY_ASSIGN(load::HttpUrl url, load::parse_http_url(flags.url));
  Params params;
  MSTAR_TRY(parse_params(flags.params, params));
  MSTAR_TRY_ASSIGN(const BenchServer server, look_at_server(url, flags.api_key, flags.model.model));
  MSTAR_TRY_ASSIGN(auto endpoints, load::resolve(url));
  return std::unique_ptr<ChatBackend>(std::make_unique<RemoteChat>(std::move(url), std::move(endpoints), flags.api_key,
                                                                   server.model, std::move(params)));
}

}  // namespace mstar::apps
