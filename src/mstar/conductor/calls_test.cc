// Calls of several choices: one reading of the prompt, places for all of them or for none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mstar/conductor/conductor.h"

namespace mstar::conductor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct AddedRequests final : wire::Mesh {
  bool to_worker(WorkerId, wire::ToWorker message) override {
    if (auto* add = std::get_if<wire::AddRequest>(&message)) added.push_back(std::move(*add));
    return true;
  }
  void to_conductor(wire::ToConductor) override {}
  std::vector<wire::AddRequest> added;
};

struct Ends final : EventSink {
  std::vector<RequestEvent> events;
  void on_event(RequestEvent event) override { events.push_back(std::move(event)); }
};

// Ends the answer at "END", and at its end when that was told to be one.
struct EndEmitter final : decl::Emitter {
  Result<decl::Emitted> push(decl::PortRef, std::span<const HostValue> values) override {
    decl::Emitted out;
    for (const HostValue& each : values) {
      last_is_half = each.text() == "EN";
      out.stop = each.text() == "END";
    }
    return out;
  }
  Result<decl::Emitted> finish(decl::Finish) override { return decl::Emitted{{}, last_is_half}; }
  bool last_is_half = false;
};

class CallsTest : public testing::Test {
 protected:
  CallsTest() {
    prompt_ = decl_.port({.name = "prompt", .dtype = DType::bytes, .travel = {decl::FromRequest{}}});
    out_ = decl_.port({.name = "out", .dtype = DType::utf8, .travel = {decl::ToClient{}}});
    const auto only = decl_.component(decl::DeviceComponent{.name = "only"});
    const auto walk = decl_.walk("walk", decl::Run{only, {prompt_}, {out_}});
    struct OneWalk final : decl::Plan {
      explicit OneWalk(decl::WalkRef w) : walk(w) {}
      Result<decl::Decision> next(const decl::PlanView&) override {
        return decl::Decision(decl::NextWalk{.walk = walk});
      }
      decl::WalkRef walk;
    };
    decl_.partition(
        {.walks = {walk}, .plan = [walk](const decl::RequestParams&) { return std::make_unique<OneWalk>(walk); }});
    decl::Surface surface{.route = decl::Route::completions};
    surface.intake = [this](const decl::ApiRequest& api) -> Result<decl::Intake> {
      prompts_read_.push_back(api.text);
      if (api.text == "bad") return invalid_request("bad").with_field("prompt");
      decl::Intake intake;
      MSTAR_TRY_ASSIGN(const std::int64_t seed, api.fields.get_int("seed", 0));
      intake.params.sampling.seed = static_cast<std::uint64_t>(seed);
      intake.params.fields = api.fields;
      intake.inputs[prompt_] = {HostValue::blob(api.text)};
      return intake;
    };
    surface.emitter = [](const decl::RequestParams&) { return std::make_unique<EndEmitter>(); };
    decl_.surface(surface);
    auto compiled = graph::CompiledModel::compile(decl_);
    EXPECT_TRUE(compiled) << compiled.error().message;
    compiled_.emplace(std::move(*compiled));
    ServedDeployment served{.name = "m", .compiled = &*compiled_};
    served.groups = {{.name = "g", .components = {decl::ComponentRef(0)}, .replicas = {WorkerId(1)}}};
    conductor_ = std::make_unique<Conductor>(
        ConductorOptions{
            .models = {served}, .workers = {WorkerId(1)}, .max_concurrent_requests = 2, .max_queued_requests = 3},
        mesh_);
    conductor_->receive(wire::WorkerReady{WorkerId(1)});
    conductor_->poll();
  }

  Result<std::vector<RequestId>> submit(const std::vector<std::string>& prompts, int choices,
                                        std::function<bool()> wanted = {}) {
    CallRequests call{.choices_per_request = choices, .wanted = std::move(wanted)};
    for (const std::string& text : prompts) {
      call.requests.push_back({.route = decl::Route::completions, .model = "m", .text = text});
      call.requests.back().fields.set("seed", std::int64_t{40});
      for (int k = 0; k < choices; ++k) call.sinks.push_back(std::make_shared<Ends>());
    }
    last_sink_ = std::static_pointer_cast<Ends>(call.sinks.back());
    auto ids = conductor_->submit_call(std::move(call));
    while (conductor_->poll()) continue;
    return ids;
  }

  decl::Decl decl_{"m"};
  void tell(wire::ToConductor message) {
    conductor_->receive(std::move(message));
    while (conductor_->poll()) continue;
  }
  // The end of the last request that was submitted.
  Finished finished() const {
    EXPECT_EQ(last_sink_->events.size(), 1u);
    const Finished* const out = last_sink_->events.empty() ? nullptr : std::get_if<Finished>(&last_sink_->events[0]);
    EXPECT_TRUE(out);
    return out ? *out : Finished{.finish = decl::Finish::error};
  }

  decl::PortRef prompt_, out_;
  std::shared_ptr<Ends> last_sink_;
  std::optional<graph::CompiledModel> compiled_;
  std::vector<std::string> prompts_read_;
  AddedRequests mesh_;
  std::unique_ptr<Conductor> conductor_;
};

TEST_F(CallsTest, EachPromptIsReadOnceAndItsChoicesShareIt) {
  const std::string a(2 * HostValue::kMostInPlace, 'a');
  const auto ids = submit({a, "b"}, 2);
  ASSERT_TRUE(ids) << ids.error().message;
  ASSERT_EQ(ids->size(), 4u);
  EXPECT_THAT(prompts_read_, ElementsAre(a, "b"));
  ASSERT_EQ(mesh_.added.size(), 2u);  // the others wait
  for (std::uint64_t k = 0; k < 2; ++k) {
    EXPECT_EQ(mesh_.added[k].request, (*ids)[k]);
    EXPECT_EQ(mesh_.added[k].params->sampling.seed, 40 + k);
    EXPECT_EQ(mesh_.added[k].params->fields.get_int("seed", 0).value(), static_cast<std::int64_t>(40 + k));
    EXPECT_EQ(mesh_.added[k].inputs[0].second[0].host.text(), a);
  }
  EXPECT_EQ(mesh_.added[0].inputs[0].second[0].host.text().data(),
            mesh_.added[1].inputs[0].second[0].host.text().data());
}

TEST_F(CallsTest, MoreChoicesThanPlacesAreTheClientsFault) {
  const auto choices = submit({"a"}, 6);
  ASSERT_FALSE(choices);
  EXPECT_EQ(choices.error().code, Code::invalid_request);
  EXPECT_EQ(choices.error().field, "n");
  EXPECT_THAT(choices.error().message, HasSubstr("has room for 5"));
  EXPECT_EQ(submit({"a", "b", "c"}, 2).error().field, "n");
  EXPECT_EQ(submit({"a", "b", "c", "d", "e", "f"}, 1).error().field, "prompt");
  EXPECT_TRUE(prompts_read_.empty());
  EXPECT_TRUE(submit({"a"}, 5));
}

TEST_F(CallsTest, AllChoicesGetPlacesOrNoneDoes) {
  const auto first = submit({"a"}, 3);
  ASSERT_TRUE(first);
  const auto full = submit({"b"}, 3);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::exhausted);
  EXPECT_THAT(prompts_read_, ElementsAre("a"));
  const auto second = submit({"c"}, 2);
  ASSERT_TRUE(second);
  for (const auto& each : {*first, *second})
    for (const RequestId id : each) conductor_->abort(id);
  while (conductor_->poll()) continue;
  for (const wire::AddRequest& add : mesh_.added) conductor_->receive(wire::Removed{add.request, WorkerId(1)});
  while (conductor_->poll()) continue;
  EXPECT_TRUE(submit({"d"}, 5));
}

TEST_F(CallsTest, WhatFailsOrIsNotWantedGivesItsPlacesBack) {
  EXPECT_EQ(submit({"a", "bad"}, 2).error().field, "prompt");
  int num_asked = 0;
  const auto left = submit({"x", "y", "z"}, 1, [&] { return ++num_asked < 3; });
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().code, Code::cancelled);
  EXPECT_THAT(prompts_read_, ElementsAre("a", "bad", "x", "y"));
  EXPECT_TRUE(mesh_.added.empty());
  EXPECT_TRUE(submit({"a"}, 5));
}

// A stop string may be whole with the first token, before the walk's report is there.
TEST_F(CallsTest, AnAnswerThatEndsWithItsFirstTokenTellsWhatWasCached) {
  const RequestId id = submit({"a"}, 1)->front();
  tell(wire::ClientValues{WorkerId(1), {{id, out_, 1, 48}}, {HostValue::utf8("END")}});
  EXPECT_EQ(finished().finish, decl::Finish::stop);
  EXPECT_EQ(finished().usage.cached_tokens, 48);
}

TEST_F(CallsTest, AStopInWhatWasHeldBackIsNoEndByLength) {
  for (const bool half : {false, true}) {
    const RequestId id = submit({"a"}, 1)->front();
    tell(wire::ClientValues{WorkerId(1), {{id, out_, 1, 0}}, {HostValue::utf8(half ? "EN" : "x")}});
    graph::FragmentDone done{.walk = decl::WalkRef(0), .pass = 1};
    done.end_partition = done.budget_spent = true;
    tell(wire::FragmentReport{id, WorkerId(1), decl::PartitionRef(0), done, {}, 16});
    EXPECT_EQ(finished().finish, half ? decl::Finish::stop : decl::Finish::length);
    EXPECT_EQ(finished().usage.cached_tokens, 16);
  }
}

}  // namespace
}  // namespace mstar::conductor
