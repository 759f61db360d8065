#include "mstar/live/live_hearing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "mstar/media/audio_source.h"

namespace mstar {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// What is asked of the runtime; the test answers.
class Runtime final : public Frontend {
 public:
  Result<std::vector<RequestId>> submit_call(CallRequests call) override {
    if (refusal) return *refusal;
    requests.push_back(std::move(call.requests[0]));
    sinks.push_back(call.sinks[0]);
    return std::vector<RequestId>{RequestId(requests.size())};
  }
  void abort(RequestId request) override { aborted.push_back(request.value); }
  Status push(RequestId, std::string_view, const HostValue&, bool) override { return ok_status(); }
  std::vector<ServedModel> models() const override { return {}; }
  RuntimeState state() const override { return {.ready = true}; }
  std::string metrics_text() const override { return {}; }

  // The last one hears these segments, each a second long.
  void answer(const std::vector<std::string>& segments) {
    const auto sink = sinks.back();
    for (std::size_t i = 0; i < segments.size(); ++i)
      sink->on_event(
          decl::Chunk{.modality = decl::Modality::text,
                      .format = "segment",
                      .value = HostValue::utf8("{\"start\":" + std::to_string(i) + ",\"end\":" + std::to_string(i + 1) +
                                               ",\"text\":\"" + segments[i] + "\"}")});
    sink->on_event(Finished{});
  }
  // Of the last hearing.
  double seconds() const {
    auto source = AudioSource::open(requests.back().media[0].bytes.bytes(), requests.back().media[0].bytes.owner());
    std::vector<float> samples(kVoiceRateHz * 60);
    return static_cast<double>(*source->read(samples)) / kVoiceRateHz;
  }

  std::optional<Error> refusal;
  std::vector<decl::ApiRequest> requests;
  std::vector<std::shared_ptr<EventSink>> sinks;
  std::vector<std::uint64_t> aborted;
};

class LiveHearingTest : public testing::Test {
 protected:
  void SetUp() override {
    hearing_ = std::make_shared<LiveHearing>(runtime_, nullptr, LiveOptions{.model = "m"}, [this](LiveEvent event) {
      using Kind = LiveEvent::Kind;
      const char* const name = event.kind == Kind::committed   ? "committed"
                               : event.kind == Kind::delta     ? "delta"
                               : event.kind == Kind::completed ? "completed"
                               : event.kind == Kind::failed    ? "failed"
                                                               : "?";
      told_.push_back(name + std::to_string(event.turn) + ":" +
                      (event.kind == Kind::failed ? event.error.message : event.text));
    });
  }
  void speak(double seconds) {
    const std::vector<float> sound(static_cast<std::size_t>(seconds * kVoiceRateHz), 0.25f);
    hearing_->append(sound);
  }
  std::vector<std::string> told() { return std::exchange(told_, {}); }

  Runtime runtime_;
  std::vector<std::string> told_;
  std::shared_ptr<LiveHearing> hearing_;
};

TEST_F(LiveHearingTest, ATurnIsHeardAsItGrows) {
  speak(0.2);
  EXPECT_TRUE(runtime_.requests.empty()) << "too little to be worth it";
  speak(0.3);
  ASSERT_EQ(runtime_.requests.size(), 1u);
  EXPECT_DOUBLE_EQ(runtime_.seconds(), 0.5);
  speak(1);
  EXPECT_EQ(runtime_.requests.size(), 1u) << "one at a time";
  runtime_.answer({" one two"});
  ASSERT_EQ(runtime_.requests.size(), 2u);
  EXPECT_DOUBLE_EQ(runtime_.seconds(), 1.5);
  EXPECT_THAT(told(), IsEmpty());
  runtime_.answer({" one two", " three"});
  EXPECT_THAT(told(), ElementsAre("delta1:one two"));
  EXPECT_TRUE(hearing_->commit());
  EXPECT_THAT(told(), ElementsAre("committed1:"));
  ASSERT_EQ(runtime_.requests.size(), 3u);
  EXPECT_FALSE(runtime_.requests[2].fields.has("temperature_increment_on_fallback")) << "the last one may try again";
  runtime_.answer({" one two three", " four."});
  EXPECT_THAT(told(), ElementsAre("delta1: three four.", "completed1:one two three four."));
  EXPECT_TRUE(hearing_->is_idle());
  EXPECT_FALSE(hearing_->commit()) << "nothing is there";
}

TEST_F(LiveHearingTest, TheNextTurnWaitsForTheEndOfTheOneBefore) {
  speak(1);
  hearing_->commit();
  speak(2);
  runtime_.answer({" a"});    // as it grew
  runtime_.answer({" a b"});  // at its end
  EXPECT_THAT(told(), ElementsAre("committed1:", "delta1:a b", "completed1:a b"));
  EXPECT_DOUBLE_EQ(runtime_.seconds(), 2);
}

TEST_F(LiveHearingTest, ALongTurnIsCutWhereItsTextHasSettled) {
  speak(21);
  runtime_.answer({" one", " two", " three"});  // a second each
  EXPECT_THAT(told(), ElementsAre("delta1:one two"));
  EXPECT_DOUBLE_EQ(runtime_.seconds(), 19) << "the rest is heard alone";
  runtime_.answer({" three"});
  speak(20);
  EXPECT_DOUBLE_EQ(runtime_.seconds(), 28) << "never more";
  runtime_.answer({" three and on"});  // one segment: at any price
  EXPECT_THAT(told(), ElementsAre("delta1: three", "delta1: and on"));
  hearing_->commit();
  runtime_.answer({" end."});
  runtime_.answer({" end."});
  EXPECT_THAT(told(), ElementsAre("committed1:", "delta1: end.", "completed1:one two three and on end."));
}

TEST_F(LiveHearingTest, WhatFindsNoPlaceIsTriedAgain) {
  runtime_.refusal = exhausted("full");
  speak(1);
  speak(1);
  EXPECT_THAT(told(), IsEmpty());
  runtime_.refusal.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(550));
  hearing_->tick();
  ASSERT_EQ(runtime_.requests.size(), 1u);
  runtime_.sinks.back()->on_event(Failed{unavailable("worker 1 is gone")});
  EXPECT_THAT(told(), IsEmpty());
  std::this_thread::sleep_for(std::chrono::milliseconds(550));
  hearing_->tick();
  ASSERT_EQ(runtime_.requests.size(), 2u);
  EXPECT_DOUBLE_EQ(runtime_.seconds(), 2);
}

TEST_F(LiveHearingTest, WhatWillNeverDoEndsItsTurn) {
  runtime_.refusal = invalid_request("no such model");
  speak(1);
  EXPECT_THAT(told(), ElementsAre("failed1:no such model"));
  EXPECT_TRUE(hearing_->is_idle());
}

TEST_F(LiveHearingTest, ClearForgetsAndCloseIsTheEnd) {
  speak(1);
  hearing_->clear();
  EXPECT_THAT(runtime_.aborted, ElementsAre(1u));
  runtime_.answer({" late"});
  EXPECT_THAT(told(), IsEmpty());
  speak(1);
  hearing_->close();
  EXPECT_THAT(runtime_.aborted, ElementsAre(1u, 2u));
  runtime_.answer({" late"});
  speak(1);
  EXPECT_THAT(told(), IsEmpty());
  hearing_.reset();
  runtime_.answer({" after its end"});
}

}  // namespace
}  // namespace mstar
