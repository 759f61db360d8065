#include "warmup.h"

#include <gtest/gtest.h>

namespace mstar::apps {
namespace {

using Asked = std::vector<std::pair<std::string, int>>;

// Answers nobody until as many requests wait as the next phase has: a warm-up that does not send them at once never
// ends.
class PhasedFrontend final : public Frontend {
 public:
  explicit PhasedFrontend(std::vector<std::size_t> phases) : phases_(std::move(phases)) {}
  Result<std::vector<RequestId>> submit_call(CallRequests call) override {
    if (waiting_.size() >= num_places || num_held_ > 0) {
      num_held_ -= num_held_ > 0;
      ++num_refused;
      return exhausted("the queue is full");
    }
    asked.emplace_back(call.requests.front().model, static_cast<int>(*call.requests.front().replica));
    waiting_.push_back(std::move(call.sinks.front()));
    const std::size_t wanted = phase < phases_.size() ? phases_[phase] : 1;
    if (waiting_.size() < wanted) return std::vector{RequestId(waiting_.size())};
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      const bool fails = phase == failing_phase && i < num_failing;
      waiting_[i]->on_event(fails ? RequestEvent(Failed{internal_error("copy " + std::to_string(i))})
                                  : RequestEvent(Finished{}));
      num_ended += 1;
    }
    // Who has ended holds its place for a moment yet.
    if (waiting_.size() >= num_places) num_held_ = 2;
    waiting_.clear();
    ++phase;
    return std::vector{RequestId(99)};
  }
  void abort(RequestId) override {}
  Status push(RequestId, std::string_view, const HostValue&, bool) override { return ok_status(); }
  std::vector<ServedModel> models() const override {
    return {{.name = "first", .aliases = {"one"}}, {.name = "second"}};
  }
  RuntimeState state() const override { return {.ready = true}; }
  std::string metrics_text() const override { return ""; }

  std::vector<std::pair<std::string, int>> asked;  // models and replicas
  std::size_t num_places = 99, num_refused = 0;
  std::size_t phase = 0, failing_phase = ~std::size_t{0}, num_failing = 0, num_ended = 0;

 private:
  std::vector<std::size_t> phases_;
  std::size_t num_held_ = 0;
  std::vector<std::shared_ptr<EventSink>> waiting_;
};

TEST(Warmup, EachRequestRunsAsManyTimesAtOnceAsItsModelHasReplicas) {
  PhasedFrontend frontend({3, 1, 2});
  EXPECT_TRUE(run_warmup(frontend, {{.text = "a", .concurrency = 3}, {.model = "second", .text = "b"}, {.text = "c"}},
                         {{"first", {2, 2}}, {"second", {1}}}));
  EXPECT_EQ(frontend.phase, 3u);
  EXPECT_EQ(frontend.asked,
            (Asked{{"first", 0}, {"first", 1}, {"first", 2}, {"second", 0}, {"first", 0}, {"first", 1}}));
}

TEST(Warmup, WhereGroupsHaveDifferentNumbersOfReplicasItRunsAloneFirst) {
  PhasedFrontend frontend({1, 4, 1, 6});
  const ReplicaCounts counts = {{"first", {1, 4, 2}}};
  EXPECT_TRUE(run_warmup(frontend, {{.text = "a"}, {.model = "one", .text = "b", .concurrency = 6}}, counts));
  EXPECT_EQ(frontend.phase, 4u);
  EXPECT_EQ(frontend.asked[0], (std::pair<std::string, int>{"first", 0}));
  EXPECT_EQ(frontend.asked[4], (std::pair<std::string, int>{"first", 3}));
  EXPECT_EQ(frontend.asked[11], (std::pair<std::string, int>{"one", 5}));
}

TEST(Warmup, CopiesBeyondTheQueueWaitForTheirSiblings) {
  PhasedFrontend frontend({2, 2, 1});
  frontend.num_places = 2;
  EXPECT_TRUE(run_warmup(frontend, {{.text = "a", .concurrency = 5}}));
  EXPECT_EQ(frontend.asked.size(), 5u);
  EXPECT_EQ(frontend.num_ended, 5u);
  EXPECT_GT(frontend.num_refused, 0u);
}

TEST(Warmup, TheFirstFailureIsToldOnceItsSiblingsHaveEnded) {
  PhasedFrontend frontend({3});
  frontend.failing_phase = 0;
  frontend.num_failing = 2;
  const Status ran = run_warmup(frontend, {{.text = "a", .concurrency = 3}, {.text = "never"}});
  ASSERT_FALSE(ran);
  EXPECT_NE(ran.error().message.find("warmup-0.0"), std::string::npos) << ran.error().message;
  EXPECT_NE(ran.error().message.find("copy 0"), std::string::npos) << ran.error().message;
  EXPECT_EQ(frontend.num_ended, 3u);
  EXPECT_EQ(frontend.phase, 1u);
}

TEST(Warmup, AFailureAloneStopsBeforeTheOthers) {
  PhasedFrontend frontend({1, 3});
  frontend.failing_phase = 0;
  frontend.num_failing = 1;
  const Status ran = run_warmup(frontend, {{.text = "a", .concurrency = 3}}, {{"first", {1, 2}}});
  ASSERT_FALSE(ran);
  EXPECT_NE(ran.error().message.find("warmup-0.solo"), std::string::npos) << ran.error().message;
  EXPECT_EQ(frontend.num_ended, 1u);
}

TEST(Warmup, FilesAreLookedAtBeforeAnythingIsLoaded) {
  EXPECT_TRUE(check_warmup({{.text = "a"}}));
  const Status missing = check_warmup({{.text = "a"}, {.files = {"/no/such.wav"}}});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("warmup_requests[1]"), std::string::npos) << missing.error().message;
}

}  // namespace
}  // namespace mstar::apps
