// Ranks in step that are threads: a group that has ended begins again, warm, with what it had.
#include <gmock/gmock.h>

#include "isolation_support.h"

namespace mstar::apps {
namespace {

using State = WorkerInfo::State;
using ::testing::HasSubstr;

const std::string kLlama = std::string(MSTAR_SOURCE_DIR) + "/tests/golden/decoders/llama";
constexpr int kWarmTokens = 40;

decl::ApiRequest text_request(int num_tokens) {
  decl::ApiRequest out{.route = decl::Route::generate, .model = "m", .text = "Hello"};
  out.output_modalities = {decl::Modality::text};
  out.fields.set("max_tokens", std::int64_t{num_tokens});
  out.fields.set("temperature", 0.0);
  out.fields.set("ignore_eos", true);
  return out;
}

// `replicas` groups of two ranks each.
std::unique_ptr<Runtime> two_in_step(std::size_t replicas, std::chrono::milliseconds delay) {
  ModelConfig model{.model = kLlama, .name = "m"};
  model.node_groups = {{.components = {"decoder"}, .ranks = {}, .tp_size = 2}};
  for (int rank = 0; rank < 2 * static_cast<int>(replicas); ++rank) model.node_groups[0].ranks.push_back(rank);
  RuntimeConfig config = config_of(Isolation::thread, {model});
  config.group_delay = delay;
  auto made = Runtime::build(std::move(config));
  EXPECT_TRUE(made) << made.error().message;
  return made ? std::move(*made) : nullptr;
}

Call begin(Runtime& runtime, int num_tokens, std::optional<std::uint32_t> replica = {}) {
  Call out;
  out.sink = std::make_shared<WaitingSink>([text = out.text, count = out.num_chunks](const decl::Chunk& chunk) {
    *text += chunk.value.text();
    ++*count;
  });
  decl::ApiRequest request = text_request(num_tokens);
  request.replica = replica;
  auto id = runtime.frontend().submit(std::move(request), out.sink);
  if (!id) out.sink->on_event(Failed{std::move(id.error())});
  return out;
}

std::string answered(Runtime& runtime, int num_tokens, std::optional<std::uint32_t> replica = {}) {
  const Call made = begin(runtime, num_tokens, replica);
  const auto end = made.sink->wait();
  return end ? *made.text : "failed: " + end.error().message;
}

// The end of a group may be on its way to the conductor when the next one begins.
bool answers_again(Runtime& runtime, int num_tokens, const std::string& expected) {
  return comes_true([&] { return answered(runtime, num_tokens) == expected; });
}

WorkerInfo leader(Runtime& runtime, std::size_t rank = 0) { return runtime.frontend().workers()[rank]; }
bool is(Runtime& runtime, State state, std::size_t rank = 0) {
  return comes_true([&] { return leader(runtime, rank).state == state; });
}
std::int64_t num_steps(Runtime& runtime, int rank) {
  return metric(runtime, "mstar_steps_total{worker=\"" + std::to_string(rank + 1) + "\"");
}
void expect_nothing_left(Runtime& runtime) {
  for (const int worker : {1, 2})
    EXPECT_TRUE(comes_true([&] {
      return metric(runtime, "mstar_resource_used{worker=\"" + std::to_string(worker) + "\"") == 0;
    })) << worker;
}

TEST(StepGroups, AGroupThatEndedComesBackWarmWithTheSameAnswers) {
  const auto runtime = two_in_step(1, 1ms);
  ASSERT_TRUE(runtime);
  const std::string expected = answered(*runtime, 12);
  ASSERT_EQ(expected.find("failed"), std::string::npos) << expected;
  ASSERT_TRUE(runtime->conductor().set_warmup({{"warmup-0", text_request(kWarmTokens), 1}}).ok());
  for (int life = 0; life < 3; ++life) {
    const auto group = runtime->step_group(0);
    const Call cut = begin(*runtime, 200);
    ASSERT_TRUE(comes_true([&] { return *cut.num_chunks > 0; })) << life;
    group->end("told to");
    const auto end = cut.sink->wait();
    if (!end) {  // else it was faster
      EXPECT_EQ(end.error().code, Code::unavailable);
      EXPECT_THAT(end.error().message, HasSubstr("told to"));
    }
    ASSERT_TRUE(comes_true([&] { return runtime->step_group(0) != group; }));
    ASSERT_TRUE(is(*runtime, State::running)) << leader(*runtime).reason;
    EXPECT_TRUE(answers_again(*runtime, 12, expected));
    for (const int rank : {0, 1})  // its engines are new, and were warmed
      EXPECT_TRUE(comes_true([&] { return num_steps(*runtime, rank) >= kWarmTokens; })) << num_steps(*runtime, rank);
    expect_nothing_left(*runtime);
  }
}

TEST(StepGroups, AnotherReplicaServesMeanwhile) {
  const auto runtime = two_in_step(2, 200ms);
  ASSERT_TRUE(runtime);
  const std::string expected = answered(*runtime, 12);
  const auto group = runtime->step_group(0);
  group->end("told to");
  ASSERT_TRUE(comes_true([&] { return leader(*runtime).state != State::running || runtime->step_group(0) != group; }));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answered(*runtime, 12, 1), expected);
  ASSERT_TRUE(comes_true([&] { return runtime->step_group(0) != group; }));
  ASSERT_TRUE(is(*runtime, State::running));
  EXPECT_TRUE(answers_again(*runtime, 12, expected));
}

TEST(StepGroups, OneThatEndsTooOftenIsGivenUpWithItsReasonUntilItIsResumed) {
  const auto runtime = two_in_step(1, 1ms);
  ASSERT_TRUE(runtime);
  const std::string expected = answered(*runtime, 12);
  for (int life = 0; life < 5; ++life) {
    ASSERT_TRUE(is(*runtime, State::running)) << life;
    const auto group = runtime->step_group(0);
    group->end("told to");
    if (life == 4) break;
    ASSERT_TRUE(comes_true([&] { return runtime->step_group(0) != group; })) << life;
  }
  ASSERT_TRUE(comes_true([&] { return leader(*runtime).reason.find("5 times in a row") != std::string::npos; }))
      << leader(*runtime).reason;
  EXPECT_EQ(leader(*runtime).state, State::failed);
  EXPECT_THAT(leader(*runtime).reason, HasSubstr("told to; POST /debug/workers/0/resume"));
  EXPECT_THAT(runtime->frontend().state().reason, HasSubstr("told to"));
  const auto given_up = runtime->step_group(0);
  ASSERT_TRUE(runtime->frontend().order_worker(0, WorkerOrder::resume));
  ASSERT_TRUE(comes_true([&] { return runtime->step_group(0) != given_up; }));
  ASSERT_TRUE(is(*runtime, State::running)) << leader(*runtime).reason;
  EXPECT_TRUE(answers_again(*runtime, 12, expected));
}

// Requests come and go while the group ends again and again: each has one end, and nothing is left.
TEST(StepGroups, EndsUnderLoadLoseNothing) {
  const auto runtime = two_in_step(1, 1ms);
  ASSERT_TRUE(runtime);
  const std::string expected = answered(*runtime, 12);
  std::atomic<bool> stopping{false};
  std::vector<std::thread> clients;
  std::atomic<int> num_answers{0};
  for (int c = 0; c < 2; ++c)
    clients.emplace_back([&] {
      while (!stopping) {
        auto sink = std::make_shared<WaitingSink>([](const decl::Chunk&) {});
        if (!runtime->frontend().submit(text_request(12), sink)) {
          std::this_thread::sleep_for(1ms);
          continue;
        }
        if (const auto end = sink->wait()) {
          ++num_answers;
        } else {
          EXPECT_EQ(end.error().code, Code::unavailable) << end.error().message;
        }
      }
    });
  for (int life = 0; life < 4; ++life) {
    const int before = num_answers;
    EXPECT_TRUE(comes_true([&] { return num_answers > before; }));
    const auto group = runtime->step_group(0);
    group->end("told to");
    EXPECT_TRUE(comes_true([&] { return runtime->step_group(0) != group; }));
  }
  EXPECT_TRUE(is(*runtime, State::running));
  stopping = true;
  for (std::thread& each : clients) each.join();
  EXPECT_TRUE(answers_again(*runtime, 12, expected));
  expect_nothing_left(*runtime);
}

}  // namespace
}  // namespace mstar::apps
