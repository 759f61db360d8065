#include "warmup.h"

#include <gtest/gtest.h>

namespace mstar::apps {
namespace {

// Answers nobody until as many requests wait as the next phase has: a warm-up that does not send them at once never
// ends.
class PhasedFrontend final : public Frontend {
 public:
  explicit PhasedFrontend(std::vector<std::size_t> phases) : phases_(std::move(phases)) {}
  Result<std::vector<RequestId>> submit_call(CallRequests call) override {
    models_asked.push_back(call.requests.front().model);
    waiting_.push_back(std::move(call.sinks.front()));
    const std::size_t wanted = phase < phases_.size() ? phases_[phase] : 1;
    if (waiting_.size() < wanted) return std::vector{RequestId(waiting_.size())};
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      const bool fails = phase == failing_phase && i < num_failing;
      waiting_[i]->on_event(fails ? RequestEvent(Failed{internal_error("copy " + std::to_string(i))})
                                  : RequestEvent(Finished{}));
      num_ended += 1;
    }
    waiting_.clear();
    ++phase;
    return std::vector{RequestId(99)};
  }
  void abort(RequestId) override {}
  Status push(RequestId, std::string_view, const HostValue&, bool) override { return ok_status(); }
  std::vector<ServedModel> models() const override { return {{.name = "first"}, {.name = "second"}}; }
  RuntimeState state() const override { return {.ready = true}; }
  std::string metrics_text() const override { return ""; }

  std::vector<std::string> models_asked;
  std::size_t phase = 0, failing_phase = ~std::size_t{0}, num_failing = 0, num_ended = 0;

 private:
  std::vector<std::size_t> phases_;
  std::vector<std::shared_ptr<EventSink>> waiting_;
};

TEST(Warmup, EachRequestRunsAloneAndThenAtOnce) {
  PhasedFrontend frontend({1, 3, 1});
  EXPECT_TRUE(run_warmup(frontend, {{.text = "a", .concurrency = 3}, {.model = "second", .text = "b"}}));
  EXPECT_EQ(frontend.phase, 3u);
  EXPECT_EQ(frontend.models_asked, (std::vector<std::string>{"first", "first", "first", "first", "second"}));
}

TEST(Warmup, RunsAsManyTimesAtOnceAsThereAreReplicas) {
  PhasedFrontend frontend({1, 4, 1, 6});
  EXPECT_TRUE(run_warmup(frontend, {{.text = "a"}, {.text = "b", .concurrency = 6}}, 4));
  EXPECT_EQ(frontend.phase, 4u);
}

TEST(Warmup, TheFirstFailureIsToldOnceItsSiblingsHaveEnded) {
  PhasedFrontend frontend({1, 3});
  frontend.failing_phase = 1;
  frontend.num_failing = 2;
  const Status ran = run_warmup(frontend, {{.text = "a", .concurrency = 3}, {.text = "never"}});
  ASSERT_FALSE(ran);
  EXPECT_NE(ran.error().message.find("warmup request 1"), std::string::npos) << ran.error().message;
  EXPECT_NE(ran.error().message.find("copy 0"), std::string::npos) << ran.error().message;
  EXPECT_EQ(frontend.num_ended, 4u);
  EXPECT_EQ(frontend.phase, 2u);
}

TEST(Warmup, AFailureAloneStopsBeforeTheOthers) {
  PhasedFrontend frontend({1, 3});
  frontend.failing_phase = 0;
  frontend.num_failing = 1;
  EXPECT_FALSE(run_warmup(frontend, {{.text = "a", .concurrency = 3}}));
  EXPECT_EQ(frontend.num_ended, 1u);
}

}  // namespace
}  // namespace mstar::apps
