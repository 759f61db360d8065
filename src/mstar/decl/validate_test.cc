// One test per fault that Decl::validate() reports: names, partitions, ports and streams.
#include "mstar/decl/validate_test_model.h"

namespace mstar::decl {
namespace {

TEST(Validate, AGoodModelHasNoFault) {
  Model m;
  const auto faults = m.with_walks().validate();
  EXPECT_TRUE(faults.empty()) << faults.front();
}

TEST(Validate, ReportsAllFaultsAtOnce) {
  Model m;
  m.d.port({.name = ""});
  m.d.port({.name = "text"});
  m.d.component(DeviceComponent{.name = "idle"});
  m.with_walks();
  EXPECT_GE(m.d.validate().size(), 4u);
  EXPECT_TRUE(has_fault(m.d, "port without a name"));
  EXPECT_TRUE(has_fault(m.d, "port name 'text' is taken twice"));
  EXPECT_TRUE(has_fault(m.d, "component 'idle' is run by no walk"));
}

// --- names ---
TEST(ValidateNames, Empty) {
  Decl d("");
  EXPECT_TRUE(has_fault(d, "the model has no name"));
  EXPECT_TRUE(has_fault(d, "the model has no walk"));
  d.walk("", Step{});
  d.component(DeviceComponent{});
  d.resource(Sampler{.vocab = 1});
  d.alias("");
  for (const char* kind :
       {"walk without a name", "component without a name", "resource without a name", "alias without a name"})
    EXPECT_TRUE(has_fault(d, kind));
}
TEST(ValidateNames, Twice) {
  Model m;
  m.with_walks();
  m.d.walk("decode", Step{m.llm, {m.text}, {m.token}});
  m.d.component(DeviceComponent{.name = "llm", .uses = {m.kv}});
  m.d.resource(Sampler{.name = "kv", .vocab = 5});
  m.d.alias("a");
  m.d.alias("a");
  for (const char* kind : {"walk name 'decode' is taken twice", "component name 'llm' is taken twice",
                           "resource name 'kv' is taken twice", "alias name 'a' is taken twice"})
    EXPECT_TRUE(has_fault(m.d, kind));
}
TEST(ValidateNames, LoopsOfAWalk) {
  Model m;
  m.add_prefill();
  Loop nameless = m.decode_loop();
  nameless.name = "";
  m.d.walk("decode", nameless);
  EXPECT_TRUE(only_fault(m.d, "a loop has no name"));
  Model n;
  n.add_prefill();
  Loop inner = n.decode_loop();
  inner.outputs = {n.token};
  n.d.walk("decode", Loop{.name = "loop", .body = {inner}});
  EXPECT_TRUE(only_fault(n.d, "two loops are named 'loop'"));
}

// --- partitions ---
TEST(ValidatePartitions, WalkInNone) {
  Model m;
  m.with_walks();
  m.d.partition({.name = "p", .walks = {m.prefill}, .plan = in_order({m.prefill})});
  EXPECT_TRUE(has_fault(m.d, "walk 'decode' is in no partition"));
}
TEST(ValidatePartitions, WalkInTwo) {
  Model m;
  m.with_walks();
  m.d.partition({.name = "p", .walks = {m.prefill, m.decode}, .plan = in_order({m.prefill})});
  m.d.partition({.name = "q", .walks = {m.decode}, .plan = in_order({m.decode})});
  EXPECT_TRUE(has_fault(m.d, "walk 'decode' is in more than one partition"));
}
TEST(ValidatePartitions, NoPlanNoWalkUnknownWalk) {
  Model m;
  m.with_walks();
  m.d.partition({.name = "p", .walks = {m.prefill, m.decode, WalkRef(9)}});
  m.d.partition({.name = "q", .walks = {}, .plan = in_order({})});
  EXPECT_TRUE(has_fault(m.d, "partition 'p': has no plan"));
  EXPECT_TRUE(has_fault(m.d, "names a walk that is not of this model"));
  EXPECT_TRUE(has_fault(m.d, "partition 'q': has no walk"));
}

// --- ports ---
TEST(ValidatePorts, Unused) {
  Model m;
  m.with_walks();
  m.d.port({.name = "spare"});
  EXPECT_TRUE(only_fault(m.d, "port 'spare': no run names it"));
}
TEST(ValidatePorts, GoesNowhere) {
  Model m;
  const auto sink = m.d.port({.name = "sink"});
  m.with_walks();
  m.d.walk("more", Step{m.llm, {m.text}, {sink}});
  EXPECT_TRUE(only_fault(m.d, "is made, but nobody reads it and it does not travel"));
}
TEST(ValidatePorts, TravelWithoutUse) {
  Model m;
  const auto a = m.d.port({.name = "a", .travel = {Keep{}, ToClient{}, FromPlan{}}});
  const auto b = m.d.port({.name = "b", .travel = {FromRequest{}, FromClient{}, FromPlan{}}});
  m.with_walks();
  m.d.walk("more", Step{m.llm, {a}, {b}});
  for (const char* part : {"'a': says Keep, but no walk makes it", "'a': says ToClient, but no walk makes it",
                           "'b': says FromRequest, but no walk reads it", "'b': says FromClient, but no walk reads it",
                           "'b': says FromPlan, but no walk reads it"})
    EXPECT_TRUE(has_fault(m.d, part));
}
TEST(ValidatePorts, TravelTwice) {
  Model m;
  const auto a = m.d.port({.name = "a", .travel = {ToClient{}, ToClient{}}});
  m.with_walks();
  m.d.walk("more", Step{m.llm, {m.text}, {a}});
  EXPECT_TRUE(only_fault(m.d, "says ToClient more than once"));
}
TEST(ValidatePorts, ShardAxis) {
  Model m;
  const auto a = m.d.port({.name = "a", .axes = {{"rows"}}, .travel = {ToClient{}}, .shard_axis = 1});
  m.with_walks();
  m.d.walk("more", Step{m.llm, {m.text}, {a}});
  EXPECT_TRUE(only_fault(m.d, "shard_axis is not one of its axes"));
}
TEST(ValidatePorts, TooManyAxes) {
  Model m;
  const auto a = m.d.port(
      {.name = "a", .axes = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}}, .travel = {ToClient{}}});
  m.with_walks();
  m.d.walk("more", Step{m.llm, {m.text}, {a}});
  EXPECT_TRUE(only_fault(m.d, "has more than 5 axes"));
}
TEST(ValidatePorts, CountsTokensThatNobodyMakes) {
  Model m;
  const auto a = m.d.port({.name = "a", .travel = {FromPlan{}}, .counts_token = true});
  m.with_walks();
  m.d.walk("more", Step{m.llm, {a}});
  EXPECT_TRUE(only_fault(m.d, "counts tokens, but no walk makes it"));
}

// --- streams ---
struct Streamed : Model {
  ComponentRef codec = d.component(DeviceComponent{.name = "codec"});
  PortRef codes;
  PortRef audio = d.port({.name = "audio", .travel = {ToClient{}}});
  Decl& with(Stream stream, std::vector<Travel> more = {}) {
    more.push_back(std::move(stream));
    codes = d.port({.name = "codes", .travel = std::move(more)});
    with_walks();
    const auto make = d.walk("make", Step{llm, {text}, {codes}});
    const auto chunk = d.walk("chunk", Step{codec, {codes}, {audio}});
    d.partition({.name = "main", .walks = {prefill, decode, make}, .plan = in_order({prefill})});
    d.partition({.name = "codec", .walks = {chunk}, .plan = each_chunk(chunk)});
    return d;
  }
};
TEST(ValidateStreams, Good) {
  Streamed m;
  const auto faults = m.with({"codec", FixedChunks{4}}).validate();
  EXPECT_TRUE(faults.empty()) << faults.front();
}
TEST(ValidateStreams, UnknownPartition) {
  Streamed m;
  EXPECT_TRUE(has_fault(m.with({"nobody"}), "streams to an unknown partition 'nobody'"));
}
TEST(ValidateStreams, OwnPartition) {
  Streamed m;
  EXPECT_TRUE(has_fault(m.with({"main"}), "streams to its own partition 'main'"));
}
TEST(ValidateStreams, NobodyReads) {
  Streamed m;
  m.with({"codec"});
  const auto other = m.d.port({.name = "other", .travel = {Stream{"codec"}}});
  const auto walk = m.d.walk("w", Step{m.llm, {m.text}, {other}});
  m.d.partition({.name = "third", .walks = {walk}, .plan = in_order({walk})});
  EXPECT_TRUE(only_fault(m.d, "streams to partition 'codec', which does not read it"));
}
TEST(ValidateStreams, NobodyMakes) {
  Streamed m;
  m.with({"codec"});
  const auto other = m.d.port({.name = "other", .travel = {Stream{"third"}}});
  const auto walk = m.d.walk("w", Step{m.llm, {other}, {m.audio}});
  m.d.partition({.name = "third", .walks = {walk}, .plan = in_order({walk})});
  EXPECT_TRUE(only_fault(m.d, "is streamed but no walk makes it"));
}
TEST(ValidateStreams, TwoProducers) {
  Streamed m;
  m.with({"codec"});
  const auto walk = m.d.walk("w", Step{m.llm, {m.text}, {m.codes}});
  m.d.partition({.name = "third", .walks = {walk}, .plan = in_order({walk})});
  EXPECT_TRUE(only_fault(m.d, "is streamed by more than one partition"));
}
TEST(ValidateStreams, Policies) {
  const std::pair<ChunkPolicy, const char*> bad[] = {
      {FixedChunks{0}, "a fixed chunk needs at least 1 item"},
      {SlidingWindow{0, 1}, "window and stride must be at least 1"},
      {SlidingWindow{3, 0}, "window and stride must be at least 1"},
      {SlidingWindow{3, 4}, "a stride past the window would skip items"},
      {LeftContext{0, 0, {}}, "a chunk needs at least 1 new item"},
      {LeftContext{4, -1, {}}, "left context must not be negative"},
      {LeftContext{4, 1, {2, 0}}, "ramp sizes must be at least 1"},
  };
  for (const auto& [policy, part] : bad) {
    Streamed m;
    EXPECT_TRUE(has_fault(m.with({"codec", policy}), part));
  }
}
TEST(ValidateStreams, TwoReadersInAWalk) {
  Streamed m;
  m.with({"codec"});
  Streamed n;
  n.codes = n.d.port({.name = "codes", .travel = {Stream{"codec"}}});
  n.with_walks();
  const auto make = n.d.walk("make", Step{n.llm, {n.text}, {n.codes}});
  const auto chunk =
      n.d.walk("chunk", Sequential{{Step{n.codec, {n.codes}, {n.audio}}, Step{n.codec, {n.codes, n.audio}}}});
  n.d.partition({.name = "main", .walks = {n.prefill, n.decode, make}, .plan = in_order({make})});
  n.d.partition({.name = "codec", .walks = {chunk}, .plan = each_chunk(chunk)});
  EXPECT_TRUE(only_fault(n.d, "two runs read the stream 'codes'"));
}
TEST(ValidateStreams, LoopedBack) {
  Model m;
  const auto mic = m.d.port({.name = "mic", .travel = {FromClient{}}});
  m.with_walks();
  m.d.walk("w", Loop{.name = "l", .body = {Step{m.llm, {mic}, {mic}}}});
  EXPECT_TRUE(only_fault(m.d, "the stream 'mic' is also looped back"));
}

}  // namespace
}  // namespace mstar::decl
