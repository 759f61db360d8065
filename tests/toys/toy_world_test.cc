// toy-world through the runtime and over HTTP, against its arithmetic in doubles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference.h"
#include "toy_server.h"

namespace mstar::toys {
namespace {

using nlohmann::json;
using Actions = std::vector<double>;  // x0, y0, x1, y1, ...

// ---- reference
// ---------------------------------------------------------------------------------------------------------

struct Rollout {
  Numbers pixels;      // 16 a frame
  bool left = false;   // its bounds, with the last frame
  double margin = 10;  // how near any state came to its bounds
};

Rollout expected_rollout(const Actions& actions, std::uint64_t seed) {
  const Seeded weights(9001);
  Numbers state = Seeded(seed).row("state", 0, 8);
  Rollout out;
  for (std::size_t i = 0; i < actions.size() && !out.left; i += 2) {
    Numbers given = state;
    given.push_back(actions[i]);
    given.push_back(actions[i + 1]);
    Numbers hidden = weights.linear("in", 32, given);
    for (double& each : hidden) each = gelu_tanh(each);
    for (double& each : state) each *= 0.25;
    add_to(state, weights.linear("move", 8, hidden));
    const Numbers frame = weights.linear("look", 16, state);
    out.pixels.insert(out.pixels.end(), frame.begin(), frame.end());
    for (const double each : state) {
      out.left |= std::abs(each) > 6;
      out.margin = std::min(out.margin, std::abs(std::abs(each) - 6));
    }
  }
  return out;
}

std::vector<float> floats_of(const std::string& bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}

void expect_near(const std::string& bytes, const Rollout& wanted) {
  const std::vector<float> got = floats_of(bytes);
  ASSERT_EQ(got.size(), wanted.pixels.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], wanted.pixels[i], 2e-4) << "pixel " << i % 16 << " of frame " << i / 16;
}

Actions wander(std::size_t num_actions, double reach = 1, double phase = 0) {
  Actions out;
  for (std::size_t i = 0; i < num_actions; ++i) {
    const auto turn = static_cast<double>(i);
    out.push_back(reach * std::sin(turn + phase));
    out.push_back(reach * std::cos(0.7 * turn));
  }
  for (double& each : out) each = static_cast<float>(each);
  return out;
}

// ---- clients
// -----------------------------------------------------------------------------------------------------------

json body(const Actions& actions, json more = json::object()) {
  json out = {{"actions", actions}, {"streaming", false}};
  out.update(more);
  return out;
}

json pairs(const Actions& actions) {
  json out = json::array();
  for (std::size_t i = 0; i < actions.size(); i += 2) out.push_back({actions[i], actions[i + 1]});
  return out;
}

std::string raw(const Actions& actions) {
  const std::vector<float> numbers(actions.begin(), actions.end());
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

Actions slice(const Actions& actions, std::size_t from, std::size_t to) {
  const auto begin = actions.begin();
  return {begin + static_cast<std::ptrdiff_t>(2 * from), begin + static_cast<std::ptrdiff_t>(2 * to)};
}

// One who steers a world: its actions go beside the connection on which its frames come.
class Driver {
 public:
  // The answer's head says that the request is there.
  Driver(const ToyServer& server, std::string id, json more = json::object())
      : server_(server), id_(std::move(id)), client_(server.port()) {
    json request = {{"control", "client"}, {"request_id", id_}};
    request.update(more);
    client_.send(server::post("/generate", "application/json", request.dump()));
    const std::string head = client_.read_until("\r\n\r\n");
    EXPECT_NE(head.find("HTTP/1.1 200"), head.npos) << head;
    EXPECT_NE(head.find("X-Request-Id: " + id_), head.npos) << head;
  }

  server::TestAnswer send(const std::string& text, const std::string& type, const std::string& query = "") const {
    return server_.post("/generate/" + id_ + "/inputs/action" + query, type, text);
  }
  bool push(const Actions& actions, bool done = false) const {
    return send(pairs(actions).dump(), "application/json", done ? "?done=1" : "").status == 200;
  }
  void finish() const { EXPECT_EQ(send("", "application/octet-stream", "?done=1").status, 200); }
  void read_frames(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string more = client_.read_until("}\n");
      EXPECT_FALSE(more.empty()) << "the stream ended after " << i << " of " << count << " frames";
      text_ += more;
    }
  }
  // All frames, once the answer is complete.
  Answer rest() {
    const std::string more = client_.read_until("0\r\n\r\n");
    EXPECT_FALSE(more.empty()) << "no end";
    text_ += more;
    server::TestAnswer lines{.status = 200};
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', at), text_.size());
      if (text_[at] == '{') lines.body += text_.substr(at, end - at) + '\n';
      at = end + 1;
    }
    return read_stream(lines);
  }
  server::TestClient& client() { return client_; }

 private:
  const ToyServer& server_;
  std::string id_;
  server::TestClient client_;
  std::string text_;  // of the answer's body
};

// ---- tests
// -------------------------------------------------------------------------------------------------------------

struct ToyWorld : testing::Test {
  static void SetUpTestSuite() { server = new ToyServer("toy-world"); }
  static void TearDownTestSuite() { delete std::exchange(server, nullptr); }
  void TearDown() override { EXPECT_TRUE(server->pools_are_empty()); }
  static inline ToyServer* server = nullptr;
};

TEST_F(ToyWorld, RollsOutWhatTheReferenceComputes) {
  struct Case {
    Actions actions;
    int seed;
    bool left;
  };
  for (const Case& each : std::vector<Case>{{wander(1), 0, false},
                                            {wander(2), 1, false},
                                            {wander(17, 1.5), 2, false},
                                            {wander(64), 3, false},
                                            {wander(64, 3), 0, true},
                                            {wander(30, 10), 3, true},
                                            {Actions(128), 5, false}}) {
    SCOPED_TRACE(testing::Message() << each.actions.size() / 2 << " actions, seed " << each.seed);
    const Rollout wanted = expected_rollout(each.actions, static_cast<std::uint64_t>(each.seed));
    ASSERT_EQ(wanted.left, each.left);
    ASSERT_GT(wanted.margin, 1e-3) << "too near the bounds to compare";
    const Answer answer = server->ask(body(each.actions, {{"seed", each.seed}}));
    ASSERT_TRUE(answer.ok()) << answer.message;
    ASSERT_EQ(answer.chunks.size(), 1u);
    EXPECT_EQ(answer.chunks[0].first, "video");
    expect_near(answer.chunks[0].second, wanted);
    EXPECT_EQ(answer.metadata[0],
              json({{"format", "f32"}, {"num_frames", wanted.pixels.size() / 16}, {"height", 4}, {"width", 4}}));
  }
}

TEST_F(ToyWorld, FramesComeAsTheyAreMadeAndAreTheSame) {
  for (const auto& actions : {wander(1), wander(40), wander(64, 3)}) {
    const std::string video = server->ask(body(actions)).bytes("video");
    for (const bool streaming : {false, true}) {
      EXPECT_TRUE(server->ask(body(actions, {{"streaming", streaming}})).bytes("video") == video);
      const Answer frames = server->ask(body(actions, {{"streaming", streaming}, {"stream_rollout", true}}));
      ASSERT_EQ(frames.chunks.size(), video.size() / 64);
      EXPECT_TRUE(frames.bytes("video_frame") == video);
      for (const json& metadata : frames.metadata)
        EXPECT_EQ(metadata, json({{"format", "f32"}, {"num_frames", 1}, {"height", 4}, {"width", 4}}));
    }
  }
}

TEST_F(ToyWorld, SaysWhyItEnded) {
  for (const bool frames : {false, true})
    for (const auto& [reach, finish] : {std::pair(1.0, decl::Finish::length), std::pair(10.0, decl::Finish::stop)}) {
      auto ticket = server->submit("", {{"actions", wander(20, reach)}, {"stream_rollout", frames}}, {});
      EXPECT_TRUE(ticket->wait().ok());
      ASSERT_TRUE(ticket->finished);
      EXPECT_EQ(ticket->finished->finish, finish);
    }
}

std::vector<json> mixed() {
  return {body(wander(64)),
          body(wander(64, 1, 2), {{"seed", 1}, {"stream_rollout", true}}),
          body(wander(1), {{"seed", 2}}),
          body(wander(64, 3)),
          body(wander(33), {{"seed", 4}, {"streaming", true}, {"stream_rollout", true}}),
          body(wander(2, 10), {{"streaming", true}}),
          body(wander(50, 1.2), {{"seed", 6}}),
          body(wander(17, 0.1), {{"stream_rollout", true}})};
}

TEST_F(ToyWorld, EightTogetherAreAsOneByOne) { alone_and_together(*server, mixed()); }

TEST_F(ToyWorld, TwoBootsGiveTheSameBytes) {
  const ToyServer other("toy-world"), elsewhere("toy-world", {{.components = {"world"}, .ranks = {1}}});
  for (const json& each : mixed()) {
    const Answer here = server->ask(each);
    for (const ToyServer* there : {&other, &elsewhere}) {
      const Answer answer = there->ask(each);
      EXPECT_FALSE(answer.chunks.empty());
      EXPECT_EQ(answer.chunks, here.chunks);
    }
  }
  EXPECT_TRUE(other.pools_are_empty());
  EXPECT_TRUE(elsewhere.pools_are_empty());
}

TEST_F(ToyWorld, AFrameForEachActionThatAClientSends) {
  const Actions actions = wander(20);
  Driver driver(*server, "one-by-one", {{"seed", 7}});
  for (std::size_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(driver.push(slice(actions, i, i + 1)));
    driver.read_frames(1);  // before the next action is sent
  }
  driver.finish();
  const Answer answer = driver.rest();
  EXPECT_EQ(answer.chunks.size(), 20u);
  EXPECT_TRUE(answer.bytes("video_frame") == server->ask(body(actions, {{"seed", 7}})).bytes("video"));
}

TEST_F(ToyWorld, HowActionsAreCutDoesNotMatter) {
  const Actions actions = wander(150);  // more than two passes of the walk
  const Rollout wanted = expected_rollout(actions, 8);
  std::string first;
  for (const std::vector<std::size_t>& cuts : std::vector<std::vector<std::size_t>>{
           {150}, {1, 149}, {63, 1, 1, 85}, {64, 64, 22}, {0, 100, 0, 50}, {149, 1, 0}}) {
    Driver driver(*server, "cut", {{"seed", 8}});
    std::size_t at = 0;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      const Actions piece = slice(actions, at, at + cuts[i]);
      const bool is_last = i + 1 == cuts.size();
      const std::string query = is_last ? "?done=true" : "?done=0";
      // Nested numbers, flat numbers or the floats as they are.
      const server::TestAnswer taken = i % 3 == 0   ? driver.send(raw(piece), "application/octet-stream", query)
                                       : i % 3 == 1 ? driver.send(pairs(piece).dump(), "application/json", query)
                                                    : driver.send(json(piece).dump(), "application/json", query);
      ASSERT_EQ(taken.status, 200) << taken.body;
      EXPECT_EQ(json::parse(taken.body), json({{"request_id", "cut"}, {"input", "action"}, {"done", is_last}}));
      at += cuts[i];
    }
    const Answer answer = driver.rest();
    EXPECT_EQ(answer.chunks.size(), 150u);
    if (first.empty()) expect_near(first = answer.bytes("video_frame"), wanted);
    EXPECT_TRUE(answer.bytes("video_frame") == first);
  }
}

TEST_F(ToyWorld, EndsWithoutAnyAction) {
  Driver driver(*server, "nothing");
  driver.finish();
  EXPECT_TRUE(driver.rest().chunks.empty());
}

TEST_F(ToyWorld, TheClientMayWantOneAnswer) {
  const Actions actions = wander(10);
  const auto ask = [&] {
    return server->ask({{"control", "client"}, {"request_id", "whole"}, {"streaming", false}, {"seed", 9}});
  };
  Answer answer;
  std::thread waiting([&] { answer = ask(); });
  const auto push = [&] {
    return server->post("/generate/whole/inputs/action?done=1", "application/json", pairs(actions).dump()).status;
  };
  while (push() == 404) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // not there yet
  waiting.join();
  ASSERT_TRUE(answer.ok()) << answer.message;
  EXPECT_EQ(answer.chunks.size(), 10u);
  EXPECT_TRUE(answer.bytes("video_frame") == server->ask(body(actions, {{"seed", 9}})).bytes("video"));
}

TEST_F(ToyWorld, DriversTogetherAreAsOneByOne) {
  constexpr std::size_t kDrivers = 8;
  std::vector<Answer> answers(kDrivers);
  std::vector<std::thread> threads;
  const auto actions_of = [](std::size_t i) { return wander(10 + 12 * i, 1, static_cast<double>(i)); };
  for (std::size_t i = 0; i < kDrivers; ++i)
    threads.emplace_back([&, i] {
      const Actions actions = actions_of(i);
      Driver driver(*server, "driver-" + std::to_string(i), {{"seed", i}});
      for (std::size_t at = 0; at < actions.size() / 2; at += i + 1) {
        const std::size_t to = std::min(at + i + 1, actions.size() / 2);
        EXPECT_TRUE(driver.push(slice(actions, at, to), to == actions.size() / 2));
      }
      answers[i] = driver.rest();
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kDrivers; ++i) {
    Driver alone(*server, "alone", {{"seed", i}});
    EXPECT_TRUE(alone.push(actions_of(i), true));
    EXPECT_TRUE(alone.rest().chunks == answers[i].chunks);
    EXPECT_EQ(answers[i].chunks.size(), 10 + 12 * i);
  }
}

TEST_F(ToyWorld, AWorldThatEndsTakesNoMore) {
  const Actions actions = wander(30, 10);
  const Rollout wanted = expected_rollout(actions, 3);
  ASSERT_TRUE(wanted.left);
  Driver driver(*server, "far", {{"seed", 3}});
  ASSERT_TRUE(driver.push(actions));
  expect_near(driver.rest().bytes("video_frame"), wanted);
  EXPECT_EQ(driver.send("[1,1]", "application/json").status, 404);
  // An action that is not a number ends the world too.
  Driver broken(*server, "nan");
  EXPECT_EQ(broken.send(raw({std::nan(""), 1}), "application/octet-stream").status, 200);
  EXPECT_EQ(broken.rest().chunks.size(), 1u);
}

TEST_F(ToyWorld, ActionsMayComeWhileTheRequestWaits) {
  const ToyServer small("toy-world", {}, 1);
  Driver first(small, "first"), second(small, "second", {{"seed", 2}});
  EXPECT_TRUE(second.push(wander(5)));
  EXPECT_TRUE(first.push(wander(5)));
  first.read_frames(5);
  first.finish();
  EXPECT_EQ(first.rest().chunks.size(), 5u);
  second.read_frames(5);
  EXPECT_TRUE(second.push(slice(wander(6), 5, 6), true));
  EXPECT_TRUE(second.rest().bytes("video_frame") == server->ask(body(wander(6), {{"seed", 2}})).bytes("video"));
  EXPECT_TRUE(small.pools_are_empty());
}

TEST_F(ToyWorld, WrongInputIsRefusedAndTheRequestGoesOn) {
  const std::string too_much(8 * 65'537, '\0');
  struct Row {
    std::string path, body, type;
    int status;
    std::string param;
  };
  const std::string numbers = "application/json", bytes = "application/octet-stream";
  const std::vector<Row> rows = {{"/generate/nobody/inputs/action", "[1,1]", numbers, 404, "request_id"},
                                 {"/generate/wrong/inputs/state", "[1,1]", numbers, 404, "port"},
                                 {"/generate/wrong/inputs/actions", "[1,1]", numbers, 404, "port"},
                                 {"/generate/wrong/inputs/jump", "[1,1]", numbers, 404, "port"},
                                 {"/generate/wrong/inputs/action", "[1,2,3]", numbers, 400, "body"},
                                 {"/generate/wrong/inputs/action", "[[1],[2],[3]]", numbers, 400, "body"},
                                 {"/generate/wrong/inputs/action", "{\"x\":1}", numbers, 400, "body"},
                                 {"/generate/wrong/inputs/action", "[1,\"2\"]", numbers, 400, "body"},
                                 {"/generate/wrong/inputs/action", "[1,", numbers, 400, "body"},
                                 {"/generate/wrong/inputs/action", "12345", bytes, 400, "body"},
                                 {"/generate/wrong/inputs/action?done=soon", "[1,1]", numbers, 400, "done"},
                                 {"/generate/wrong/inputs/action?end=1", "[1,1]", numbers, 400, "end"},
                                 {"/generate/wrong/inputs/action", too_much, bytes, 429, "body"}};
  Driver driver(*server, "wrong");
  ASSERT_TRUE(driver.push(wander(3)));
  driver.read_frames(3);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.path + " " + row.body.substr(0, 20));
    const server::TestAnswer answer = server->post(row.path, row.type, row.body);
    EXPECT_EQ(answer.status, row.status);
    EXPECT_EQ(json::parse(answer.body).at("error").value("param", ""), row.param);
    EXPECT_EQ(answer.headers.count("retry-after"), row.status == 429 ? 1u : 0u);
  }
  EXPECT_EQ(driver.send(std::string((1 << 20) + 8, '\0'), bytes).status, 413);
  ASSERT_TRUE(driver.push(slice(wander(5), 3, 5), true));
  const server::TestAnswer late = driver.send("[1,1]", numbers);
  EXPECT_TRUE(late.status == 400 || late.status == 404) << "after the end: " << late.status;
  EXPECT_TRUE(driver.rest().bytes("video_frame") == server->ask(body(wander(5))).bytes("video"));
}

TEST_F(ToyWorld, NothingIsTakenAfterDone) {
  const ToyServer small("toy-world", {}, 1);
  Driver running(small, "running"), waiting(small, "waiting");
  ASSERT_TRUE(waiting.push(wander(2), true));  // it waits for its turn, so the end is not reached yet
  const server::TestAnswer answer = waiting.send("[1,1]", "application/json");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(json::parse(answer.body)["error"]["param"], "done");
  running.finish();
  EXPECT_TRUE(running.rest().ok());
  EXPECT_EQ(waiting.rest().chunks.size(), 2u);
}

TEST_F(ToyWorld, AClientThatGoesFreesEverything) {
  for (int i = 0; i < 8; ++i) {
    const std::string id = "gone-" + std::to_string(i);
    Driver driver(*server, id);
    if (i % 4 > 0) {
      ASSERT_TRUE(driver.push(wander(static_cast<std::size_t>(i % 4) * 40)));
      driver.read_frames(i);
    }
    if (i % 2 == 0) driver.client().reset();
    if (i % 2 == 1) driver.client().close();
    EXPECT_TRUE(server->pools_are_empty());
    EXPECT_EQ(driver.send("[1,1]", "application/json").status, 404);
  }
  // Many actions wait when it goes.
  Driver driver(*server, "busy");
  EXPECT_EQ(driver.send(std::string(8 * 60'000, '\0'), "application/octet-stream").status, 200);
  driver.read_frames(3);
  driver.client().reset();
  EXPECT_TRUE(server->pools_are_empty());
  EXPECT_EQ(server->ask(body(wander(5))).chunks.size(), 1u);
}

TEST_F(ToyWorld, AbortsGiveEverythingBack) {
  for (int i = 0; i < 12; ++i) {
    auto ticket = server->submit("", {{"actions", wander(64)}, {"stream_rollout", i % 2 == 0}}, {});
    if (i % 4 == 0) ticket->wait_for_chunks(static_cast<std::size_t>(i));
    server->frontend().abort(ticket->id);
    ticket->wait();
  }
  EXPECT_TRUE(server->pools_are_empty());
  EXPECT_EQ(server->ask(body(wander(5))).chunks.size(), 1u);
}

TEST_F(ToyWorld, BadFieldsAreNamed) {
  const std::vector<std::pair<json, std::string>> rows = {
      {json::object(), "actions"},
      {body({}), "actions"},
      {body({1, 2, 3}), "actions"},
      {body(Actions(130)), "actions"},
      {body({1, 11}), "actions"},
      {body({1, -1e300}), "actions"},
      {{{"actions", "1,2"}}, "actions"},
      {{{"actions", {"1", "2"}}}, "actions"},
      {{{"actions", 1}}, "actions"},
      {body({1, 2}, {{"control", "pilot"}}), "control"},
      {body({1, 2}, {{"control", "client"}}), "actions"},
      {body({1, 2}, {{"stream_rollout", "perhaps"}}), "stream_rollout"},
      {body({1, 2}, {{"seed", 0.5}}), "seed"}};
  for (const auto& [request, field] : rows) {
    const Answer answer = server->ask(request);
    EXPECT_EQ(answer.status, 400) << request;
    EXPECT_EQ(answer.param, field) << request;
  }
}

}  // namespace
}  // namespace mstar::toys
