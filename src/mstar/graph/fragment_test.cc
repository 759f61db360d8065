// Stops, fragments on several workers, placement, starts, kept and request values. Numbers:
// docs/contracts/pinned-behaviours.md.
#include "mstar/graph/rig.h"

namespace mstar::graph {
namespace {

struct Decoder : Rig {
  PortRef token = port("token", {FromPlan{}, ToClient{}});
  WalkRef walk = d.walk(
      "decode",
      Loop{.name = "loop", .body = {run("llm", {token}, {token})}, .stop = decl::ComponentSignal{}, .at_most = 10});
};

// 10
TEST(Stops, OnlyTheNamedLoopEnds) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y", {FromPlan{}}), z = rig.port("z", {ToClient{}});
  const auto walk = rig.d.walk(
      "w",
      Parallel{
          {Loop{.name = "a", .body = {rig.run("one", {x}, {x})}, .stop = decl::ComponentSignal{}, .at_most = 5},
           Loop{.name = "b", .body = {rig.run("two", {y}, {y, z})}, .stop = decl::ComponentSignal{}, .at_most = 2}}});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}, {y, 2}})));
  rig.step(state, "one", {3}, {"a"});
  rig.step(state, "two", {4, 5}, {"a"});  // not round this node: nothing happens
  const Effects effects = rig.step(state, "two", {6, 7});
  ASSERT_TRUE(effects.done);
  ASSERT_EQ(effects.done->loop_ends.size(), 2u);
  EXPECT_EQ(effects.done->loop_ends[0].iterations, 1);
  EXPECT_EQ(effects.done->loop_ends[1].iterations, 2);
  EXPECT_EQ(effects.done->loop_ends[1].end, decl::LoopEnd::cap);
}
TEST(Stops, SeveralAtOnceInnerAndOuter) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}, ToClient{}});
  const auto walk = rig.d.walk(
      "w", Loop{.name = "outer",
                .body = {Loop{.name = "inner", .body = {rig.run("core", {x}, {x})}, .at_most = 5, .outputs = {x}}},
                .at_most = 5,
                .outputs = {x}});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}})));
  EXPECT_FALSE(rig.step(state, "core", {2}, {"inner"}).done) << "the outer loop goes on";
  const Effects effects = rig.step(state, "core", {3}, {"inner", "outer"});
  EXPECT_TRUE(effects.done);
  EXPECT_EQ(client_ids(effects, x), Ids{3});
}

// 12
TEST(Fragments, DoneWhenTheLastNodeHasNoOutputsOrOnlyTravels) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), b = rig.port("b", {Keep{}, ToClient{}});
  const auto silent = rig.d.walk("silent", rig.run("llm", {a}, {}));
  const auto special = rig.d.walk("special", rig.run("llm", {a}, {b}));
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(silent, 1, {{a, 1}})));
  EXPECT_TRUE(rig.step(state, "llm", {}).done);
  ASSERT_TRUE(state.start(rig.start(special, 2, {{a, 1}})));
  const Effects effects = rig.step(state, "llm", {2});
  ASSERT_TRUE(effects.done);
  ASSERT_EQ(effects.kept.size(), 1u);
  EXPECT_TRUE(effects.kept[0].readers.empty());
  EXPECT_EQ(effects.done->kept, std::vector<PortRef>{b});
  ASSERT_TRUE(state.start(rig.start(special, 3, {{a, 1}})));
  EXPECT_TRUE(rig.step(state, "llm", {0}).done) << "an unrouted output does not hold the fragment";
}

// 13, 14
TEST(Fragments, TheLastIterationIsNotLoopedBackToPeers) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y"), out = rig.port("out", {ToClient{}});
  const auto walk = rig.d.walk(
      "w",
      Sequential{
          {Loop{.name = "loop", .body = {rig.run("a", {x}, {y}), rig.run("b", {y}, {x})}, .at_most = 2, .outputs = {x}},
           rig.run("end", {x}, {out})}});
  rig.compile({{"b", 1}});
  PartitionState near = rig.state(0);
  PartitionState far = rig.state(1);
  ASSERT_TRUE(near.start(rig.start(walk, 1, {{x, 1}})));
  ASSERT_TRUE(far.start(rig.start(walk, 1)));
  Effects effects = rig.step(near, "a", {2});
  ASSERT_EQ(effects.peers.size(), 1u);
  EXPECT_EQ(effects.peers[0].worker, WorkerId(1));
  EXPECT_EQ(near.deliver(effects.peers[0].delivery), Accepted::refused) << "its nodes are on the other worker";
  EXPECT_EQ(far.deliver(std::move(effects.peers[0].delivery)), Accepted::now);
  effects = rig.step(far, "b", {3});
  ASSERT_EQ(effects.peers.size(), 1u);
  EXPECT_EQ(effects.peers[0].delivery.path.at[0], 1);
  EXPECT_EQ(near.deliver(std::move(effects.peers[0].delivery)), Accepted::now)
      << "near has moved on to the iteration already";
  effects = rig.step(near, "a", {4});
  far.deliver(std::move(effects.peers[0].delivery));
  effects = rig.step(far, "b", {5});
  ASSERT_TRUE(effects.done);
  ASSERT_EQ(effects.peers.size(), 1u) << "the loop's output, and no loop-back";
  EXPECT_EQ(effects.peers[0].delivery.path.depth, 0);
  EXPECT_EQ(near.deliver(std::move(effects.peers[0].delivery)), Accepted::now);
  EXPECT_TRUE(rig.step(near, "end", {6}).done);
}

// 15
TEST(Stops, OfPeersAreOrderedAndApplyOnce) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y");
  const auto walk = rig.d.walk("w", Loop{.name = "loop",
                                         .body = {rig.run("a", {x}, {y}), rig.run("b", {y}, {x})},
                                         .stop = decl::ComponentSignal{},
                                         .at_most = 20});
  rig.compile({{"b", 1}});
  PartitionState near = rig.state(0);
  PartitionState far = rig.state(1);
  ASSERT_TRUE(near.start(rig.start(walk, 1, {{x, 1}})));
  ASSERT_TRUE(far.start(rig.start(walk, 1)));
  Effects effects = rig.step(near, "a", {2});
  far.deliver(std::move(effects.peers[0].delivery));
  effects = rig.step(far, "b", {3}, {"loop"});
  EXPECT_TRUE(effects.peers.empty()) << "not looped back";
  EXPECT_TRUE(effects.done);
  ASSERT_EQ(effects.stops.size(), 1u);
  EXPECT_EQ(effects.stops[0].peers, std::vector<WorkerId>{WorkerId(0)});
  const LoopStop stop = effects.stops[0].stop;
  EXPECT_EQ(stop.path.at[0], 0);
  LoopStop later = stop;
  later.path.at[0] = 5;
  EXPECT_EQ(near.stop_loop(later, effects), Accepted::now) << "lowers the limit";
  EXPECT_FALSE(effects.done);
  LoopStop other_pass = stop;
  other_pass.pass = 9;
  EXPECT_EQ(near.stop_loop(other_pass, effects), Accepted::early);
  EXPECT_EQ(near.stop_loop(stop, effects), Accepted::now) << "the earlier one wins";
  ASSERT_TRUE(effects.done) << "near waits in iteration 1, which never runs";
  EXPECT_EQ(effects.done->loop_ends[0].iterations, 1);
  EXPECT_EQ(near.stop_loop(stop, effects), Accepted::refused);
  EXPECT_EQ(near.stop_loop(later, effects), Accepted::refused);
  LoopStop bad = stop;
  bad.loop = 40;
  EXPECT_EQ(far.stop_loop(bad, effects), Accepted::refused);
}

TEST(Stops, ThirdWorkersHearOfAStopBeforeWhatFollowsFromIt) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y"), z = rig.port("z");
  const auto walk =
      rig.d.walk("w", Loop{.name = "loop",
                           .body = {rig.run("a", {x}, {y}), rig.run("b", {y}, {z}), rig.run("c", {z}, {x})},
                           .stop = decl::ComponentSignal{},
                           .at_most = 20});
  rig.compile({{"b", 1}, {"c", 2}});
  PartitionState b = rig.state(1);
  ASSERT_TRUE(b.start(rig.start(walk, 1)));
  Effects effects;
  ASSERT_EQ(b.stop_loop({1, 0, LoopPath{{0}, 1}}, effects), Accepted::now);
  ASSERT_EQ(effects.stops.size(), 1u);
  EXPECT_EQ(effects.stops[0].peers, (std::vector<WorkerId>{WorkerId(0), WorkerId(2)}));
}

TEST(Placement, RefusesASplitThatAStopCannotHoldBack) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), x = rig.port("x", {FromPlan{}}), y = rig.port("y", {ToClient{}});
  rig.d.walk("w", Loop{.name = "loop",
                       .body = {rig.run("free", {a}, {y}), rig.run("decider", {x}, {x})},
                       .stop = decl::ComponentSignal{},
                       .at_most = 9});
  rig.compile();
  RequestPlacement placement(*rig.model, WorkerId(0));
  placement.set(rig.component("free"), WorkerId(1));
  const auto placed = PlacedModel::place(*rig.model, placement);
  ASSERT_FALSE(placed);
  EXPECT_NE(placed.error().message.find("'free' must be on the worker of 'decider'"), std::string::npos);
}
TEST(Placement, RefusesAStreamWithTwoReadingWorkersAndAMissingWorker) {
  Rig rig;
  const auto mic = rig.port("mic", {decl::FromClient{}}), out = rig.port("out", {ToClient{}});
  rig.d.walk("a", rig.run("one", {mic}, {out}));
  rig.d.walk("b", rig.run("two", {mic}, {out}));
  rig.compile();
  RequestPlacement placement(*rig.model, WorkerId(0));
  placement.set(rig.component("two"), WorkerId(1));
  EXPECT_FALSE(PlacedModel::place(*rig.model, placement));
  EXPECT_FALSE(PlacedModel::place(*rig.model, RequestPlacement(*rig.model, WorkerId())));
  EXPECT_FALSE(RequestPlacement::from_table(*rig.model, {WorkerId(0)}));
}

TEST(Start, Errors) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  EXPECT_FALSE(state.start(rig.start(rig.walk, 1))) << "nothing gives the token";
  EXPECT_FALSE(state.start(rig.start(WalkRef(7), 1, {{rig.token, 1}})));
  StartPass bad = rig.start(rig.walk, 1, {{rig.token, 1}});
  bad.caps = {{0, 0}};
  EXPECT_FALSE(state.start(bad));
  ASSERT_TRUE(state.start(rig.start(rig.walk, 3, {{rig.token, 1}})));
  EXPECT_FALSE(state.start(rig.start(rig.walk, 4, {{rig.token, 1}}))) << "a pass runs";
  state.cancel(false);
  EXPECT_FALSE(state.start(rig.start(rig.walk, 3, {{rig.token, 1}}))) << "passes grow";
}

TEST(Kept, WaitsForTheVersionThatThePlanMeans) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), k = rig.port("k", {Keep{}}), out = rig.port("out", {ToClient{}});
  rig.d.walk("make", rig.run("maker", {a}, {k}));
  const auto read = rig.d.walk("read", rig.run("reader", {k}, {out}));
  rig.compile({{"maker", 1}});
  PartitionState state = rig.state();
  EXPECT_EQ(state.deliver_kept({k, 1, rig.value(11)}), Accepted::early);
  StartPass start{.walk = read, .pass = 4};
  start.kept = {{k, 3}};
  ASSERT_TRUE(state.start(start));
  EXPECT_EQ(state.num_ready(), 0u) << "the value of pass 1 is not the one of pass 3";
  EXPECT_EQ(state.deliver_kept({k, 3, rig.value(13)}), Accepted::now);
  const ReadyNode reader = rig.take(state, "reader");
  EXPECT_EQ(rig.in(state, reader), Ids{13});
  rig.complete(state, reader, {1});
  EXPECT_EQ(state.num_values(), 1u);
  start.pass = 5;
  start.forget = {k};
  ASSERT_TRUE(state.start(start)) << "kept for more than one walk";
  EXPECT_TRUE(rig.step(state, "reader", {1}).done);
  EXPECT_EQ(state.num_values(), 0u);
}

TEST(Request, AbsentOptionalInputsArriveAsSignals) {
  Rig rig;
  const auto text = rig.port("text", {decl::FromRequest{}}),
             voice = rig.port("voice", {decl::FromRequest{.optional = true}});
  const auto walk = rig.d.walk("w", rig.run("llm", {text, voice}, {}));
  rig.compile();
  PartitionState state = rig.state();
  StartPass start{.walk = walk, .pass = 1};
  start.kept = {{text, 0}, {voice, 0}};
  EXPECT_FALSE(state.start(start)) << "text is not optional";
  state.give_request_input(text, rig.value(5));
  ASSERT_TRUE(state.start(start));
  const ReadyNode llm = rig.take(state, "llm");
  EXPECT_EQ(rig.in(state, llm), Ids{5});
  ASSERT_EQ(state.inputs(llm.node)[1].size(), 1u);
  EXPECT_TRUE(state.inputs(llm.node)[1][0].is_signal());
}

}  // namespace
}  // namespace mstar::graph
