// toy-speech through the runtime and over HTTP, against its arithmetic in doubles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference.h"
#include "toy_server.h"

namespace mstar::toys {
namespace {

using nlohmann::json;

// ---- reference
// ---------------------------------------------------------------------------------------------------------

const std::string kLetters = ". abcdefghijklmnopqrstuvwxyz,!?-";

struct Speech {
  std::vector<int> tokens;
  double gap = std::numeric_limits<double>::infinity();  // smallest lead of a chosen token over the next one
  std::string text() const {
    std::string out;
    for (const int token : tokens) out += kLetters[static_cast<std::size_t>(token)];
    return out;
  }
};

// Greedy; ends after a letter of `stop`.
Speech expected_speech(const std::string& text, int max_tokens, const std::string& stop = ".") {
  const Seeded weights(7004);
  ReferenceKv kv;
  Speech out;
  std::vector<std::size_t> feed;
  for (const char c : text)
    feed.push_back(std::min(kLetters.find(c), kLetters.find(c) == std::string::npos ? 1 : kLetters.size()));
  std::uint64_t position = 0;
  while (true) {
    Numbers x;
    for (const std::size_t id : feed) {
      x = weights.row("table", id, 32);
      add_to(x, weights.row("positions", position++, 32));
      x = run_layers(weights, 2, 2, 16, 64, x, kv);
    }
    const Numbers logits = weights.linear("head", 32, weights.rms_norm("norm", x));
    const auto best = std::max_element(logits.begin(), logits.end());
    for (auto it = logits.begin(); it != logits.end(); ++it)
      if (it != best) out.gap = std::min(out.gap, *best - *it);
    out.tokens.push_back(static_cast<int>(best - logits.begin()));
    const bool ended = stop.find(kLetters[static_cast<std::size_t>(out.tokens.back())]) != std::string::npos;
    if (ended || static_cast<int>(out.tokens.size()) == max_tokens) return out;
    feed = {static_cast<std::size_t>(out.tokens.back())};
  }
}

Numbers expected_wave(const std::vector<int>& tokens) {
  const Seeded weights(7002);
  Numbers out;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    Numbers window;
    for (std::size_t back = 5; back-- > 0;) {
      const Numbers sound =
          t < back ? Numbers(16) : weights.row("table", static_cast<std::uint64_t>(tokens[t - back]), 16);
      window.insert(window.end(), sound.begin(), sound.end());
    }
    Numbers hidden = weights.linear("window", 48, window);
    for (double& each : hidden) each = gelu_tanh(each);
    const Numbers wave = weights.linear("wave", 80, hidden);
    out.insert(out.end(), wave.begin(), wave.end());
  }
  return out;
}

std::vector<int> samples_of(const std::string& pcm16) {
  std::vector<int> out;
  for (std::size_t i = 0; i + 1 < pcm16.size(); i += 2)
    out.push_back(static_cast<std::int16_t>(static_cast<unsigned char>(pcm16[i]) |
                                            static_cast<unsigned char>(pcm16[i + 1]) << 8));
  return out;
}

void expect_near(const std::string& pcm16, const Numbers& wave) {
  const std::vector<int> got = samples_of(pcm16);
  ASSERT_EQ(got.size(), wave.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double wanted = std::clamp(wave[i] * 32768.0, -32768.0, 32767.0);
    ASSERT_NEAR(got[i], wanted, 1.0) << "sample " << i;
  }
}

// ---- tests
// -------------------------------------------------------------------------------------------------------------

json body(const std::string& text, int max_tokens, json more = json::object()) {
  json out = {{"text", text}, {"max_tokens", max_tokens}, {"output_modalities", "text,audio"}, {"streaming", false}};
  out.update(more);
  return out;
}

struct ToySpeech : testing::Test {
  static void SetUpTestSuite() { server = new ToyServer("toy-speech"); }
  static void TearDownTestSuite() { delete std::exchange(server, nullptr); }
  void TearDown() override { EXPECT_TRUE(server->pools_are_empty()); }
  static inline ToyServer* server = nullptr;
};

TEST_F(ToySpeech, SaysAndSoundsWhatTheReferenceComputes) {
  for (const char* text : {"hello there", "abc", "what is it?", "no", "The  Quick-Brown fox!"}) {
    std::string lower = text;
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    const Speech wanted = expected_speech(lower, 40);
    ASSERT_GT(wanted.gap, 1e-4) << "too near a tie to compare: " << text;
    const Answer answer = server->ask(body(text, 40));
    ASSERT_TRUE(answer.ok()) << answer.message;
    EXPECT_EQ(answer.bytes("text"), wanted.text());
    EXPECT_EQ(answer.completion_tokens, static_cast<std::int64_t>(wanted.tokens.size()));
    expect_near(answer.bytes("audio"), expected_wave(wanted.tokens));
  }
}

TEST_F(ToySpeech, CountsAreExact) {
  const std::string whole = expected_speech("abc", 40).text();
  ASSERT_EQ(whole.size(), 9u);  // ends by itself
  for (const int max_tokens : {1, 2, 3, 4, 8, 9, 10, 16, 33, 256})
    for (const bool ignore_eos : {false, true})
      for (const bool streaming : {false, true}) {
        SCOPED_TRACE(testing::Message() << max_tokens << " ignore_eos " << ignore_eos << " streaming " << streaming);
        const Answer answer =
            server->ask(body("abc", max_tokens, {{"ignore_eos", ignore_eos}, {"streaming", streaming}}));
        const std::size_t wanted = ignore_eos ? static_cast<std::size_t>(max_tokens)
                                              : std::min<std::size_t>(9, static_cast<std::size_t>(max_tokens));
        ASSERT_TRUE(answer.ok()) << answer.message;
        EXPECT_EQ(answer.bytes("text").size(), wanted);
        EXPECT_EQ(answer.bytes("text").substr(0, 9), whole.substr(0, wanted));
        EXPECT_EQ(answer.bytes("audio").size(), wanted * 80 * 2);
        EXPECT_EQ(answer.completion_tokens, streaming ? -1 : static_cast<std::int64_t>(wanted));
      }
}

TEST_F(ToySpeech, StopsAtItsFirstTokenToo) {
  const std::string whole = expected_speech("abc", 40).text();
  for (std::size_t length = 1; length < whole.size(); ++length) {
    const std::string letter = whole.substr(length - 1, 1);
    if (whole.find(letter) != length - 1) continue;
    auto ticket =
        server->submit("abc", {{"stop", letter}, {"max_tokens", 40}}, {decl::Modality::text, decl::Modality::audio});
    const Answer answer = ticket->wait();
    EXPECT_EQ(answer.bytes("text"), whole.substr(0, length));
    EXPECT_EQ(answer.bytes("audio").size(), length * 160);
    ASSERT_TRUE(ticket->finished);
    EXPECT_EQ(ticket->finished->finish, decl::Finish::stop);
  }
  auto cut = server->submit("abc", {{"max_tokens", 1}}, {decl::Modality::text});
  EXPECT_EQ(cut->wait().bytes("text"), whole.substr(0, 1));
  EXPECT_EQ(cut->finished->finish, decl::Finish::length);
}

TEST_F(ToySpeech, StreamedIsWholeAndSoundComesEarly) {
  const Answer whole = server->ask(body("hello there", 60, {{"ignore_eos", true}}));
  const Answer streamed = server->ask(body("hello there", 60, {{"ignore_eos", true}, {"streaming", true}}));
  ASSERT_TRUE(whole.ok() && streamed.ok());
  EXPECT_EQ(whole.bytes("text"), streamed.bytes("text"));
  EXPECT_TRUE(whole.bytes("audio") == streamed.bytes("audio"));
  std::vector<std::size_t> tokens;
  for (std::size_t i = 0; i < streamed.chunks.size(); ++i) {
    if (streamed.chunks[i].first != "audio") continue;
    tokens.push_back(streamed.chunks[i].second.size() / 160);
    EXPECT_EQ(streamed.metadata[i], json({{"format", "pcm16"}, {"sample_rate", 16000}, {"num_channels", 1}}));
  }
  EXPECT_EQ(tokens, (std::vector<std::size_t>{2, 4, 8, 8, 8, 8, 8, 8, 6}));
}

TEST_F(ToySpeech, OnlyWhatWasAskedForIsSent) {
  const Answer text = server->ask({{"text", "abc"}, {"streaming", false}});  // text is /generate's default
  EXPECT_EQ(text.bytes("text").size(), 9u);
  EXPECT_EQ(text.bytes("audio"), "");
  const Answer audio = server->ask(body("abc", 40, {{"output_modalities", "audio"}}));
  EXPECT_EQ(audio.bytes("text"), "");
  EXPECT_EQ(audio.bytes("audio").size(), 9u * 160);
}

TEST_F(ToySpeech, TheSpeechSurfaceTakesTheSameRequest) {
  auto ticket = std::make_shared<Ticket>();
  decl::ApiRequest request{.route = decl::Route::audio_speech, .model = "toy-speech", .text = "abc"};
  ASSERT_TRUE(server->frontend().submit(request, ticket));
  EXPECT_TRUE(ticket->wait().bytes("audio") == server->ask(body("abc", 64)).bytes("audio"));
  request.text = std::string(65, 'a');
  const auto refused = server->frontend().submit(request, ticket);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "input");
}

TEST_F(ToySpeech, SeedsFixTheDraws) {
  const auto drawn = [&](int seed) {
    return server->ask(body("hello", 50, {{"temperature", 1.0}, {"seed", seed}, {"ignore_eos", true}}));
  };
  const Answer first = drawn(3);
  EXPECT_EQ(first.bytes("text"), drawn(3).bytes("text"));
  EXPECT_TRUE(first.bytes("audio") == drawn(3).bytes("audio"));
  EXPECT_NE(first.bytes("text"), drawn(4).bytes("text"));
}

std::vector<json> mixed() {
  return {body("hello there", 40),
          body("abc", 256, {{"ignore_eos", true}}),
          body("what is it?", 1),
          body("x", 33, {{"temperature", 0.8}, {"seed", 5}}),
          body("speech", 7),
          body("hello there", 64, {{"temperature", 1.5}, {"seed", 6}, {"top_k", 5}}),
          body("z", 16, {{"ignore_eos", true}}),
          body(std::string(64, 'q'), 50, {{"streaming", true}})};
}

TEST_F(ToySpeech, EightTogetherAreAsOneByOne) {
  const auto [steps, rows] = server->steps_and_rows("talker");
  alone_and_together(*server, mixed());
  const auto [more_steps, more_rows] = server->steps_and_rows("talker");
  EXPECT_GT((more_rows - rows) / (more_steps - steps), 1.1) << "nothing was batched";
}

TEST_F(ToySpeech, TwoPlacementsGiveTheSameBytes) {
  const ToyServer apart("toy-speech",
                        {{.components = {"talker"}, .ranks = {0}}, {.components = {"codec"}, .ranks = {1}}});
  const ToyServer swapped("toy-speech", {{.components = {"talker"}, .ranks = {1}}});
  for (const json& each : mixed()) {
    const Answer here = server->ask(each);
    for (const ToyServer* other : {&apart, &swapped}) {
      const Answer there = other->ask(each);
      EXPECT_EQ(here.bytes("text"), there.bytes("text"));
      EXPECT_TRUE(here.bytes("audio") == there.bytes("audio"));
    }
  }
  EXPECT_TRUE(apart.pools_are_empty());
}

TEST_F(ToySpeech, AbortsGiveEverythingBack) {
  for (int i = 0; i < 12; ++i) {
    auto ticket = server->submit("hello there", {{"max_tokens", 256}, {"ignore_eos", true}},
                                 {decl::Modality::text, decl::Modality::audio});
    ticket->wait_for_chunks(static_cast<std::size_t>(i * 3));
    server->frontend().abort(ticket->id);
    ticket->wait();
  }
  EXPECT_TRUE(server->pools_are_empty());
  for (int i = 0; i < 4; ++i) {  // the client goes
    server::TestClient client(server->port());
    client.send(server::post("/generate", "application/json",
                             body("abc", 256, {{"ignore_eos", true}, {"streaming", true}}).dump()));
    EXPECT_NE(client.read_until("audio"), "");
    client.reset();
  }
  EXPECT_TRUE(server->pools_are_empty());
  EXPECT_EQ(server->ask(body("abc", 40)).bytes("text"), expected_speech("abc", 40).text());
}

TEST_F(ToySpeech, BadFieldsAreNamed) {
  const std::vector<std::pair<json, std::string>> rows = {{{{"text", ""}}, "text"},
                                                          {{{"text", std::string(65, 'a')}}, "text"},
                                                          {{{"text", "a"}, {"max_tokens", 0}}, "max_tokens"},
                                                          {{{"text", "a"}, {"max_tokens", 257}}, "max_tokens"},
                                                          {{{"text", "a"}, {"max_tokens", "x"}}, "max_tokens"},
                                                          {{{"text", "a"}, {"temperature", 3}}, "temperature"},
                                                          {{{"text", "a"}, {"top_p", 0}}, "top_p"},
                                                          {{{"text", "a"}, {"stop", "#"}}, "stop"}};
  for (const auto& [request, field] : rows) {
    const Answer answer = server->ask(request);
    EXPECT_EQ(answer.status, 400) << request;
    EXPECT_EQ(answer.param, field) << request;
  }
}

TEST_F(ToySpeech, AQueueLargerThanTheCapIsServedWhole) {
  const ToyServer small("toy-speech", {}, 2);
  const std::vector<json> bodies = mixed();
  alone_and_together(small, bodies);
  EXPECT_TRUE(small.pools_are_empty());
}

}  // namespace
}  // namespace mstar::toys
