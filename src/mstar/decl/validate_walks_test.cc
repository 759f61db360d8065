// One test per fault of walks, loops and labels.
#include "mstar/decl/validate_test_model.h"

namespace mstar::decl {
namespace {

// --- values in a walk ---
TEST(ValidateWalks, TwoWriters) {
  Model m;
  m.with_walks();
  m.d.walk("w", Parallel{{Step{m.llm, {m.text}, {m.token}}, Step{m.llm, {m.text}, {m.token}}}});
  EXPECT_TRUE(only_fault(m.d, "port 'token' has two writers, 'llm' and 'llm'"));
}
TEST(ValidateWalks, TwoWritersInSequence) {
  Model m;
  m.with_walks();
  m.d.walk("w", Sequential{{Step{m.llm, {m.text}, {m.token}}, Step{m.llm, {m.token}, {m.token}}}});
  EXPECT_TRUE(only_fault(m.d, "two writers"));
}
TEST(ValidateWalks, ALoopMayContinueAnEarlierWriter) {
  Model m;
  m.with_walks();
  Loop loop = m.decode_loop();
  loop.outputs = {m.token};
  m.d.walk("w", Sequential{{Step{m.llm, {m.text}, {m.token}}, loop, Step{m.llm, {m.token}}}});
  const auto faults = m.d.validate();
  EXPECT_TRUE(faults.empty()) << faults.front();
}
TEST(ValidateWalks, ReadAfterALoopThatDoesNotExport) {
  Model m;
  m.with_walks();
  m.d.walk("w", Sequential{{m.decode_loop(), Step{m.llm, {m.token}}}});
  EXPECT_TRUE(only_fault(m.d, "after a loop that makes it but does not export it"));
}
TEST(ValidateWalks, InputWithoutSource) {
  Model m;
  const auto orphan = m.d.port({.name = "orphan"});
  m.with_walks();
  m.d.walk("w", Step{m.llm, {orphan}});
  EXPECT_TRUE(only_fault(m.d, "nothing gives 'orphan' to 'llm'"));
}
TEST(ValidateWalks, KeptByAnotherPartitionIsNoSource) {
  Model m;
  m.with_walks();
  m.d.partition({.name = "a", .walks = {m.prefill}, .plan = in_order({m.prefill})});
  m.d.partition({.name = "b", .walks = {m.decode}, .plan = in_order({m.decode})});
  const auto faults = m.d.validate();
  EXPECT_TRUE(faults.empty()) << "decode itself keeps the token";
  Model n;
  const auto other = n.d.port({.name = "other", .travel = {Keep{}}});
  n.with_walks();
  const auto make = n.d.walk("make", Step{n.llm, {n.text}, {other}});
  const auto read = n.d.walk("read", Step{n.llm, {other}});
  n.d.partition({.name = "a", .walks = {n.prefill, n.decode, make}, .plan = in_order({make})});
  n.d.partition({.name = "b", .walks = {read}, .plan = in_order({read})});
  EXPECT_TRUE(only_fault(n.d, "nothing gives 'other' to 'llm'"));
}
TEST(ValidateWalks, WaitForEachOther) {
  Model m;
  const auto a = m.d.port({.name = "a"});
  const auto b = m.d.port({.name = "b"});
  m.with_walks();
  m.d.walk("w", Parallel{{Step{m.llm, {a}, {b}}, Step{m.llm, {b}, {a}}}});
  EXPECT_TRUE(only_fault(m.d, "parts wait for each other"));
}
TEST(ValidateWalks, ReadsOrWritesAPortTwice) {
  Model m;
  m.with_walks();
  m.d.walk("w", Step{m.llm, {m.text, m.text}, {m.token, m.token}});
  EXPECT_TRUE(has_fault(m.d, "reads port 'text' twice"));
  EXPECT_TRUE(has_fault(m.d, "writes port 'token' twice"));
}
TEST(ValidateWalks, RunsNothing) {
  Model m;
  m.with_walks();
  m.d.walk("w", Sequential{});
  EXPECT_TRUE(only_fault(m.d, "walk 'w': runs nothing"));
}
TEST(ValidateWalks, ReferencesOfAnotherModel) {
  Model m;
  m.with_walks();
  m.d.walk("w", Step{ComponentRef(7), {PortRef(90)}, {PortRef(91)}});
  m.d.walk("v", Loop{.name = "l", .body = {Step{m.llm}}, .outputs = {PortRef(92)}});
  EXPECT_TRUE(has_fault(m.d, "walk 'w': names a component that is not of this model"));
  EXPECT_TRUE(has_fault(m.d, "walk 'w': names a port that is not of this model"));
  EXPECT_TRUE(has_fault(m.d, "walk 'v': names a port that is not of this model"));
}
TEST(ValidateWalks, MoreThan64Inputs) {
  Model m;
  Step run{m.llm, {}, {m.token}};
  for (int i = 0; i < 65; ++i)
    run.inputs.push_back(m.d.port({.name = "in" + std::to_string(i), .travel = {FromPlan{}}}));
  m.with_walks();
  m.d.walk("w", run);
  EXPECT_TRUE(only_fault(m.d, "has more than 64 inputs"));
}

// --- loops ---
template <class Spoil>
testing::AssertionResult loop_fault(Spoil&& spoil, const std::string& part) {
  Model m;
  m.add_prefill();
  Loop loop = m.decode_loop();
  spoil(m, loop);
  m.d.walk("decode", loop);
  return only_fault(m.d, part);
}
TEST(ValidateLoops, AtMost) {
  EXPECT_TRUE(loop_fault([](Model&, Loop& loop) { loop.at_most = 0; }, "must run at least once"));
}
TEST(ValidateLoops, OutputsAndAccumulatedDisjoint) {
  EXPECT_TRUE(has_fault(
      [] {
        Model m;
        m.add_prefill();
        Loop loop = m.decode_loop();
        loop.outputs = loop.accumulated = {m.token};
        m.d.walk("decode", loop);
        return m.d;
      }(),
      "in both outputs and accumulated"));
}
TEST(ValidateLoops, ExportsWhatItDoesNotMake) {
  EXPECT_TRUE(loop_fault([](Model& m, Loop& loop) { loop.outputs = {m.text}; },
                         "exports 'text', which its body does not make"));
  EXPECT_TRUE(loop_fault([](Model& m, Loop& loop) { loop.accumulated = {m.text}; },
                         "exports 'text', which its body does not make"));
}
TEST(ValidateLoops, TooDeep) {
  EXPECT_TRUE(loop_fault(
      [](Model&, Loop& loop) {
        for (int i = 0; i < 4; ++i) loop = Loop{.name = "l" + std::to_string(i), .body = {loop}};
      },
      "more than 4 loops deep"));
}
TEST(ValidateLoops, TokenStopNotI32) {
  Model m;
  const auto logits = m.d.port({.name = "logits", .travel = {ToClient{}}});
  m.add_prefill();
  m.d.walk("decode",
           Loop{.name = "l", .body = {Step{m.llm, {m.token}, {m.token, logits}}}, .stop = TokenStop{logits, {1}}});
  EXPECT_TRUE(only_fault(m.d, "stops on 'logits', which is not i32"));
}
TEST(ValidateLoops, TokenStopNotMade) {
  EXPECT_TRUE(loop_fault(
      [](Model& m, Loop& loop) {
        loop.stop = TokenStop{m.text, {1}};
      },
      "stops on 'text', which its body does not make"));
  EXPECT_TRUE(loop_fault(
      [](Model&, Loop& loop) {
        loop.stop = TokenStop{PortRef(77), {1}};
      },
      "stops on a port that is not of this model"));
}
TEST(ValidateLoops, UnknownPrefillWalk) {
  EXPECT_TRUE(loop_fault(
      [](Model& m, Loop& loop) {
        loop.stop = TokenStop{m.token, {1}, {"nowhere"}};
      },
      "unknown prefill walk 'nowhere'"));
}
TEST(ValidateLoops, PrefillWalkMakesNoToken) {
  Model m;
  m.add_prefill();
  m.d.walk("silent", Step{m.llm, {m.text}});
  Loop loop = m.decode_loop();
  loop.stop = TokenStop{m.token, {1}, {"prefill", "silent"}};
  m.d.walk("decode", loop);
  EXPECT_TRUE(only_fault(m.d, "prefill walk 'silent' does not make 'token'"));
}
TEST(ValidateLoops, RunsNothing) {
  Model m;
  m.with_walks();
  m.d.walk("w", Sequential{{Step{m.llm, {m.text}}, Loop{.name = "empty"}}});
  EXPECT_TRUE(only_fault(m.d, "loop 'empty' runs nothing"));
}

// --- labels ---
template <class Spoil>
testing::AssertionResult run_fault(Spoil&& spoil, const std::string& part) {
  Model m;
  m.with_walks();
  Step run{m.llm, {m.text}};
  spoil(run);
  m.d.walk("w", run);
  return only_fault(m.d, part);
}
TEST(ValidateLabels, UnknownLabel) {
  EXPECT_TRUE(run_fault(
      [](Step& run) {
        run.labels = {"main", "cfg"};
      },
      "label 'cfg' is not one of every resource of 'llm'"));
}
TEST(ValidateLabels, NoneOrTwice) {
  EXPECT_TRUE(run_fault([](Step& run) { run.labels = {}; }, "has no label"));
  EXPECT_TRUE(run_fault([](Step& run) { run.labels = {"main", "main"}; }, "label 'main' is there twice"));
}
TEST(ValidateLabels, UnknownFork) {
  EXPECT_TRUE(run_fault([](Step& run) { run.forks_before = {{"main", "cfg"}}; }, "fork target 'cfg'"));
  EXPECT_TRUE(run_fault([](Step& run) { run.forks_after = {{"cfg", "main"}}; }, "fork source 'cfg'"));
  EXPECT_TRUE(run_fault([](Step& run) { run.forks_after = {{"main", "main"}}; }, "forks 'main' to itself"));
}
TEST(ValidateLabels, OrderOfTwoResources) {
  const auto with_state = [](std::vector<std::string> labels) {
    Model m;
    m.with_walks();
    const auto state =
        m.d.resource(RecurrentState{.name = "state", .tensors = {{"s", {2}}}, .labels = std::move(labels)});
    const auto both = m.d.component(DeviceComponent{.name = "both", .uses = {m.kv, state}});
    m.d.walk("w", Step{both, {m.text}});
    return std::move(m.d);
  };
  EXPECT_TRUE(only_fault(with_state({"uncond", "main"}), "'both': resource 'state' lists its labels in another order"));
  EXPECT_TRUE(with_state({"main"}).validate().empty());
  EXPECT_TRUE(with_state({"main", "uncond"}).validate().empty());
}
TEST(ValidateLabels, WithoutALabelledResource) {
  Model m;
  m.with_walks();
  const auto plain = m.d.component(DeviceComponent{.name = "plain"});
  m.d.walk("w", Step{plain, {m.text}, {}, {"main", "uncond"}, {{"main", "uncond"}}});
  EXPECT_TRUE(has_fault(m.d, "label 'uncond', but 'plain' has no labelled resource"));
  EXPECT_TRUE(has_fault(m.d, "forks 'main', but 'plain' has no labelled resource"));
}

}  // namespace
}  // namespace mstar::decl
