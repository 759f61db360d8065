// Steps that run ahead of the ones that feed them (8, 11 and 16-21 of docs/contracts/pinned-behaviours.md).
#include "mstar/graph/rig.h"

namespace mstar::graph {
namespace {

struct Decoder : Rig {
  PortRef token = port("token", {FromPlan{}, ToClient{}});
  PortRef context = port("context", {FromPlan{}});
  WalkRef walk = d.walk("decode", Loop{.name = "loop",
                                       .body = {run("llm", {token, context}, {token})},
                                       .stop = decl::ComponentSignal{},
                                       .at_most = 4});
  void begin(PartitionState& state) { ASSERT_TRUE(state.start(start(walk, 1, {{token, 1}, {context, 2}}))); }
};

// 16, 19
TEST(Ahead, LoopBack) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  rig.begin(state);
  const ReadyNode now = rig.take(state, "llm");
  const auto step = state.begin_ahead(now.node);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->new_iteration_of, 0);
  EXPECT_EQ(step->path.at[0], 1);
  ASSERT_EQ(step->inputs.size(), 2u);
  EXPECT_EQ(step->inputs[0].from, now.node) << "a handle: the value comes with the running step";
  EXPECT_EQ(step->inputs[1].from, kNoNode);
  EXPECT_EQ(sim::ids_of(*step->inputs[1].values), Ids{2}) << "what the loop takes from outside is known";
  rig.complete(state, now, {7});
  EXPECT_EQ(state.num_ready(), 0u) << "it runs already and is not queued again";
  ASSERT_TRUE(state.confirm_ahead(now.node));
  const ReadyNode next{now.node, step->ticket};
  EXPECT_TRUE(state.is_current(next));
  EXPECT_EQ(rig.in(state, next, 0), Ids{7}) << "late value visible";
  rig.complete(state, next, {8});
  EXPECT_EQ(state.num_ready(), 1u);
}

// 16
TEST(Ahead, Forward) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), b = rig.port("b"), c = rig.port("c", {ToClient{}});
  const auto walk = rig.d.walk("w", Sequential{{rig.run("first", {a}, {b}), rig.run("second", {b}, {c})}});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{a, 1}})));
  const NodeIndex second = rig.node(walk, "second");
  EXPECT_FALSE(state.begin_ahead(second)) << "nothing that feeds it runs";
  const ReadyNode first = rig.take(state, "first");
  const auto step = state.begin_ahead(second);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->new_iteration_of, kNoLoop);
  rig.complete(state, first, {2});
  ASSERT_TRUE(state.confirm_ahead(second));
  EXPECT_TRUE(rig.complete(state, {second, step->ticket}, {3}).done);
}

// 17
TEST(Ahead, PartialCoverageIsNeverReady) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), b = rig.port("b"), real = rig.port("real", {FromPlan{}}),
             c = rig.port("c", {ToClient{}});
  const auto walk = rig.d.walk("w", Sequential{{rig.run("first", {a}, {b}), rig.run("second", {b, real}, {c})}});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{a, 1}, {real, 2}})));
  rig.take(state, "first");
  EXPECT_FALSE(state.begin_ahead(rig.node(walk, "second"))) << "although the rest is there";
}
TEST(Ahead, NotWhileAPartOfTheIterationHasNotBegun) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y", {FromPlan{}});
  const auto walk = rig.d.walk(
      "w",
      Loop{.name = "loop", .body = {Parallel{{rig.run("one", {x}, {x}), rig.run("two", {y}, {y})}}}, .at_most = 5});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}, {y, 2}})));
  const ReadyNode one = rig.take(state, "one");
  EXPECT_FALSE(state.begin_ahead(one.node));
  const ReadyNode two = rig.take(state, "two");
  EXPECT_TRUE(state.begin_ahead(one.node));
  EXPECT_TRUE(state.begin_ahead(two.node)) << "per node";
  rig.complete(state, one, {3});
  EXPECT_EQ(state.num_ready(), 0u);
  rig.complete(state, two, {4});
  EXPECT_TRUE(state.confirm_ahead(one.node));
  EXPECT_TRUE(state.confirm_ahead(two.node));
}

// 18
TEST(Ahead, TwiceIsNoStepAndUnknownIsIgnored) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  PartitionState other = rig.state();
  EXPECT_FALSE(state.begin_ahead(0)) << "no pass";
  rig.begin(state);
  EXPECT_FALSE(state.begin_ahead(0)) << "queued, not running";
  rig.begin(other);
  const ReadyNode now = rig.take(state, "llm");
  ASSERT_TRUE(state.begin_ahead(now.node));
  EXPECT_FALSE(state.begin_ahead(now.node));
  EXPECT_FALSE(state.begin_ahead(90));
  EXPECT_FALSE(state.confirm_ahead(90));
  EXPECT_FALSE(other.begin_ahead(now.node)) << "another request is not concerned";
  state.rollback_ahead(now.node);
  EXPECT_TRUE(state.begin_ahead(now.node)) << "rollback wipes it";
}

// 20
TEST(Ahead, NotPastTheLastIteration) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  rig.begin(state);
  for (int i = 0; i < 3; ++i) rig.step(state, "llm", {10 + i});
  const ReadyNode last = rig.take(state, "llm");
  EXPECT_FALSE(state.begin_ahead(last.node));
  EXPECT_TRUE(rig.complete(state, last, {20}).done);
}
TEST(Ahead, NotAfterAFinish) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y", {FromPlan{}});
  const auto walk = rig.d.walk("w", Loop{.name = "loop",
                                         .body = {Parallel{{rig.run("one", {x}, {x}), rig.run("two", {y}, {y})}}},
                                         .stop = decl::ComponentSignal{},
                                         .at_most = 9});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}, {y, 2}})));
  const ReadyNode one = rig.take(state, "one");
  const ReadyNode two = rig.take(state, "two");
  rig.complete(state, one, {3}, {"loop"});
  EXPECT_FALSE(state.begin_ahead(two.node));
  EXPECT_TRUE(rig.complete(state, two, {4}).done);
}

// 11
TEST(Ahead, AStopFinalisesTheLoopAndVoidsTheStep) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  rig.begin(state);
  const ReadyNode now = rig.take(state, "llm");
  const auto step = state.begin_ahead(now.node);
  ASSERT_TRUE(step);
  const Effects effects = rig.complete(state, now, {7}, {"loop"});
  EXPECT_TRUE(effects.done) << "final although a step was in flight";
  EXPECT_EQ(client_ids(effects, rig.token), Ids{7});
  EXPECT_FALSE(state.confirm_ahead(now.node));
  Effects none;
  std::vector<Values> outputs = {rig.value(8)};
  EXPECT_FALSE(state.complete({now.node, step->ticket}, outputs, {}, none)) << "the wasted row is never committed";
  EXPECT_TRUE(none.client.empty());
}
TEST(Ahead, AStopOfAPeerVoidsStepsInFlight) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y");
  const auto walk = rig.d.walk("w", Loop{.name = "loop",
                                         .body = {rig.run("a", {x}, {y}), rig.run("b", {y}, {x})},
                                         .stop = decl::ComponentSignal{},
                                         .at_most = 20});
  rig.compile({{"b", 1}});
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}})));
  rig.step(state, "a", {2});
  const EdgeIndex back = rig.model->at(walk).outputs_of(rig.node(walk, "b"))[0].back[1];
  ASSERT_EQ(state.deliver({1, back, LoopPath{{1}, 1}, rig.value(3)}), Accepted::now);
  const ReadyNode a = rig.take(state, "a");
  Effects effects;
  ASSERT_EQ(state.stop_loop({1, 0, LoopPath{{0}, 1}}, effects), Accepted::now);
  EXPECT_TRUE(effects.done);
  EXPECT_FALSE(state.is_current(a));
  EXPECT_FALSE(state.complete(a, {}, {}, effects));
  EXPECT_EQ(state.num_values(), 0u);
}

TEST(Ahead, AnUnconfirmedStepCannotComplete) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  rig.begin(state);
  const ReadyNode now = rig.take(state, "llm");
  const auto step = state.begin_ahead(now.node);
  rig.complete(state, now, {7});
  Effects effects;
  std::vector<Values> outputs = {rig.value(8)};
  EXPECT_FALSE(state.complete({now.node, step->ticket}, outputs, {}, effects));
  state.rollback_ahead(now.node);
  const ReadyNode again = rig.take(state, "llm");
  EXPECT_NE(again.ticket, step->ticket) << "given back, it runs like any other";
  EXPECT_EQ(rig.in(state, again, 0), Ids{7});
}

// 8
TEST(Ahead, EveryIterationMayRunAhead) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  rig.begin(state);
  ReadyNode now = rig.take(state, "llm");
  for (int i = 0; i < 3; ++i) {
    const auto step = state.begin_ahead(now.node);
    ASSERT_TRUE(step) << i;
    rig.complete(state, now, {10 + i});
    ASSERT_TRUE(state.confirm_ahead(now.node));
    now.ticket = step->ticket;
  }
  EXPECT_FALSE(state.begin_ahead(now.node));
}

// 21
TEST(Ahead, AnAbandonedStepKeepsItsChunk) {
  Rig rig;
  const auto mic = rig.port("mic", {decl::FromClient{decl::Modality::audio, decl::FixedChunks{2}}}),
             x = rig.port("x", {FromPlan{}, ToClient{}});
  const auto walk = rig.d.walk(
      "w",
      Loop{.name = "loop", .body = {rig.run("llm", {mic, x}, {x})}, .stop = decl::ComponentSignal{}, .at_most = 9});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}})));
  const auto push = [&](std::int64_t index) { return state.push_stream({mic, index, rig.value(100 + index)}); };
  push(0);
  push(1);
  ReadyNode now = rig.take(state, "llm");
  EXPECT_FALSE(state.begin_ahead(now.node)) << "no chunk for it yet";
  push(2);
  push(3);
  auto step = state.begin_ahead(now.node);
  ASSERT_TRUE(step);
  ASSERT_TRUE(step->inputs[0].chunk);
  EXPECT_EQ(sim::ids_of(*step->inputs[0].values), (Ids{102, 103}));
  state.rollback_ahead(now.node);
  push(4);
  rig.complete(state, now, {5}, {"loop"});
  ASSERT_TRUE(state.start(rig.start(walk, 2, {{x, 6}})));
  now = rig.take(state, "llm");
  EXPECT_EQ(rig.in(state, now, 0), (Ids{102, 103})) << "the chunk that the dropped step looked at";
  const Effects effects = rig.complete(state, now, {7}, {"loop"});
  ASSERT_TRUE(effects.done);
  ASSERT_EQ(effects.done->consumed.size(), 1u);
  EXPECT_EQ(effects.done->consumed[0].second, 4) << "counted once";
}

}  // namespace
}  // namespace mstar::graph
