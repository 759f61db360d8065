// The conductor alone: the test plays the workers.
#include "mstar/conductor/conductor_fixture.h"

namespace mstar::conductor {
namespace {

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
