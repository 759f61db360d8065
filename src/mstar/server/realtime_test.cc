// WS /v1/realtime over real sockets in front of a fake runtime.
#include <gmock/gmock.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket.hpp>
#include <nlohmann/json.hpp>

#include "mstar/server/base64.h"
#include "mstar/server/realtime_events.h"
#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace beast = boost::beast;
namespace asio = boost::asio;

class Client {
 public:
  explicit Client(std::uint16_t port, const std::string& target = "/v1/realtime?intent=transcription") {
    stream_.next_layer().connect({asio::ip::make_address("127.0.0.1"), port});
    stream_.handshake("127.0.0.1", target, error_);
  }
  bool is_open() const { return !error_; }
  void send(const json& event) { send_text(event.dump()); }
  void send_text(const std::string& text) {
    stream_.text(true);
    stream_.write(asio::buffer(text), error_);
  }
  void send_binary(const std::string& bytes) {
    stream_.binary(true);
    stream_.write(asio::buffer(bytes), error_);
  }
  // The next event; null at the end.
  json read() {
    beast::flat_buffer buffer;
    stream_.read(buffer, error_);
    return error_ ? json() : json::parse(beast::buffers_to_string(buffer.data()));
  }
  // The next one of this type; others go by.
  json wait(const std::string& type) {
    for (json event = read();; event = read())
      if (event.is_null() || event["type"] == type) return event;
  }
  unsigned close_code() const { return stream_.reason().code; }
  void close() { stream_.close(beast::websocket::close_code::normal, error_); }

 private:
  asio::io_context context_;
  beast::websocket::stream<asio::ip::tcp::socket> stream_{context_};
  beast::error_code error_;
};

struct RealtimeTest : ServerFixture {
  static json append(double seconds, int rate = 24000) {
    std::string bytes(static_cast<std::size_t>(seconds * rate) * 2, 1), text;
    append_base64(text, bytes);
    return {{"type", "input_audio_buffer.append"}, {"audio", text}};
  }
};

TEST_F(RealtimeTest, ATurnFromItsSoundToItsText) {
  start();
  Client client(port);
  ASSERT_TRUE(client.is_open());
  const json created = client.read();
  EXPECT_EQ(created["type"], "session.created");
  EXPECT_EQ(created["session"]["type"], "transcription");
  EXPECT_EQ(created["session"]["audio"]["input"]["transcription"]["model"], "fake-whisper");
  EXPECT_TRUE(created["session"]["audio"]["input"]["turn_detection"].is_null()) << "there are no weights for it";
  client.send(
      {{"type", "transcription_session.update"}, {"session", {{"input_audio_transcription", {{"language", "en"}}}}}});
  EXPECT_EQ(client.read()["type"], "transcription_session.updated");
  client.send(append(0.3));
  client.send({{"type", "input_audio_buffer.commit"}});
  EXPECT_EQ(client.read()["type"], "input_audio_buffer.committed");
  const json item = client.read();
  EXPECT_EQ(item["type"], "conversation.item.created");
  const json delta = client.wait("conversation.item.input_audio_transcription.delta");
  EXPECT_EQ(delta["item_id"], item["item"]["id"]);
  const json completed = client.wait("conversation.item.input_audio_transcription.completed");
  EXPECT_EQ(completed["transcript"], "Hello world. Bye.");
  EXPECT_EQ(completed["usage"]["seconds"], 1);
  EXPECT_EQ(frontend.last_request().fields.get_string("language", "").value_or(""), "en");
  EXPECT_EQ(frontend.last_request().media[0].bytes.bytes().size(), 44u + 16000u)
      << "filled up to half a second of 16 kHz";
  // The next turn follows.
  client.send(append(0.3));
  client.send({{"type", "input_audio_buffer.commit"}});
  EXPECT_EQ(client.wait("input_audio_buffer.committed")["previous_item_id"], item["item"]["id"]);
  client.close();
}

TEST_F(RealtimeTest, WhatIsWrongIsSaidAndTheSessionGoesOn) {
  start();
  Client client(port);
  client.read();
  const auto error = [&](const json& event) {
    client.send(event);
    const json answer = client.read();
    EXPECT_EQ(answer["type"], "error") << answer;
    return answer["error"];
  };
  EXPECT_EQ(error({{"type", "input_audio_buffer.append"}, {"audio", "?"}, {"event_id", "e1"}})["event_id"], "e1");
  EXPECT_EQ(error({{"type", "input_audio_buffer.append"}})["param"], "audio");
  EXPECT_THAT(error({{"type", "response.create"}})["message"].get<std::string>(), HasSubstr("is not known here"));
  EXPECT_EQ(error({{"type", "input_audio_buffer.commit"}})["code"], "input_audio_buffer_commit_empty");
  EXPECT_EQ(error({{"type", "session.update"}, {"session", {{"type", "realtime"}}}})["param"], "session.type");
  EXPECT_THAT(
      error({{"type", "session.update"},
             {"session", {{"audio", {{"input", {{"turn_detection", {{"type", "semantic_vad"}}}}}}}}}})["message"]
          .get<std::string>(),
      HasSubstr("server_vad"));
  EXPECT_EQ(error({{"type", "session.update"},
                   {"session", {{"audio", {{"input", {{"transcription", {{"model", "other"}}}}}}}}}})["param"],
            "model");
  client.send_text("hello");
  EXPECT_EQ(client.read()["type"], "error");
  client.send({{"type", "input_audio_buffer.clear"}});
  EXPECT_EQ(client.read()["type"], "input_audio_buffer.cleared");
}

TEST_F(RealtimeTest, BinaryFramesAreNone) {
  start();
  Client client(port);
  client.read();
  client.send_binary("abc");
  EXPECT_TRUE(client.read().is_null());
  EXPECT_EQ(client.close_code(), 1003u);
}

TEST_F(RealtimeTest, WhatIsNoWebSocketIsRefused) {
  start();
  EXPECT_EQ(ask(port, get("/v1/realtime")).status, 426);
  EXPECT_FALSE(Client(port, "/v1/realtime?model=other").is_open());
  ServerConfig config;
  config.api_keys = {"sk-1"};
  server.reset();
  start(config);
  EXPECT_FALSE(Client(port).is_open());
}

TEST_F(RealtimeTest, ALeavingClientTakesItsHearingAlong) {
  std::atomic<bool> aborted{false};
  frontend.set_script([&](FakeJob& job) { aborted = job.wait_aborted(std::chrono::seconds(20)); });
  start();
  {
    Client client(port);
    client.read();
    client.send(append(1));
    EXPECT_TRUE(eventually([&] { return frontend.num_submitted() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return aborted.load(); }));
  EXPECT_TRUE(eventually([&] { return metric("mstar_http_connections") == metric("mstar_http_connections"); }));
}

TEST_F(RealtimeTest, TheServersEndIsToldToo) {
  start();
  Client client(port);
  client.read();
  client.send(append(1));
  std::thread stopping([&] { server->stop_accepting(); });
  while (!client.read().is_null()) {
  }
  EXPECT_EQ(client.close_code(), 1001u);
  stopping.join();
  EXPECT_TRUE(server->drain(std::chrono::seconds(5)));
}

TEST_F(RealtimeTest, ManySessionsAtOnce) {
  start();
  std::vector<std::thread> clients;
  std::atomic<int> done{0};
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&] {
      Client client(port);
      client.read();
      for (int turn = 0; turn < 3; ++turn) {
        for (int k = 0; k < 5; ++k) client.send(append(0.2));
        client.send({{"type", "input_audio_buffer.commit"}});
        const json completed = client.wait("conversation.item.input_audio_transcription.completed");
        if (completed.value("transcript", "") == "Hello world. Bye.") ++done;
      }
    });
  for (std::thread& each : clients) each.join();
  EXPECT_EQ(done, 24);
}

TEST(RealtimeEvents, SoundIsDecoded) {
  EXPECT_EQ(samples_of(std::string("\x00\x40\x00\xC0\x01", 5), SoundCoding::pcm16), (std::vector<float>{0.5f, -0.5f}));
  // ITU-T G.711: the loudest and the softest codes.
  const auto ulaw = samples_of(std::string("\x80\x00\xFF\x7F", 4), SoundCoding::ulaw);
  EXPECT_EQ(ulaw, (std::vector<float>{32124 / 32768.0f, -32124 / 32768.0f, 0.0f, 0.0f}));
  const auto alaw = samples_of(std::string("\xAA\x2A\xD5\x55", 4), SoundCoding::alaw);
  EXPECT_EQ(alaw, (std::vector<float>{32256 / 32768.0f, -32256 / 32768.0f, 8 / 32768.0f, -8 / 32768.0f}));
}

TEST(RealtimeEvents, BothShapesOfASession) {
  std::string id;
  const auto general = read_client_event(
      R"({"type":"session.update","session":{"type":"transcription","audio":{"input":{"format":{"type":"audio/pcm","rate":16000},
          "transcription":{"model":"m","language":"de","prompt":"p"},
          "turn_detection":{"type":"server_vad","threshold":0.7,"prefix_padding_ms":100,"silence_duration_ms":900}}}}})",
      {}, id);
  ASSERT_TRUE(general) << general.error().message;
  const RealtimeSettings& settings = std::get<UpdateSession>(general->action).settings;
  EXPECT_EQ(settings.format.rate_hz, 16000u);
  EXPECT_EQ(settings.language, "de");
  EXPECT_DOUBLE_EQ(settings.turns->threshold, 0.7);
  EXPECT_DOUBLE_EQ(settings.turns->silence_duration_ms, 900);
  const auto beta = read_client_event(
      R"({"type":"transcription_session.update","session":{"input_audio_format":"g711_ulaw","turn_detection":null}})",
      settings, id);
  ASSERT_TRUE(beta) << beta.error().message;
  EXPECT_EQ(std::get<UpdateSession>(beta->action).settings.format.rate_hz, 8000u);
  EXPECT_FALSE(std::get<UpdateSession>(beta->action).settings.turns);
  EXPECT_EQ(std::get<UpdateSession>(beta->action).settings.language, "de") << "what is not said stays";
}

}  // namespace
}  // namespace mstar::server
