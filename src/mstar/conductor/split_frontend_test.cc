#include "mstar/conductor/split_frontend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace mstar::conductor {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Holds what it is asked; the test says what becomes of it.
class Inner final : public Frontend {
 public:
  struct Asked {
    std::string text;
    std::shared_ptr<EventSink> sink;
    bool aborted = false;
  };
  Result<std::vector<RequestId>> submit_call(CallRequests call) override {
    std::lock_guard lock(mutex_);
    if (full > 0) {
      --full;
      return exhausted("full");
    }
    if (refuses) return unavailable("no worker");
    asked_.push_back({call.requests[0].text, call.sinks[0]});
    return std::vector<RequestId>{RequestId(asked_.size())};
  }
  void abort(RequestId request) override {
    std::lock_guard lock(mutex_);
    if (request.value <= asked_.size()) asked_[request.value - 1].aborted = true;
  }
  Status push(RequestId, std::string_view, const HostValue&, bool) override { return ok_status(); }
  std::vector<ServedModel> models() const override { return {}; }
  RuntimeState state() const override { return {.ready = true}; }
  std::string metrics_text() const override { return {}; }

  std::vector<Asked> asked() const {
    std::lock_guard lock(mutex_);
    return asked_;
  }
  void say(std::size_t at, const std::string& text) {
    asked()[at].sink->on_event(
        decl::Chunk{.modality = decl::Modality::text, .format = "utf8", .value = HostValue::utf8(text)});
  }
  void finish(std::size_t at, const std::string& language = "") {
    Finished finished{.usage = {.prompt_tokens = 1, .completion_tokens = 2}};
    if (!language.empty()) finished.metadata.set("language", language);
    asked()[at].sink->on_event(std::move(finished));
  }

  std::atomic<int> full{0};
  std::atomic<bool> refuses{false};

 private:
  mutable std::mutex mutex_;
  std::vector<Asked> asked_;
};

// Parts "0", "1", ... of a request whose text is their number.
class Counting final : public decl::Splitter {
 public:
  explicit Counting(const decl::ApiRequest& request)
      : num_(std::stoi(request.text)),
        first_goes_ahead_(request.fields.has("first")),
        breaks_(request.fields.has("breaks")) {}
  Result<std::optional<decl::ApiRequest>> next(const std::function<bool()>& gives_up) override {
    if (breaks_ && made_ == 2) return invalid_request("broken").with_field("file");
    if (num_ < 0)
      while (!gives_up()) std::this_thread::sleep_for(1ms);
    if (made_ >= num_) return std::optional<decl::ApiRequest>();
    decl::ApiRequest out;
    std::lock_guard lock(mutex_);
    out.text = std::to_string(made_++) + language_;
    return std::optional<decl::ApiRequest>(std::move(out));
  }
  bool first_goes_ahead() const override { return first_goes_ahead_; }
  void learn(std::size_t part, const Params& metadata) override {
    std::lock_guard lock(mutex_);
    if (part == 0) language_ = metadata.get_string("language", "").value_or("");
  }
  Result<decl::Chunk> restore(std::size_t part, decl::Chunk chunk) override {
    chunk.value = HostValue::utf8(std::to_string(part) + ":" + std::string(chunk.value.text()));
    return chunk;
  }
  Params metadata() const override {
    Params out;
    out.set("parts", static_cast<std::int64_t>(made_));
    return out;
  }

 private:
  const int num_;
  const bool first_goes_ahead_, breaks_;
  int made_ = 0;
  std::mutex mutex_;
  std::string language_;
};

class Sink final : public EventSink {
 public:
  void on_event(RequestEvent event) override {
    std::lock_guard lock(mutex_);
    if (const auto* const chunk = std::get_if<decl::Chunk>(&event)) told_.emplace_back(chunk->value.text());
    if (const auto* const failed = std::get_if<Failed>(&event)) told_.push_back("failed: " + failed->error.message);
    if (const auto* const finished = std::get_if<Finished>(&event))
      told_.push_back("finished " + std::to_string(finished->metadata.get_int("parts", -1).value_or(-1)) + " " +
                      std::to_string(finished->usage.completion_tokens));
  }
  std::vector<std::string> told() const {
    std::lock_guard lock(mutex_);
    return told_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> told_;
};

class SplitFrontendTest : public testing::Test {
 protected:
  RequestId ask(const std::string& text, const char* field = nullptr) {
    decl::ApiRequest request;
    request.text = text;
    if (field) request.fields.set(field, true);
    sink_ = std::make_shared<Sink>();
    auto id = frontend_->submit(std::move(request), sink_);
    EXPECT_TRUE(id) << id.error().message;
    return id ? *id : RequestId();
  }
  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 5000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }
  bool wait_asked(std::size_t count) {
    return eventually([&] { return inner_.asked().size() >= count; });
  }

  Inner inner_;
  std::unique_ptr<SplitFrontend> frontend_ = std::make_unique<SplitFrontend>(
      inner_, SplitOptions{.split = [](const decl::ApiRequest& request) -> Result<std::unique_ptr<decl::Splitter>> {
                             if (request.text == "whole") return std::unique_ptr<decl::Splitter>();
                             if (request.text == "bad") return invalid_request("bad").with_field("file");
                             return std::unique_ptr<decl::Splitter>(std::make_unique<Counting>(request));
                           },
                           .most_running = 2,
                           .retry = 1ms});
  std::shared_ptr<Sink> sink_;
};

TEST_F(SplitFrontendTest, PartsBecomeOneAnswerInOrder) {
  ask("3");
  ASSERT_TRUE(wait_asked(2));
  inner_.say(1, "b");
  inner_.finish(1);
  ASSERT_TRUE(wait_asked(3));
  inner_.say(2, "c");
  EXPECT_THAT(sink_->told(), IsEmpty()) << "the first one's turn";
  inner_.say(0, "a");
  EXPECT_THAT(sink_->told(), ElementsAre("0:a"));
  inner_.finish(0);
  EXPECT_THAT(sink_->told(), ElementsAre("0:a", "1:b", "2:c"));
  inner_.say(2, "d");
  inner_.finish(2);
  ASSERT_TRUE(eventually([&] { return sink_->told().size() == 5; }));
  EXPECT_EQ(sink_->told().back(), "finished 3 6");
}

TEST_F(SplitFrontendTest, FewRunAtATime) {
  ask("40");
  for (std::size_t part = 0; part < 40; ++part) {
    ASSERT_TRUE(wait_asked(part + 1));
    EXPECT_LE(inner_.asked().size(), part + 2);
    inner_.finish(part);
  }
  EXPECT_TRUE(eventually([&] { return !sink_->told().empty(); }));
}

TEST_F(SplitFrontendTest, TheFirstMayGoAheadAndTellTheOthers) {
  ask("3", "first");
  ASSERT_TRUE(wait_asked(1));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(inner_.asked().size(), 1u);
  inner_.finish(0, "de");
  ASSERT_TRUE(wait_asked(3));
  EXPECT_EQ(inner_.asked()[2].text, "2de");
}

TEST_F(SplitFrontendTest, NothingAtAllIsAnAnswer) {
  ask("0");
  ASSERT_TRUE(eventually([&] { return !sink_->told().empty(); }));
  EXPECT_THAT(sink_->told(), ElementsAre("finished 0 0"));
}

TEST_F(SplitFrontendTest, APartThatFailsEndsAll) {
  ask("9");
  ASSERT_TRUE(wait_asked(2));
  inner_.asked()[1].sink->on_event(Failed{unavailable("worker 1 is gone")});
  EXPECT_THAT(sink_->told(), ElementsAre("failed: worker 1 is gone"));
  EXPECT_TRUE(inner_.asked()[0].aborted);
  inner_.say(0, "late");
  inner_.finish(0);
  EXPECT_EQ(sink_->told().size(), 1u);
}

TEST_F(SplitFrontendTest, ASplitterThatFailsEndsAll) {
  ask("9", "breaks");
  ASSERT_TRUE(wait_asked(2));
  inner_.finish(0);
  ASSERT_TRUE(eventually([&] { return !sink_->told().empty(); }));
  EXPECT_THAT(sink_->told(), ElementsAre("failed: broken"));
}

TEST_F(SplitFrontendTest, WhoeverLeavesIsNotWaitedFor) {
  for (const char* const text : {"9", "-1"}) {  // parts run; the first one is being made
    const RequestId id = ask(text);
    ASSERT_TRUE(*text != '9' || wait_asked(2));
    frontend_->abort(id);
    EXPECT_THAT(sink_->told(), ElementsAre(HasSubstr("failed")));
    for (const auto& each : inner_.asked()) EXPECT_TRUE(each.aborted);
    frontend_->abort(id);  // it is gone, or goes
  }
  EXPECT_TRUE(frontend_->drain(10s));
}

TEST_F(SplitFrontendTest, APlaceIsWaitedFor) {
  inner_.full = 3;
  ask("1");
  ASSERT_TRUE(wait_asked(1));
  inner_.finish(0);
  ASSERT_TRUE(eventually([&] { return !sink_->told().empty(); }));
  inner_.refuses = true;
  ask("1");
  ASSERT_TRUE(eventually([&] { return !sink_->told().empty(); }));
  EXPECT_THAT(sink_->told(), ElementsAre("failed: no worker"));
}

TEST_F(SplitFrontendTest, OthersGoStraightOn) {
  ask("whole");
  ASSERT_EQ(inner_.asked().size(), 1u);
  EXPECT_EQ(inner_.asked()[0].sink, sink_);
  decl::ApiRequest bad;
  bad.text = "bad";
  EXPECT_EQ(frontend_->submit(std::move(bad), std::make_shared<Sink>()).error().field, "file");
}

TEST_F(SplitFrontendTest, ItsEndEndsWhatIsLeft) {
  ask("9");
  ASSERT_TRUE(wait_asked(1));
  frontend_.reset();
  EXPECT_THAT(sink_->told(), ElementsAre(HasSubstr("failed")));
}

TEST_F(SplitFrontendTest, NoneIsTakenWhileItDrains) {
  ask("1");
  ASSERT_TRUE(wait_asked(1));
  EXPECT_FALSE(frontend_->drain(1ms));
  decl::ApiRequest late;
  late.text = "1";
  EXPECT_EQ(frontend_->submit(std::move(late), std::make_shared<Sink>()).error().code, Code::unavailable);
  inner_.finish(0);
  EXPECT_TRUE(frontend_->drain(10s));
}

}  // namespace
}  // namespace mstar::conductor
