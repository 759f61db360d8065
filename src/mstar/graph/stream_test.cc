// Streams and early signals (22-25 of docs/contracts/pinned-behaviours.md).
#include "mstar/graph/rig.h"

#include "mstar/graph/fixtures/fixtures.h"
#include "mstar/graph/partition_progress.h"

namespace mstar::graph {
namespace {

using decl::ChunkPolicy;
using decl::FixedChunks;
using decl::LeftContext;
using decl::SlidingWindow;

struct Chunk {
  Ids items;
  int num_seen = 0;
  bool is_final = false;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};
std::ostream& operator<<(std::ostream& out, const Chunk& c) {
  return out << sim::print(c.items) << c.num_seen << (c.is_final ? "F" : "");
}

class Buffer {
 public:
  explicit Buffer(ChunkPolicy policy) : buffer(std::move(policy)) {}
  bool push(std::int64_t index) { return buffer.push(index, Value(std::make_shared<sim::Tracked>(index, live))); }
  std::vector<Chunk> chunks(int most = 100) {
    std::vector<Chunk> all;
    while (static_cast<int>(all.size()) < most) {
      const auto chunk = buffer.take();
      if (!chunk) break;
      all.push_back({sim::ids_of(chunk->items), chunk->num_seen, chunk->is_final});
    }
    return all;
  }
  std::int64_t live = 0;
  StreamBuffer buffer;
};

TEST(StreamBuffer, FixedFlushesTheRestAsTheFinalChunk) {
  Buffer b(FixedChunks{3});
  for (int i = 0; i < 7; ++i) b.push(i);
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{0, 1, 2}, 0, false}, {{3, 4, 5}, 0, false}}));
  b.buffer.finish(7);
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{6}, 0, true}}));
  EXPECT_TRUE(b.chunks().empty());
  EXPECT_TRUE(b.buffer.final_taken());
  EXPECT_EQ(b.live, 0);
}
// 22
TEST(StreamBuffer, ExactlyOneFinalChunkForEveryPolicyLengthAndTiming) {
  const ChunkPolicy policies[] = {
      FixedChunks{1},           FixedChunks{4},        SlidingWindow{4, 1},   SlidingWindow{4, 4},
      SlidingWindow{28, 7},     LeftContext{1, 0, {}}, LeftContext{4, 3, {}}, LeftContext{25, 25, {4, 8}},
      LeftContext{2, 9, {1, 5}}};
  for (std::size_t p = 0; p < std::size(policies); ++p) {
    for (int length = 0; length < 70; ++length) {
      for (const int drain : {1, 3, 1000}) {  // how often the consumer looks
        Buffer b(policies[p]);
        std::vector<Chunk> all;
        const auto look = [&] {
          for (Chunk& chunk : b.chunks()) all.push_back(std::move(chunk));
        };
        for (int i = 0; i < length; ++i) {
          b.push(i);
          if (i % drain == 0) look();
        }
        b.buffer.finish(length);
        look();
        look();
        Ids fresh;
        int finals = 0;
        for (const Chunk& chunk : all) {
          finals += chunk.is_final;
          fresh.insert(fresh.end(), chunk.items.begin() + chunk.num_seen, chunk.items.end());
        }
        ASSERT_EQ(finals, 1) << p << " " << length;
        ASSERT_TRUE(all.back().is_final);
        ASSERT_EQ(fresh.size(), static_cast<std::size_t>(length))
            << "every item is new exactly once: " << p << " " << length;
        for (int i = 0; i < length; ++i) ASSERT_EQ(fresh[static_cast<std::size_t>(i)], i);
        ASSERT_EQ(b.buffer.num_consumed(), length);
      }
    }
  }
}
// 22
TEST(StreamBuffer, ContinueAfterDoneNeverEnds) {
  Buffer b(FixedChunks{.items = 2, .continue_after_done = true});
  for (int i = 0; i < 3; ++i) b.push(i);
  b.buffer.finish(3);
  EXPECT_EQ(b.chunks(4), (std::vector<Chunk>{{{0, 1}, 0, false}, {{2}, 0, false}, {{}, 0, false}, {{}, 0, false}}));
}
// 23
TEST(StreamBuffer, LeftContextRampAndFlush) {
  Buffer b(LeftContext{.items = 5, .context = 3, .ramp = {1, 2}});
  for (int i = 0; i < 10; ++i) b.push(i);
  EXPECT_EQ(b.chunks(),
            (std::vector<Chunk>{{{0}, 0, false}, {{0, 1, 2}, 1, false}, {{0, 1, 2, 3, 4, 5, 6, 7}, 3, false}}))
      << "the first chunk is whole";
  b.buffer.finish(10);
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{5, 6, 7, 8, 9}, 3, true}})) << "only the tail is new";
}
TEST(StreamBuffer, LeftContextEndsEmptyWhenAllWasSeen) {
  Buffer b(LeftContext{.items = 2, .context = 1, .ramp = {}});
  b.push(0);
  b.push(1);
  b.chunks();
  b.buffer.finish(2);
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{}, 0, true}}));
}
TEST(StreamBuffer, SlidingWindow) {
  Buffer b(SlidingWindow{4, 2});
  for (int i = 0; i < 7; ++i) b.push(i);
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{0, 1, 2, 3}, 0, false}, {{2, 3, 4, 5}, 2, false}}));
  b.buffer.finish(7);
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{4, 5, 6}, 2, true}}));
}
TEST(StreamBuffer, GapsWaitAndRepeatsAreRefused) {
  Buffer b(FixedChunks{1});
  EXPECT_TRUE(b.push(2));
  EXPECT_FALSE(b.push(2));
  b.buffer.finish(3);
  EXPECT_FALSE(b.push(3)) << "past the end";
  EXPECT_TRUE(b.chunks().empty()) << "the end may come before the items";
  EXPECT_TRUE(b.push(0));
  EXPECT_FALSE(b.push(0));
  EXPECT_TRUE(b.push(1));
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{0}, 0, false}, {{1}, 0, false}, {{2}, 0, true}}));
}
TEST(StreamBuffer, DiscardDropsWhatIsThereAndWhatIsUnderWay) {
  Buffer b(LeftContext{.items = 4, .context = 2, .ramp = {1}});
  for (int i = 0; i < 4; ++i) b.push(i);
  b.chunks(1);
  ASSERT_TRUE(!b.buffer.peek());
  b.push(6);
  b.buffer.discard_to(6);
  EXPECT_EQ(b.live, 1);
  EXPECT_FALSE(b.push(4)) << "was under way";
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{6}, 0, false}})) << "the ramp begins again";
  b.push(7);
  b.buffer.finish(8);
  EXPECT_EQ(b.chunks(), (std::vector<Chunk>{{{6, 7}, 1, true}}));
}

struct Speech : Rig {
  PortRef text = port("text", {FromPlan{}});
  PortRef codes = port("codes", {decl::Stream{"codec", FixedChunks{2}}});
  PortRef mask = port("mask", {decl::Stream{"codec", FixedChunks{1}}});
  PortRef gain = port("gain", {FromPlan{}});
  PortRef audio = port("audio", {ToClient{}});
  WalkRef speak = d.walk("speak", Loop{.name = "loop",
                                       .body = {run("llm", {text}, {text, codes, mask})},
                                       .stop = decl::ComponentSignal{},
                                       .at_most = 9});
  WalkRef chunk = d.walk("chunk", run("vocoder", {codes, mask, gain}, {audio}));
  Speech() {
    d.partition({.name = "llm", .walks = {speak}, .plan = decl::in_order({speak})});
    d.partition({.name = "codec", .walks = {chunk}, .plan = decl::each_chunk(chunk)});
  }
};

TEST(Streams, AChunkIsTakenWhenAllElseIsThereAndAllStreamsHaveOne) {
  Speech rig;
  rig.compile();
  PartitionState codec = rig.state(0, 1);
  StartPass start = rig.start(rig.chunk, 1, {{rig.gain, 1}});
  ASSERT_TRUE(codec.start(start));
  const auto push = [&](PortRef port, std::int64_t index) {
    return codec.push_stream({port, index, rig.value(index)});
  };
  push(rig.codes, 0);
  push(rig.codes, 1);
  EXPECT_EQ(codec.num_ready(), 0u) << "the other stream has no chunk";
  push(rig.mask, 0);
  const ReadyNode vocoder = rig.take(codec, "vocoder");
  EXPECT_EQ(rig.in(codec, vocoder, 0), (Ids{0, 1}));
  EXPECT_EQ(rig.in(codec, vocoder, 1), Ids{0});
  EXPECT_FALSE(codec.is_final(vocoder.node));
  const Effects effects = rig.complete(codec, vocoder, {5});
  ASSERT_TRUE(effects.done);
  EXPECT_FALSE(effects.done->final_consumed);
  EXPECT_EQ(codec.push_stream({rig.audio, 0, rig.value(1)}), Accepted::refused) << "no stream";
}

TEST(Streams, ThePassWithTheFinalChunkSaysSo) {
  Speech rig;
  rig.compile();
  PartitionState codec = rig.state(0, 1);
  codec.push_stream({rig.codes, 0, rig.value(1)});
  codec.push_stream({rig.mask, 0, rig.value(2)});
  EXPECT_EQ(codec.finish_stream({rig.codes, 1}), Accepted::now);
  EXPECT_EQ(codec.finish_stream({rig.codes, 1}), Accepted::refused);
  codec.finish_stream({rig.mask, 1});
  ASSERT_TRUE(codec.start(rig.start(rig.chunk, 1, {{rig.gain, 1}})));
  const ReadyNode vocoder = rig.take(codec, "vocoder");
  EXPECT_TRUE(codec.is_final(vocoder.node));
  const Effects effects = rig.complete(codec, vocoder, {5});
  ASSERT_TRUE(effects.done);
  EXPECT_TRUE(effects.done->final_consumed);
}

TEST(Streams, ProducersNumberItemsFromTheBaseOfThePass) {
  Speech rig;
  rig.compile();
  PartitionState llm = rig.state(0, 0);
  StartPass start = rig.start(rig.speak, 1, {{rig.text, 1}});
  start.stream_base = {{rig.codes, 10}, {rig.mask, 20}};
  ASSERT_TRUE(llm.start(start));
  Effects effects = rig.step(llm, "llm", {2, 3, 4});
  ASSERT_EQ(effects.items.size(), 2u);
  EXPECT_EQ(effects.items[0].items.first_index, 10);
  EXPECT_EQ(effects.items[1].items.first_index, 20);
  EXPECT_EQ(effects.items[0].worker, WorkerId(0));
  effects = rig.step(llm, "llm", {2, 3, 0}, {"loop"});
  EXPECT_EQ(effects.items[0].items.first_index, 11);
  ASSERT_TRUE(effects.done);
  EXPECT_EQ(effects.done->produced, (std::vector<std::pair<PortRef, std::int64_t>>{{rig.codes, 2}, {rig.mask, 1}}));
}

TEST(Streams, ALoopThatReadsAStreamEndsWithIt) {
  Rig rig;
  const auto mic = rig.port("mic", {decl::FromClient{}}), out = rig.port("out", {ToClient{}});
  const auto walk = rig.d.walk("w", Loop{.name = "loop", .body = {rig.run("llm", {mic}, {out})}, .at_most = 100});
  rig.compile();
  PartitionState state = rig.state();
  ASSERT_TRUE(state.start(rig.start(walk, 1)));
  state.push_stream({mic, 0, rig.value(1)});
  EXPECT_FALSE(rig.step(state, "llm", {2}).done);
  state.finish_stream({mic, 1});
  const Effects effects = rig.step(state, "llm", {3});
  ASSERT_TRUE(effects.done);
  EXPECT_TRUE(effects.done->final_consumed);
  EXPECT_EQ(effects.done->loop_ends[0].iterations, 2);
}

TEST(Streams, BargeInDropsTheTurnAndTheNextOneGoesOn) {
  Speech rig;
  rig.compile();
  PartitionState codec = rig.state(0, 1);
  ASSERT_TRUE(codec.start(rig.start(rig.chunk, 1, {{rig.gain, 1}})));
  for (int i = 0; i < 6; ++i) {
    codec.push_stream({rig.codes, i, rig.value(i)});
    codec.push_stream({rig.mask, i, rig.value(i)});
  }
  const ReadyNode speaking = rig.take(codec, "vocoder");
  ASSERT_TRUE(codec.cancel(true));
  EXPECT_FALSE(codec.is_current(speaking));
  EXPECT_EQ(codec.num_values(), 0u);
  ASSERT_TRUE(codec.start(rig.start(rig.chunk, 2, {{rig.gain, 1}})));
  EXPECT_EQ(codec.num_ready(), 0u);
  for (int i = 6; i < 8; ++i) {
    codec.push_stream({rig.codes, i, rig.value(i)});
    codec.push_stream({rig.mask, i, rig.value(i)});
  }
  EXPECT_EQ(rig.in(codec, rig.take(codec, "vocoder"), 0), (Ids{6, 7}));
}

// 24
TEST(Streams, BatchedAndStreamedRolloutNeverEmitTwice) {
  for (const char* name : {"rollout", "rollout_streaming"}) {
    const decl::Decl model = fixtures::vjepa2();
    const auto compiled = CompiledModel::compile(model);
    ASSERT_TRUE(compiled);
    const auto placed = PlacedModel::place(*compiled, RequestPlacement(*compiled, WorkerId(0)));
    ASSERT_TRUE(placed);
    const WalkRef walk = model.find_walk(name);
    std::int64_t live = 0;  // outlives the state, whose values count themselves in it
    PartitionState state(*placed, WorkerId(0), decl::PartitionRef(0));
    const auto value = [&](std::int64_t id) { return Values{Value(std::make_shared<sim::Tracked>(id, live))}; };
    state.give_request_input(model.find_port("video_frames"), value(1));
    StartPass start{.walk = walk, .pass = 1};
    for (const char* port : {"video_frames", "actions", "states"}) start.kept.emplace_back(model.find_port(port), 0);
    start.caps = {{0, 3}};
    ASSERT_TRUE(state.start(start));
    Effects effects;
    Ids emitted;
    std::size_t num_chunks = 0;
    for (std::int64_t id = 10; !effects.done; id += 10) {
      const auto ready = state.take_ready();
      ASSERT_TRUE(ready);
      std::vector<Values> outputs(compiled->at(walk).nodes[ready->node].run->outputs.size());
      for (std::size_t o = 0; o < outputs.size(); ++o) outputs[o] = value(id + static_cast<std::int64_t>(o));
      ASSERT_TRUE(state.complete(*ready, outputs, {}, effects));
      num_chunks += effects.client.size();
      for (const std::int64_t each : client_ids(effects, model.find_port("predicted_hidden"))) emitted.push_back(each);
    }
    EXPECT_EQ(emitted, (Ids{21, 31, 41})) << name;
    EXPECT_EQ(num_chunks, std::string(name) == "rollout" ? 1u : 3u);
  }
}

TEST(Streams, ARolloutOfOneStepIsASinglePass) {
  const decl::Decl model = fixtures::vjepa2();
  for (const std::int64_t kind : {1, 2})
    for (const std::int64_t horizon : {1, 2}) {
      decl::RequestParams params;
      params.fields.set("kind", kind);
      params.fields.set("horizon", horizon);
      const auto plan = model.partitions()[0].plan(params);
      const decl::PlanView view{params, {}, 0, {}, {}, {}, 0};
      const auto decision = plan->next(view);
      ASSERT_TRUE(decision);
      const WalkRef walk = std::get<decl::NextWalk>(*decision).walk;
      EXPECT_EQ(walk == model.find_walk("prefill_video"), horizon == 1) << kind;
    }
}

// 25
TEST(EarlySignals, ReplayStopsAtARemoval) {
  EarlySignals early(4);
  const RequestId request(1);
  const decl::PartitionRef p(0);
  EXPECT_TRUE(early.hold(request, {p, StreamEnd{PortRef(1), 3}}));
  EXPECT_TRUE(early.hold(request, {p, Delivery{}}));
  EXPECT_TRUE(early.hold(RequestId(2), {p, Delivery{}}));
  EXPECT_TRUE(early.hold(request, {p, Removal{}}));
  EXPECT_FALSE(early.hold(request, {p, Delivery{}})) << "bounded";
  EarlySignals::Replay replay = early.take(request);
  EXPECT_TRUE(replay.removed);
  EXPECT_EQ(replay.signals.size(), 2u);
  EXPECT_EQ(early.num_signals(), 1u);
  replay = early.take(request);
  EXPECT_FALSE(replay.removed);
  EXPECT_TRUE(replay.signals.empty());
}
TEST(EarlySignals, DeliveriesOfALaterPassWaitForItsStart) {
  Speech rig;
  rig.compile();
  PartitionState llm = rig.state(0, 0);
  const EdgeIndex edge = rig.model->at(rig.speak).find_input(rig.text)->edge;
  EXPECT_EQ(llm.deliver({2, edge, {}, rig.value(5)}), Accepted::early);
  ASSERT_TRUE(llm.start(rig.start(rig.speak, 1, {{rig.text, 1}})));
  EXPECT_EQ(rig.in(llm, rig.take(llm, "llm")), Ids{1});
  EXPECT_EQ(llm.num_values(), 2u) << "the early one is still held";
  llm.cancel(false);
  EXPECT_EQ(llm.num_values(), 1u);
}

TEST(Progress, PlansThatAskForTheImpossible) {
  Speech rig;
  rig.compile();
  PartitionProgress progress(rig.placed, decl::PartitionRef(0), {});
  EXPECT_FALSE(progress.begin({.walk = rig.chunk})) << "another partition's walk";
  EXPECT_FALSE(progress.begin({.walk = rig.speak})) << "nothing gives the text";
  const std::vector<HostValue> one = {HostValue()};
  EXPECT_FALSE(progress.begin({.walk = rig.speak, .inputs = {{rig.text, one}}, .caps = {{"nowhere", 1}}}));
  EXPECT_FALSE(progress.begin({.walk = rig.speak, .inputs = {{rig.text, one}}, .caps = {{"loop", 0}}}));
  EXPECT_FALSE(progress.begin({.walk = rig.speak, .inputs = {{rig.text, one}, {rig.audio, one}}}));
  const auto starts = progress.begin({.walk = rig.speak, .inputs = {{rig.text, one}}, .caps = {{"loop", 2}}});
  ASSERT_TRUE(starts);
  ASSERT_EQ(starts->size(), 1u);
  EXPECT_EQ((*starts)[0].second.pass, 1);
  EXPECT_FALSE(progress.begin({.walk = rig.speak, .inputs = {{rig.text, one}}})) << "a walk runs";
}

TEST(Progress, MergesTheFragmentsOfAPass) {
  Rig rig;
  const auto x = rig.port("x", {FromPlan{}}), y = rig.port("y"), k = rig.port("k", {Keep{}});
  const auto walk = rig.d.walk("w", Loop{.name = "loop",
                                         .body = {rig.run("a", {x}, {y}), rig.run("b", {y}, {x, k})},
                                         .stop = decl::ComponentSignal{},
                                         .at_most = 9});
  const auto read = rig.d.walk("read", rig.run("a", {k}, {}));
  rig.compile({{"b", 1}});
  PartitionProgress progress(rig.placed, decl::PartitionRef(0), {});
  EXPECT_FALSE(progress.begin({.walk = read})) << "not kept yet";
  const auto starts = progress.begin({.walk = walk, .inputs = {{x, {HostValue()}}}});
  ASSERT_TRUE(starts);
  ASSERT_EQ(starts->size(), 2u);
  FragmentDone a{.walk = walk, .pass = 1};
  a.loop_ends = {{0, decl::LoopEnd::cap, 3}};
  FragmentDone b = a;
  b.loop_ends[0].end = decl::LoopEnd::stop;
  b.kept = {k};
  b.num_tokens = 3;
  EXPECT_FALSE(progress.on_fragment(WorkerId(0), a));
  EXPECT_FALSE(progress.on_fragment(WorkerId(0), a)) << "repeated";
  EXPECT_FALSE(progress.on_fragment(WorkerId(5), b)) << "not a part";
  EXPECT_TRUE(progress.on_fragment(WorkerId(1), b));
  EXPECT_EQ(progress.loop_ends().at("loop"), decl::LoopEnd::stop) << "a stop wins over a cap";
  EXPECT_EQ(progress.num_tokens(), 3);
  const auto next = progress.begin({.walk = read, .forget = {k}});
  ASSERT_TRUE(next);
  EXPECT_EQ((*next)[0].second.kept, (std::vector<std::pair<PortRef, std::int32_t>>{{k, 1}}));
  EXPECT_EQ((*next)[0].second.forget, std::vector<PortRef>{k});
}

}  // namespace
}  // namespace mstar::graph
