// The conductor alone: the test plays the workers.
#include "mstar/conductor/conductor.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace mstar::conductor {
namespace {

using decl::ApiRequest;
using wire::FragmentReport;

struct RecordingMesh final : wire::Mesh {
  std::vector<std::pair<std::uint32_t, wire::ToWorker>> sent;
  std::set<std::uint32_t> gone;
  bool to_worker(WorkerId worker, wire::ToWorker message) override {
    if (gone.count(worker.value)) return false;
    sent.emplace_back(worker.value, std::move(message));
    return true;
  }
  void to_conductor(wire::ToConductor) override {}
  template <class T>
  std::vector<std::uint32_t> receivers() const {
    std::vector<std::uint32_t> out;
    for (const auto& [worker, message] : sent)
      if (std::holds_alternative<T>(message)) out.push_back(worker);
    return out;
  }
  int num_starts() const {
    int count = 0;
    for (const auto& [worker, message] : sent)
      if (const auto* signal = std::get_if<wire::PartitionMessage>(&message))
        count += std::holds_alternative<graph::StartPass>(signal->signal.signal);
    return count;
  }
};

struct RecordingSink final : EventSink {
  std::vector<std::string> events;
  std::optional<Error> error;
  std::optional<Finished> finished;
  bool throws = false;
  void on_event(RequestEvent event) override {
    if (throws) throw std::runtime_error("the sink is broken");
    if (auto* chunk = std::get_if<decl::Chunk>(&event)) events.push_back("chunk " + std::string(chunk->value.text()));
    if (auto* failed = std::get_if<Failed>(&event)) {
      events.push_back("failed");
      error = std::move(failed->error);
    }
    if (auto* done = std::get_if<Finished>(&event)) {
      events.push_back("finished");
      finished = std::move(*done);
    }
  }
};

// Two walks of one partition, one component each: "first" on the workers of group a, "second" on those of group b.
struct Model {
  decl::Decl decl{"two"};
  decl::PortRef prompt, middle, out, about;
  decl::WalkRef first, second;
  std::optional<graph::CompiledModel> compiled;
  int num_plans = 0;

  class Plan final : public decl::Plan {
   public:
    explicit Plan(const Model& model) : model_(model) {}
    Result<decl::Decision> next(const decl::PlanView& view) override {
      const std::string fail = view.params.fields.get_string("fail", "").value_or("");
      if (fail == "plan_throw" && view.num_walks == 1) throw std::runtime_error("told to throw");
      if (fail == "first_plan") return internal_error("told to fail");
      if (view.num_walks == 0) return decl::Decision(decl::NextWalk{.walk = model_.first});
      if (view.num_walks == 1) return decl::Decision(decl::NextWalk{.walk = model_.second});
      return decl::Decision(decl::Done{});
    }

   private:
    const Model& model_;
  };

  Model() {
    prompt = decl.port({.name = "prompt", .dtype = DType::bytes, .travel = {decl::FromRequest{}}});
    middle = decl.port({.name = "middle", .dtype = DType::i32, .travel = {decl::Keep{}}});
    out = decl.port({.name = "out", .dtype = DType::utf8, .travel = {decl::ToClient{}}});
    about = decl.port(
        {.name = "about", .dtype = DType::utf8, .travel = {decl::ToClient{decl::Modality::text, "metadata"}}});
    const auto a = decl.component(decl::DeviceComponent{.name = "a"});
    const auto b = decl.component(decl::DeviceComponent{.name = "b"});
    first = decl.walk("first", decl::Run{a, {prompt}, {middle}});
    second = decl.walk("second", decl::Run{b, {middle}, {out, about}});
    decl.partition({.walks = {first, second}, .plan = [this](const decl::RequestParams& params) {
                      ++num_plans;
                      if (params.fields.has("no_plan")) throw std::runtime_error("no plan");
                      return std::make_unique<Plan>(*this);
                    }});
    decl::Surface surface{.route = decl::Route::generate};
    surface.intake = [this](const ApiRequest& api) -> Result<decl::Intake> {
      decl::Intake intake;
      intake.params.fields = api.fields;
      intake.inputs[prompt] = {HostValue::blob(api.text)};
      return intake;
    };
    surface.emit = [this](decl::PortRef port, const HostValue& value,
                          const decl::RequestParams& params) -> Result<decl::Chunk> {
      if (params.fields.get_string("fail", "").value_or("") == "emit_throw") throw std::runtime_error("told to throw");
      decl::Chunk chunk{
          .modality = decl::Modality::text, .format = port == about ? "metadata" : "utf8", .value = value};
      if (port == about) chunk.metadata.set("language", std::string(value.text()));
      return chunk;
    };
    decl.surface(surface);
    auto made = graph::CompiledModel::compile(decl);
    if (made) compiled.emplace(std::move(*made));
  }
};

class ConductorTest : public ::testing::Test {
 protected:
  void make(std::vector<std::uint32_t> a, std::vector<std::uint32_t> b, ConductorOptions options = {}) {
    ASSERT_TRUE(model_.compiled);
    ServedDeployment served{.name = "two", .aliases = {"alias"}, .compiled = &*model_.compiled};
    const auto group = [](std::string name, std::uint16_t component, const std::vector<std::uint32_t>& workers) {
      NodeGroup out{.name = std::move(name), .components = {decl::ComponentRef(component)}, .replicas = {}};
      for (const auto worker : workers) out.replicas.emplace_back(worker);
      return out;
    };
    served.groups = {group("a", 0, a), group("b", 1, b)};
    options.models = {served};
    std::set<std::uint32_t> all(a.begin(), a.end());
    all.insert(b.begin(), b.end());
    for (const auto worker : all) options.workers.emplace_back(worker);
    conductor_ = std::make_unique<Conductor>(std::move(options), mesh_);
    for (const auto worker : all) conductor_->receive(wire::WorkerReady{WorkerId(worker)});
    conductor_->poll();
  }
  std::pair<RequestId, std::shared_ptr<RecordingSink>> submit(const std::string& fail = "") {
    auto sink = std::make_shared<RecordingSink>();
    ApiRequest request{.model = "two", .text = "hello"};
    if (!fail.empty()) request.fields.set("fail", fail);
    if (fail == "no_plan") request.fields.set("no_plan", true);
    const auto id = conductor_->submit(std::move(request), sink);
    EXPECT_TRUE(id) << id.error().message;
    conductor_->poll();
    return {id ? *id : RequestId(), sink};
  }
  void tell(wire::ToConductor message) {
    conductor_->receive(std::move(message));
    conductor_->poll();
  }
  // The end of the request's `pass` on a worker.
  void report(RequestId id, std::uint32_t worker, std::int32_t pass) {
    graph::FragmentDone done{.walk = pass == 1 ? model_.first : model_.second, .pass = pass};
    if (pass == 1) done.kept = {model_.middle};
    tell(FragmentReport{id, WorkerId(worker), decl::PartitionRef(0), done, {}});
  }
  void client(RequestId id, decl::PortRef port, const std::string& text) {
    tell(wire::ClientValues{WorkerId(1), {{id, port, 1}}, {HostValue::utf8(text)}});
  }
  std::uint32_t chosen(RequestId id) const {  // the worker of group a
    for (const auto& [worker, message] : mesh_.sent)
      if (const auto* add = std::get_if<wire::AddRequest>(&message); add && add->request == id)
        return add->placement[0].value;
    return ~0u;
  }

  Model model_;
  RecordingMesh mesh_;
  std::unique_ptr<Conductor> conductor_;
};

TEST_F(ConductorTest, RunsTheWalksInOrderAndEndsOnce) {
  make({1}, {2});
  const auto [id, sink] = submit();
  EXPECT_EQ(mesh_.receivers<wire::AddRequest>(), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(mesh_.num_starts(), 1);
  report(id, 1, 1);
  EXPECT_EQ(mesh_.num_starts(), 2);
  client(id, model_.about, "en");
  client(id, model_.out, "hi");
  EXPECT_EQ(sink->events, (std::vector<std::string>{"chunk hi"}));
  report(id, 2, 2);
  EXPECT_EQ(sink->events, (std::vector<std::string>{"chunk hi", "finished"}));
  EXPECT_EQ(sink->finished->metadata.get_string("language", "").value_or(""), "en");
  EXPECT_EQ(mesh_.receivers<wire::RemoveRequest>(), (std::vector<std::uint32_t>{1, 2}));
  // Whatever comes late changes nothing.
  client(id, model_.out, "late");
  report(id, 2, 2);
  tell(wire::RequestFailed{id, internal_error("late")});
  conductor_->abort(id);
  conductor_->poll();
  EXPECT_EQ(sink->events.size(), 2u);
  tell(wire::Removed{id, WorkerId(1)});
  EXPECT_FALSE(conductor_->load().empty());
  tell(wire::Removed{id, WorkerId(2)});
  EXPECT_TRUE(conductor_->load().empty());
}

TEST_F(ConductorTest, EndWaitsForEveryOutputAndFragment) {
  make({1}, {2});
  const auto [id, sink] = submit();
  report(id, 2, 1);  // not this worker's pass
  report(id, 1, 2);  // not the running pass
  EXPECT_EQ(mesh_.num_starts(), 1);
  report(id, 1, 1);
  report(id, 1, 1);  // repeated
  EXPECT_EQ(mesh_.num_starts(), 2);
  EXPECT_TRUE(sink->events.empty());
  client(id, model_.out, "a");
  report(id, 2, 2);
  EXPECT_EQ(sink->events, (std::vector<std::string>{"chunk a", "finished"}));
}

TEST_F(ConductorTest, RepeatedAndUnknownFailuresAreIgnored) {
  make({1}, {2});
  const auto [id, sink] = submit();
  const auto [other_id, other] = submit();
  tell(wire::RequestFailed{RequestId(999), internal_error("nobody's")});
  tell(wire::RequestFailed{id, internal_error("the first")});
  tell(wire::RequestFailed{id, invalid_request("the second")});
  EXPECT_EQ(sink->events, (std::vector<std::string>{"failed"}));
  EXPECT_EQ(sink->error->message, "the first");
  EXPECT_TRUE(other->events.empty());
  report(other_id, 1, 1);
  report(other_id, 2, 2);
  EXPECT_EQ(other->events, (std::vector<std::string>{"finished"}));
}

TEST_F(ConductorTest, ExceptionsEndTheirRequestAndNotTheLoop) {
  make({1}, {2});
  for (const std::string fail : {"plan_throw", "emit_throw", "first_plan", "no_plan"}) {
    const auto [id, sink] = submit(fail);
    const auto [other_id, other] = submit();
    report(id, 1, 1);
    client(id, model_.out, "x");
    report(other_id, 1, 1);
    report(other_id, 2, 2);
    EXPECT_EQ(sink->events, (std::vector<std::string>{"failed"})) << fail;
    EXPECT_EQ(sink->error->code, Code::internal);
    EXPECT_EQ(other->events, (std::vector<std::string>{"finished"})) << fail;
    for (const auto each : {id, other_id})
      for (const std::uint32_t worker : {1u, 2u}) tell(wire::Removed{each, WorkerId(worker)});
  }
  EXPECT_TRUE(conductor_->load().empty());
  EXPECT_TRUE(conductor_->drain(std::chrono::milliseconds(0)));
}

TEST_F(ConductorTest, ABrokenSinkCostsOnlyItsRequest) {
  make({1}, {2});
  const auto [id, sink] = submit();
  const auto [other_id, other] = submit();
  sink->throws = true;
  report(id, 1, 1);
  client(id, model_.out, "x");
  report(other_id, 1, 1);
  report(other_id, 2, 2);
  EXPECT_EQ(other->events, (std::vector<std::string>{"finished"}));
  for (const auto each : {id, other_id})
    for (const std::uint32_t worker : {1u, 2u}) tell(wire::Removed{each, WorkerId(worker)});
  EXPECT_TRUE(conductor_->load().empty());
}

TEST_F(ConductorTest, EachPartOfAMessageToClientsIsItsOwnRequests) {
  make({1}, {1});
  const auto [bad, bad_sink] = submit("emit_throw");
  const auto [one, one_sink] = submit();
  const auto [two, two_sink] = submit();
  const decl::PortRef out = model_.out;
  const auto text = [](const char* each) { return HostValue::utf8(each); };
  tell(wire::ClientValues{
      WorkerId(1),
      {{one, out, 2}, {bad, out, 1}, {RequestId(99), out, 1}, {two, out, 1}, {one, out, 1}},
      {text("a"), text("b"), text("c"), text("d"), text("a value that is not held in place"), text("e")}});
  EXPECT_EQ(one_sink->events, (std::vector<std::string>{"chunk a", "chunk b", "chunk e"}));
  EXPECT_EQ(bad_sink->events, std::vector<std::string>{"failed"});
  EXPECT_EQ(two_sink->events, std::vector<std::string>{"chunk a value that is not held in place"});
  // Of a worker that has lost its mind.
  tell(wire::ClientValues{WorkerId(1), {{one, out, 1}, {two, out, ~0u}, {one, out, 3}}, {text("f"), text("g")}});
  EXPECT_EQ(one_sink->events.back(), "chunk f");
  EXPECT_EQ(two_sink->events.back(), "chunk g");
  // Of requests that have just ended, so many that each asks for the memory of those behind it.
  wire::ClientValues late{WorkerId(1), {}, {}};
  for (std::uint64_t i = 0; i < 20; ++i) {
    late.parts.push_back({i == 19 ? one : RequestId(1000 + i), out, 1});
    late.values.push_back(text("h"));
  }
  tell(std::move(late));
  EXPECT_EQ(one_sink->events.back(), "chunk h");
}

TEST_F(ConductorTest, AdmitsInOrderUnderTheCapWhenRoomComesBack) {
  make({1}, {2}, {.max_concurrent_requests = 2, .max_queued_requests = 2});
  std::vector<std::pair<RequestId, std::shared_ptr<RecordingSink>>> all;
  for (int i = 0; i < 4; ++i) all.push_back(submit());
  for (int i = 1; i < 4; ++i) EXPECT_GT(all[i].first, all[i - 1].first);
  EXPECT_EQ(mesh_.receivers<wire::AddRequest>().size(), 4u);  // two requests on two workers
  const auto refused = conductor_->submit({.model = "two"}, std::make_shared<RecordingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::exhausted);
  EXPECT_NE(conductor_->metrics_text().find("mstar_requests_waiting 2\n"), std::string::npos);
  conductor_->abort(all[2].first);
  conductor_->poll();
  EXPECT_EQ(all[2].second->error->code, Code::cancelled);
  tell(wire::RequestFailed{all[0].first, internal_error("x")});
  EXPECT_EQ(mesh_.receivers<wire::AddRequest>().size(), 4u);  // its pages are not back yet
  for (const std::uint32_t worker : {1u, 2u}) tell(wire::Removed{all[0].first, WorkerId(worker)});
  EXPECT_EQ(mesh_.receivers<wire::AddRequest>().size(), 6u);
  EXPECT_NE(chosen(all[3].first), ~0u);
  EXPECT_NE(conductor_->metrics_text().find("mstar_requests_waiting 0\n"), std::string::npos);
}

TEST_F(ConductorTest, WhatEndedMakesRoomBeforeNewRequestsAreLookedAt) {
  make({1}, {2}, {.max_concurrent_requests = 1});
  const auto [id, sink] = submit();
  auto next = std::make_shared<RecordingSink>();
  const auto next_id = conductor_->submit({.model = "two"}, next);
  ASSERT_TRUE(next_id);
  conductor_->receive(wire::RequestFailed{id, internal_error("x")});
  conductor_->poll();
  for (const std::uint32_t worker : {1u, 2u}) conductor_->receive(wire::Removed{id, WorkerId(worker)});
  auto last = std::make_shared<RecordingSink>();
  ASSERT_TRUE(conductor_->submit({.model = "two"}, last));
  conductor_->poll();  // one turn: the removals, then whose turn it is
  EXPECT_NE(chosen(*next_id), ~0u);
  EXPECT_EQ(mesh_.receivers<wire::AddRequest>().size(), 4u);
}

TEST_F(ConductorTest, RemovalsMayComeLateTwiceAndOfNobody) {
  make({1}, {2});
  const auto [id, sink] = submit();
  tell(wire::Removed{id, WorkerId(1)});  // nobody asked for it: the request runs on
  tell(wire::Removed{RequestId(999), WorkerId(1)});
  report(id, 1, 1);
  report(id, 2, 2);
  EXPECT_EQ(sink->events, (std::vector<std::string>{"finished"}));
  tell(wire::Removed{id, WorkerId(1)});
  tell(wire::Removed{id, WorkerId(1)});
  EXPECT_FALSE(conductor_->load().empty());  // the other worker's word counts, not this one's twice
  tell(wire::Removed{id, WorkerId(2)});
  tell(wire::Removed{id, WorkerId(2)});
  EXPECT_TRUE(conductor_->load().empty());
}

TEST_F(ConductorTest, IdsAreNeverUsedAgain) {
  make({1}, {2}, {.max_concurrent_requests = 1});
  std::set<RequestId> ids;
  for (int i = 0; i < 50; ++i) {
    const auto [id, sink] = submit();
    EXPECT_TRUE(ids.empty() || id > *ids.rbegin());
    EXPECT_TRUE(ids.insert(id).second);
    tell(wire::RequestFailed{id, internal_error("x")});
    for (const std::uint32_t worker : {1u, 2u}) tell(wire::Removed{id, WorkerId(worker)});
  }
}

TEST_F(ConductorTest, RequestsAlternateBetweenReplicasByLiveLoad) {
  make({1, 2}, {3});
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(submit().first);
  for (int i = 0; i < 6; i += 2) EXPECT_NE(chosen(ids[i]), chosen(ids[i + 1]));
  // Two that end on one replica make room there.
  const std::uint32_t freed = chosen(ids[0]);
  int ended = 0;
  for (const RequestId id : ids) {
    if (chosen(id) != freed || ended == 2) continue;
    ++ended;
    tell(wire::RequestFailed{id, internal_error("x")});
    for (const std::uint32_t worker : {freed, 3u}) tell(wire::Removed{id, WorkerId(worker)});
  }
  EXPECT_EQ(chosen(submit().first), freed);
  EXPECT_EQ(chosen(submit().first), freed);
}

TEST_F(ConductorTest, TiesFollowTheSeed) {
  std::set<std::uint32_t> firsts;
  std::vector<std::uint32_t> again;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    make({1, 2}, {3}, {.seed = seed});
    mesh_.sent.clear();
    const std::uint32_t first = chosen(submit().first);
    firsts.insert(first);
    make({1, 2}, {3}, {.seed = seed});
    mesh_.sent.clear();
    EXPECT_EQ(chosen(submit().first), first);
  }
  EXPECT_EQ(firsts.size(), 2u);
}

TEST_F(ConductorTest, RandomRoutingIgnoresLoad) {
  make({1, 2}, {3}, {.max_concurrent_requests = 200, .routing = Routing::random, .seed = 5});
  std::map<std::uint32_t, int> counts;
  for (int i = 0; i < 200; ++i) ++counts[chosen(submit().first)];
  EXPECT_GT(counts[1], 60);
  EXPECT_GT(counts[2], 60);
  EXPECT_NE(counts[1], counts[2]);  // least-loaded would give 100 and 100
}

TEST_F(ConductorTest, AWarmUpRequestGetsTheReplicaThatItAsksFor) {
  for (const Routing routing : {Routing::least_loaded, Routing::random}) {
    make({1, 2}, {3}, {.max_concurrent_requests = 1, .routing = routing});
    mesh_.sent.clear();
    for (const std::uint32_t wanted : {1u, 1u, 0u, 1u, 2u}) {
      ApiRequest request = {.model = "two", .text = "x"};
      request.replica = wanted;
      auto sink = std::make_shared<RecordingSink>();
      const auto id = conductor_->submit(std::move(request), sink);
      ASSERT_TRUE(id);
      conductor_->poll();
      EXPECT_EQ(chosen(*id), wanted % 2 + 1);
      tell(wire::RequestFailed{*id, internal_error("x")});
      for (const std::uint32_t worker : {wanted % 2 + 1, 3u}) tell(wire::Removed{*id, WorkerId(worker)});
    }
  }
}

TEST_F(ConductorTest, ReadyWordsBeforeTheLoopAreNotLost) {
  make({1}, {2});
  ConductorOptions options;
  options.workers = {WorkerId(1), WorkerId(2)};
  Conductor early(std::move(options), mesh_);
  early.receive(wire::WorkerReady{WorkerId(1)});
  early.receive(wire::WorkerReady{WorkerId(2)});
  EXPECT_FALSE(early.state().ready);
  early.start();
  EXPECT_TRUE(early.wait_ready(std::chrono::seconds(30)));
  EXPECT_TRUE(early.state().ready);
}

TEST_F(ConductorTest, AWorkerThatFailsBeforeItIsReadyIsSaidSo) {
  make({1}, {2});
  ConductorOptions options;
  options.workers = {WorkerId(1), WorkerId(2)};
  Conductor early(std::move(options), mesh_);
  early.receive(wire::WorkerReady{WorkerId(1)});
  early.receive(wire::WorkerFailed{WorkerId(2), bad_model("no such weight")});
  early.poll();
  const Status waited = early.wait_ready(std::chrono::milliseconds(0));
  ASSERT_FALSE(waited);
  EXPECT_NE(waited.error().message.find("no such weight"), std::string::npos);
}

TEST_F(ConductorTest, AWorkerThatIsGoneEndsItsRequestsAndIsTakenBack) {
  make({1}, {2});
  const auto [id, sink] = submit();
  const auto [ending_id, ending] = submit();
  tell(wire::RequestFailed{ending_id, internal_error("x")});
  tell(wire::Removed{ending_id, WorkerId(1)});  // the other's word is still missing
  mesh_.gone.insert(2);
  tell(wire::WorkerFailed{WorkerId(2), unavailable("signal 9")});
  ASSERT_TRUE(sink->error);
  EXPECT_EQ(sink->error->code, Code::unavailable);
  EXPECT_NE(sink->error->message.find("signal 9"), std::string::npos);
  tell(wire::Removed{id, WorkerId(1)});
  EXPECT_TRUE(conductor_->load().empty());  // also of the one that waited for the dead worker's word
  EXPECT_FALSE(conductor_->state().ready);
  const auto refused = conductor_->submit({.model = "two"}, std::make_shared<RecordingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unavailable);
  mesh_.gone.clear();
  tell(wire::WorkerReady{WorkerId(2)});
  EXPECT_TRUE(conductor_->state().ready);
  const auto [later_id, later] = submit();
  report(later_id, 1, 1);
  report(later_id, 2, 2);
  EXPECT_EQ(later->events, (std::vector<std::string>{"finished"}));
}

TEST_F(ConductorTest, QueuedRequestsOfALostModelAreToldWhenTheirTurnComes) {
  make({1}, {2}, {.max_concurrent_requests = 1});
  const auto [id, sink] = submit();
  const auto [queued_id, queued] = submit();
  mesh_.gone.insert(2);
  tell(wire::WorkerFailed{WorkerId(2), unavailable("signal 9")});
  tell(wire::Removed{id, WorkerId(1)});
  ASSERT_TRUE(queued->error);
  EXPECT_EQ(queued->error->code, Code::unavailable);
  EXPECT_TRUE(conductor_->drain(std::chrono::milliseconds(0)));
}

TEST_F(ConductorTest, DrainRefusesNewOnesAndWaitsForTheLast) {
  make({1}, {2});
  const auto [id, sink] = submit();
  EXPECT_FALSE(conductor_->drain(std::chrono::milliseconds(0)));
  const auto refused = conductor_->submit({.model = "two"}, std::make_shared<RecordingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unavailable);
  EXPECT_TRUE(conductor_->state().draining);
  report(id, 1, 1);
  report(id, 2, 2);
  EXPECT_EQ(sink->events, (std::vector<std::string>{"finished"}));
  EXPECT_FALSE(conductor_->drain(std::chrono::milliseconds(0)));  // pages are not back yet
  for (const std::uint32_t worker : {1u, 2u}) tell(wire::Removed{id, WorkerId(worker)});
  EXPECT_TRUE(conductor_->drain(std::chrono::milliseconds(0)));
}

TEST_F(ConductorTest, StopTellsWhoeverIsLeft) {
  make({1}, {2}, {.max_concurrent_requests = 1});
  const auto [id, running] = submit();
  const auto [queued_id, queued] = submit();
  auto unseen = std::make_shared<RecordingSink>();
  ASSERT_TRUE(conductor_->submit({.model = "alias"}, unseen));  // still in the inbox
  conductor_->stop();
  for (const auto& sink : {running, queued, unseen}) {
    ASSERT_EQ(sink->events, (std::vector<std::string>{"failed"}));
    EXPECT_EQ(sink->error->code, Code::unavailable);
  }
  EXPECT_FALSE(conductor_->submit({.model = "two"}, std::make_shared<RecordingSink>()));
  conductor_->receive(wire::RequestFailed{id, internal_error("late")});  // harmless
}

TEST_F(ConductorTest, RefusesUnknownModelsAndRoutes) {
  make({1}, {2});
  const auto unknown = conductor_->submit({.model = "three"}, std::make_shared<RecordingSink>());
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::invalid_request);
  EXPECT_EQ(unknown.error().field, "model");
  EXPECT_FALSE(
      conductor_->submit({.route = decl::Route::chat_completions, .model = "two"}, std::make_shared<RecordingSink>()));
  EXPECT_TRUE(conductor_->submit({.model = ""}, std::make_shared<RecordingSink>()));  // there is only one
}

}  // namespace
}  // namespace mstar::conductor
