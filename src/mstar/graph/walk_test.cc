// How walks run: sequences, loops, nesting, exports, stops. Numbers: docs/contracts/pinned-behaviours.md.
#include "mstar/graph/rig.h"

namespace mstar::graph {
namespace {

// 1
TEST(Walks, SimplePipeline) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), b = rig.port("b"), c = rig.port("c", {ToClient{}});
  const auto walk = rig.d.walk("w", Sequential{{rig.run("first", {a}, {b}), rig.run("second", {b}, {c})}});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{a, 1}})));
  const ReadyNode first = rig.take(state, "first");
  EXPECT_EQ(rig.in(state, first), Ids{1});
  EXPECT_EQ(state.num_ready(), 0u);
  rig.complete(state, first, {2});
  const ReadyNode second = rig.take(state, "second");
  EXPECT_EQ(rig.in(state, second), Ids{2});
  const Effects effects = rig.complete(state, second, {3});
  EXPECT_EQ(client_ids(effects, c), Ids{3});
  ASSERT_TRUE(effects.done);
  EXPECT_EQ(effects.done->pass, 1);
  EXPECT_EQ(state.num_values(), 0u);
}

// A denoise loop: latents and time are looped back, text comes from outside and stays.
struct Diffusion : Rig {
  PortRef latents = port("latents", {FromPlan{}});
  PortRef time = port("time", {FromPlan{}});
  PortRef text = port("text", {FromPlan{}});
  PortRef image = port("image", {ToClient{}});
  WalkRef walk = d.walk("w", Sequential{{Loop{.name = "denoise",
                                              .body = {run("dit", {latents, time, text}, {latents, time})},
                                              .at_most = 3,
                                              .outputs = {latents}},
                                         run("vae", {latents}, {image})}});
};

// 1
TEST(Walks, FixedIterationDiffusionLoop) {
  Diffusion rig;
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(rig.walk, 1, {{rig.latents, 1}, {rig.time, 2}, {rig.text, 3}})));
  for (int i = 0; i < 3; ++i) {
    const ReadyNode dit = rig.take(state, "dit");
    EXPECT_EQ(rig.in(state, dit, 0), Ids{i ? 10 * i : 1});
    EXPECT_EQ(rig.in(state, dit, 1), Ids{i ? 10 * i + 1 : 2});
    EXPECT_EQ(rig.in(state, dit, 2), Ids{3}) << "an external input is there in each iteration";
    EXPECT_EQ(state.path(dit.node).at[0], i);
    const Effects effects = rig.complete(state, dit, {10 * (i + 1), 10 * (i + 1) + 1});
    EXPECT_TRUE(effects.peers.empty());
    EXPECT_FALSE(effects.done);
  }
  const ReadyNode vae = rig.take(state, "vae");
  EXPECT_EQ(rig.in(state, vae), Ids{30});
  EXPECT_EQ(rig.live, 1) << "the loop's values are gone but for its output";
  const Effects effects = rig.complete(state, vae, {40});
  ASSERT_TRUE(effects.done);
  ASSERT_EQ(effects.done->loop_ends.size(), 1u);
  EXPECT_EQ(effects.done->loop_ends[0].end, decl::LoopEnd::cap);
  EXPECT_EQ(effects.done->loop_ends[0].iterations, 3);
}

struct Decoder : Rig {
  PortRef token = port("token", {FromPlan{}, ToClient{}});
  WalkRef walk = d.walk(
      "decode",
      Loop{.name = "loop", .body = {run("llm", {token}, {token})}, .stop = decl::ComponentSignal{}, .at_most = 10});
};

// 1, 2
TEST(Walks, DynamicFinishClearsPendingSignals) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(rig.walk, 1, {{rig.token, 1}})));
  EXPECT_EQ(client_ids(rig.step(state, "llm", {2}), rig.token), Ids{2})
      << "a port that no loop exports travels in each iteration";
  const Effects effects = rig.step(state, "llm", {3}, {"loop"});
  EXPECT_EQ(client_ids(effects, rig.token), Ids{3});
  ASSERT_TRUE(effects.done);
  EXPECT_EQ(effects.done->loop_ends[0].end, decl::LoopEnd::stop);
  EXPECT_EQ(effects.done->loop_ends[0].iterations, 2);
  EXPECT_EQ(state.num_ready(), 0u);
  EXPECT_EQ(state.num_values(), 0u) << "the looped back token must not wait for the next pass";
}

// 3
TEST(Walks, AFinishDoesNotPersist) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(rig.walk, 1, {{rig.token, 1}})));
  EXPECT_TRUE(rig.step(state, "llm", {2}, {"loop"}).done);
  ASSERT_TRUE(state.start(rig.start(rig.walk, 2, {{rig.token, 1}}, {{"loop", 4}})));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(rig.step(state, "llm", {2 + i}).done);
  EXPECT_TRUE(rig.step(state, "llm", {9}).done);
}

TEST(Walks, CapsArePerPass) {
  Decoder rig;
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(rig.walk, 1, {{rig.token, 1}}, {{"loop", 1}})));
  EXPECT_TRUE(rig.step(state, "llm", {2}).done);
  ASSERT_TRUE(state.start(rig.start(rig.walk, 2, {{rig.token, 1}})));
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(rig.step(state, "llm", {2}).done);
  EXPECT_TRUE(rig.step(state, "llm", {2}).done);
}

// 1: the outer loop's value is looped back through the inner one, and both export it.
TEST(Walks, NestedLoopsPopulateOutputsThenCascade) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}, ToClient{}}), y = rig.port("y");
  const auto walk = rig.d.walk(
      "w", Loop{.name = "outer",
                .body = {rig.run("pre", {x}, {y}),
                         Loop{.name = "inner", .body = {rig.run("core", {x, y}, {x})}, .at_most = 2, .outputs = {x}}},
                .at_most = 2,
                .outputs = {x}});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}})));
  rig.step(state, "pre", {100});
  ReadyNode core = rig.take(state, "core");
  EXPECT_EQ(rig.in(state, core, 0), Ids{1});
  EXPECT_TRUE(rig.complete(state, core, {2}).client.empty());
  core = rig.take(state, "core");
  EXPECT_EQ(rig.in(state, core, 0), Ids{2});
  EXPECT_EQ(rig.in(state, core, 1), Ids{100});
  EXPECT_TRUE(rig.complete(state, core, {3}).client.empty()) << "both loops export it: it leaves with the outer one";
  const ReadyNode pre = rig.take(state, "pre");
  EXPECT_EQ(rig.in(state, pre), Ids{3});
  rig.complete(state, pre, {101});
  core = rig.take(state, "core");
  EXPECT_EQ(rig.in(state, core, 0), Ids{3});
  EXPECT_EQ(rig.in(state, core, 1), Ids{101});
  EXPECT_EQ(state.path(core.node).at[0], 1);
  EXPECT_EQ(state.path(core.node).at[1], 0);
  rig.complete(state, core, {4});
  const Effects effects = rig.step(state, "core", {5});
  EXPECT_EQ(client_ids(effects, x), Ids{5});
  EXPECT_TRUE(effects.done);
}

// The inner loop starts from the first value again in each iteration of a loop that does not loop it back.
TEST(Walks, AnInnerLoopRestartsFromItsFirstValue) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), z = rig.port("z", {ToClient{}});
  const auto walk = rig.d.walk(
      "w", Loop{.name = "outer",
                .body = {Loop{.name = "inner", .body = {rig.run("core", {x}, {x, z})}, .at_most = 2, .outputs = {z}}},
                .at_most = 2});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}})));
  for (const std::int64_t want : {1, 20, 1, 40}) {
    const ReadyNode core = rig.take(state, "core");
    EXPECT_EQ(rig.in(state, core), Ids{want});
    rig.complete(state, core, {want == 1 && state.path(core.node).at[0] ? 40 : 20, 7});
  }
}

// 4
TEST(Walks, TopLevelSlotsAreClearedOnCompletion) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), b = rig.port("b", {FromPlan{}}), c = rig.port("c", {ToClient{}}),
             e = rig.port("e", {ToClient{}});
  const auto walk = rig.d.walk("w", Parallel{{rig.run("one", {a}, {c}), rig.run("two", {b}, {e})}});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{a, 1}, {b, 2}})));
  rig.step(state, "one", {3});
  EXPECT_EQ(state.num_values(), 1u) << "only b's is left";
  EXPECT_EQ(state.deliver_input(a, 1, rig.value(9)), Accepted::refused) << "it must not leak into a later pass";
  EXPECT_TRUE(rig.step(state, "two", {4}).done);
  EXPECT_EQ(state.num_values(), 0u);
}

// 5
TEST(Walks, RepeatedAndUnknownDeliveriesAreRefusedSoftly) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), x = rig.port("x", {FromPlan{}}), y = rig.port("y", {FromPlan{}});
  const auto walk = rig.d.walk(
      "w", Loop{.name = "loop", .body = {rig.run("far", {a, y}, {x}), rig.run("near", {x}, {y})}, .at_most = 8});
  rig.compile({{"far", 1}});
  PartitionState state = rig.state();
  (void)a;
  const EdgeIndex edge = rig.model->at(walk).outputs_of(rig.node(walk, "far"))[0].forward[1];
  ASSERT_NE(edge, kNoEdge);
  ASSERT_TRUE(state.start(rig.start(walk, 1)));
  const auto deliver = [&](int iteration) {
    return state.deliver({1, edge, LoopPath{{iteration}, 1}, rig.value(iteration)});
  };
  EXPECT_EQ(deliver(0), Accepted::now);
  EXPECT_EQ(deliver(1), Accepted::early) << "an early one waits for its iteration";
  EXPECT_EQ(deliver(1), Accepted::refused) << "a third one is refused";
  EXPECT_EQ(deliver(0), Accepted::refused);
  EXPECT_EQ(deliver(3), Accepted::early) << "however early";
  EXPECT_EQ(deliver(8), Accepted::refused) << "never runs";
  EXPECT_EQ(state.deliver({1, 99, {}, rig.value(1)}), Accepted::refused);
  EXPECT_EQ(state.deliver({1, edge, {}, rig.value(1)}), Accepted::refused) << "path of another depth";
  EXPECT_EQ(state.deliver_input(PortRef(77), 1, rig.value(1)), Accepted::refused);
  EXPECT_EQ(state.deliver_input(y, 1, rig.value(1)), Accepted::refused) << "not an input from outside on this worker";
  EXPECT_EQ(state.deliver({0, edge, LoopPath{{0}, 1}, rig.value(1)}), Accepted::refused) << "an older pass";
  const ReadyNode near = rig.take(state, "near");
  EXPECT_EQ(rig.in(state, near), Ids{0});
  rig.complete(state, near, {50});
  const ReadyNode next = rig.take(state, "near");
  EXPECT_EQ(rig.in(state, next), Ids{1});
  EXPECT_EQ(deliver(0), Accepted::refused) << "an iteration that is over";
}

// A first value that comes again, or late, is not taken for the looped back one.
TEST(Walks, AFirstValueIsOnlyForTheFirstIteration) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y");
  const auto walk = rig.d.walk(
      "w", Loop{.name = "loop", .body = {rig.run("near", {x}, {y}), rig.run("far", {y}, {x})}, .at_most = 8});
  rig.compile({{"far", 1}});
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}})));
  rig.step(state, "near", {2});
  EXPECT_EQ(state.deliver_input(x, 1, rig.value(3)), Accepted::refused);
  EXPECT_EQ(state.num_ready(), 0u);
}

// 6
TEST(Walks, ParallelKeepsOutsideInputsAndJoinsSiblings) {
  Rig rig;
  const auto a = rig.port("a", {FromPlan{}}), b = rig.port("b", {FromPlan{}}), c = rig.port("c"),
             e = rig.port("e", {ToClient{}});
  const auto walk = rig.d.walk("w", Parallel{{rig.run("reads_sibling", {c, b}, {e}), rig.run("makes", {a}, {c})}});
  rig.compile();
  const CompiledWalk& compiled = rig.model->at(walk);
  ASSERT_EQ(compiled.inputs.size(), 2u);
  EXPECT_TRUE(compiled.find_input(a));
  EXPECT_TRUE(compiled.find_input(b));
  EXPECT_FALSE(compiled.find_input(c));
}
TEST(Walks, GuidanceLoopHasNoOutsideInputsButItsFirstValues) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}, ToClient{}}), v = rig.port("v"), u = rig.port("u");
  const auto walk = rig.d.walk("w", Loop{.name = "cfg",
                                         .body = {Parallel{{rig.run("cond", {x}, {v}), rig.run("uncond", {x}, {u})}},
                                                  rig.run("combine", {v, u, x}, {x})},
                                         .at_most = 2,
                                         .outputs = {x}});
  rig.compile();
  const CompiledWalk& compiled = rig.model->at(walk);
  ASSERT_EQ(compiled.inputs.size(), 1u);
  EXPECT_EQ(compiled.edges[compiled.inputs[0].edge].targets.size(), 3u) << "all branches and combine start from it";
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1, {{x, 1}})));
  rig.step(state, "cond", {2});
  rig.step(state, "uncond", {3});
  EXPECT_TRUE(rig.step(state, "combine", {4}).client.empty());
  const ReadyNode cond = rig.take(state, "cond");
  EXPECT_EQ(rig.in(state, cond), Ids{4}) << "the loop-back feeds every branch";
  rig.complete(state, cond, {5});
  rig.step(state, "uncond", {6});
  const ReadyNode combine = rig.take(state, "combine");
  EXPECT_EQ(rig.in(state, combine, 2), Ids{4});
  const Effects effects = rig.complete(state, combine, {7});
  EXPECT_EQ(client_ids(effects, x), Ids{7});
}

// 7
TEST(Walks, AStreamInputIsOneInEveryWalkThatReadsIt) {
  Rig rig;
  const auto mic = rig.port("mic", {decl::FromClient{}}), out = rig.port("out", {ToClient{}});
  const auto once = rig.d.walk("once", rig.run("llm", {mic}, {out}));
  const auto looped = rig.d.walk("looped", Loop{.name = "l", .body = {rig.run("llm", {mic}, {out})}, .at_most = 3});
  rig.compile();
  for (const WalkRef walk : {once, looped}) {
    EXPECT_TRUE(rig.model->at(walk).slot(0, 0).stream);
    EXPECT_EQ(rig.model->at(walk).nodes[0].streams, 1u);
    EXPECT_TRUE(rig.model->at(walk).inputs[0].stream);
  }
}

// 9
struct Rollout : Rig {
  PortRef state_port = port("state", {FromPlan{}});
  PortRef frame = port("frame", {ToClient{}});
  PortRef score = port("score", {ToClient{}});
  WalkRef walk = d.walk("w", Loop{.name = "roll",
                                  .body = {run("model", {state_port}, {state_port, frame, score})},
                                  .stop = decl::ComponentSignal{},
                                  .at_most = 4,
                                  .outputs = {score},
                                  .accumulated = {frame}});
};
TEST(Accumulated, OneListOfTheIterationsThatRan) {
  Rollout rig;
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(rig.walk, 1, {{rig.state_port, 1}})));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(rig.step(state, "model", {10 + i, 20 + i, 30 + i}).client.empty());
  EXPECT_EQ(rig.live, 3 + 1 + 1) << "three frames, the last score, the next state: one reference each";
  const Effects effects = rig.step(state, "model", {13, 23, 33});
  EXPECT_EQ(client_ids(effects, rig.frame), (Ids{20, 21, 22, 23}));
  EXPECT_EQ(client_ids(effects, rig.score), Ids{33});
  EXPECT_EQ(effects.client.size(), 2u) << "each leaves as one";
}
TEST(Accumulated, EarlyFinish) {
  Rollout rig;
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(rig.walk, 1, {{rig.state_port, 1}})));
  rig.step(state, "model", {10, 20, 30});
  EXPECT_EQ(client_ids(rig.step(state, "model", {11, 21, 31}, {"roll"}), rig.frame), (Ids{20, 21}));
}
TEST(Accumulated, ANameThatIsNeverProducedIsAbsent) {
  Rollout rig;
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(rig.walk, 1, {{rig.state_port, 1}})));
  rig.step(state, "model", {10, 0, 30});
  const Effects effects = rig.step(state, "model", {11, 0, 0}, {"roll"});
  EXPECT_TRUE(client_ids(effects, rig.frame).empty());
  EXPECT_EQ(client_ids(effects, rig.score), Ids{30}) << "the last value that there was";
}
TEST(Accumulated, CancelReleasesThem) {
  Rollout rig;
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(rig.walk, 1, {{rig.state_port, 1}})));
  rig.step(state, "model", {10, 20, 30});
  const ReadyNode running = rig.take(state, "model");
  const auto done = state.cancel(false);
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->cancelled);
  EXPECT_EQ(rig.live, 0);
  EXPECT_FALSE(state.is_current(running));
  Effects effects;
  EXPECT_FALSE(state.complete(running, {}, {}, effects));
  EXPECT_FALSE(state.cancel(false)) << "nothing runs any more";
  ASSERT_TRUE(state.start(rig.start(rig.walk, 2, {{rig.state_port, 1}})));
  EXPECT_EQ(state.num_ready(), 1u);
}

}  // namespace
}  // namespace mstar::graph
