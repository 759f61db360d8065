// Sequences through one worker: parts are queued again, a cut-off prompt leaves no trace, removed requests give their
// pages back, on a device that runs ahead as on one that does not. The test plays the conductor.
#include <map>
#include <random>

#include "mstar/engine/sequence_fixture.h"
#include "mstar/worker/lone_worker_test.h"

namespace mstar::worker {
namespace {

using engine::Ask;

struct Sizes {
  int chunk_tokens = 12;
  int max_rows = 6;
  int pool_tokens = 0;
  bool prefix_cache = true;
  bool async = false;
  bool recurrent = false;
  int snapshots = 0;
  int snapshot_tokens = 8;
};

struct NoPlan final : decl::Plan {
  Result<decl::Decision> next(const decl::PlanView&) override { return decl::Decision(decl::Done{}); }
};

class SequenceWorker {
 public:
  explicit SequenceWorker(const Sizes& sizes) {
    const engine::DecoderSpec spec{
        .kv = {.name = "kv",
               .layers = 1,
               .kv_heads = 1,
               .head_dim = 1,
               .page_tokens = engine::kPageTokens,
               .max_tokens_per_request = 96,
               .prefix_cache = sizes.prefix_cache,
               .pool_tokens = sizes.pool_tokens},
        .vocab = engine::kVocab,
        .max_batch_rows = sizes.max_rows,
        .state = sizes.recurrent ? std::optional(decl::RecurrentState{.name = "state",
                                                                      .tensors = {{"s", {1}, DType::f32}},
                                                                      .double_buffered = sizes.async,
                                                                      .snapshots = sizes.snapshots,
                                                                      .snapshot_tokens = sizes.snapshot_tokens})
                                 : std::nullopt,
        .chunk_tokens = sizes.chunk_tokens};
    device_ = sizes.async ? std::make_unique<engine::DeferredDevice>() : make_cpu_device();
    declared_ = engine::declare_decoder(spec, [this](const engine::DecoderDecl& d) -> decl::BuildBody {
      return [this, &d](engine::BuildContext&) -> Result<std::unique_ptr<engine::ComponentBody>> {
        return std::unique_ptr<engine::ComponentBody>(std::make_unique<engine::Body>(d, seen_, true));
      };
    });
    declared_->decl.partition({.walks = {declared_->prefill, declared_->decode},
                               .plan = [](const decl::RequestParams&) { return std::make_unique<NoPlan>(); }});
    auto compiled = graph::CompiledModel::compile(declared_->decl);
    EXPECT_TRUE(compiled) << compiled.error().message;
    compiled_.emplace(std::move(*compiled));
    const WorkerModel model{.name = "m",
                            .compiled = &*compiled_,
                            .components = {declared_->component},
                            .limits = {.max_requests = 64,
                                       .max_rows = sizes.max_rows,
                                       .max_tokens = sizes.chunk_tokens,
                                       .promised_answer_tokens = 4}};
    worker_ =
        std::make_unique<Worker>(WorkerOptions{.id = WorkerId(0), .device = device_.get(), .models = {model}}, mesh_);
    const Status loaded = worker_->load();
    EXPECT_TRUE(loaded) << loaded.error().message;
  }

  std::uint64_t add(const Ask& ask) {
    const std::uint64_t id = ++last_id_;
    auto params = std::make_shared<decl::RequestParams>();
    params->sampling.max_tokens = ask.max_tokens;
    params->sampling.ignore_eos = true;
    worker_->send(wire::AddRequest{RequestId(id),
                                   0,
                                   params,
                                   graph::RequestPlacement(*compiled_, WorkerId(0)).table(),
                                   {{declared_->prompt, {HostValue::i32(ask.prompt)}}}});
    calls_[id] = {.ask = ask};
    prefill(id);
    return id;
  }
  void cancel(std::uint64_t id) { worker_->send(wire::CancelPartition{RequestId(id), partition()}); }
  void remove(std::uint64_t id) {
    worker_->send(wire::RemoveRequest{RequestId(id)});
    calls_[id].removed = true;
  }
  // A turn, and what a conductor would make of it. False when nothing was left to do.
  bool turn() {
    bool worked = worker_->poll();
    for (auto& message : std::exchange(mesh_.sent, {})) {
      worked = true;
      if (const auto* given = std::get_if<wire::ClientValues>(&message)) {
        std::size_t next = 0;
        for (const auto& part : given->parts) {
          Call& call = calls_[part.request.value];
          if (call.tokens.empty()) call.cached_at_first = part.cached_tokens;
          for (std::uint32_t i = 0; i < part.num_values; ++i)
            call.tokens.push_back(given->values.at(next++).as<std::int32_t>()[0]);
        }
        EXPECT_EQ(next, given->values.size());
      } else if (auto* report = std::get_if<wire::FragmentReport>(&message)) {
        on(*report);
      } else if (const auto* failed = std::get_if<wire::RequestFailed>(&message)) {
        ADD_FAILURE() << failed->error.message;
      }
    }
    return worked;
  }
  void run() {
    while (turn()) {
    }
  }

  struct Call {
    Ask ask;
    std::vector<std::int32_t> tokens;
    std::int32_t pass = 0;
    bool decoding = false, done = false, removed = false;
    int num_cut_off = 0;
    std::int64_t cached_tokens = -1;
    std::int64_t cached_at_first = -1;  // with the first token
  };
  const std::map<std::uint64_t, Call>& calls() const { return calls_; }
  bool may_cancel(std::uint64_t id) const { return !calls_.at(id).decoding && !calls_.at(id).removed; }
  wire::WorkerStats::Pool kv() const {
    for (const auto& pool : worker_->stats().pools)
      if (pool.name == "kv") return pool;
    return {};
  }
  std::int64_t num_ahead() const { return worker_->stats().components.at(0).num_ahead_rows; }
  const engine::Seen& seen() const { return seen_; }

 private:
  decl::PartitionRef partition() const { return declared_->decl.partition_of(declared_->prefill); }
  void prefill(std::uint64_t id) {
    graph::StartPass start{.walk = declared_->prefill, .pass = ++calls_[id].pass};
    start.kept = {{declared_->prompt, 0}};
    worker_->send(wire::PartitionMessage{RequestId(id), {partition(), start}});
  }
  void on(const wire::FragmentReport& report) {
    const std::uint64_t id = report.request.value;
    Call& call = calls_[id];
    call.cached_tokens = report.cached_tokens;
    if (call.removed) return;
    if (report.done.cancelled) {
      ++call.num_cut_off;
      return prefill(id);
    }
    if (call.decoding || call.ask.max_tokens == 1) {
      call.done = true;
      return remove(id);
    }
    call.decoding = true;
    graph::StartPass start{.walk = declared_->decode, .pass = ++call.pass};
    start.caps = {{graph::LoopIndex{0}, call.ask.max_tokens - 1}};
    start.kept = {{declared_->token, call.pass - 1}};
    worker_->send(wire::PartitionMessage{report.request, {partition(), start}});
  }

  engine::Seen seen_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<engine::DecoderDecl> declared_;
  std::optional<graph::CompiledModel> compiled_;
  RecordingMesh mesh_;
  std::map<std::uint64_t, Call> calls_;
  std::uint64_t last_id_ = 0;
  std::unique_ptr<Worker> worker_;
};

std::vector<std::int32_t> ids(int count, int seed) {
  std::vector<std::int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back((i * 37 + seed * 101 + 3) % engine::kVocab);
  return out;
}

TEST(SequenceWorker, AnswersAndTellsWhatWasCached) {
  for (const bool async : {false, true}) {
    SequenceWorker worker({.async = async});
    for (int i = 0; i < 2; ++i) {
      const auto id = worker.add({.prompt = ids(50, 1), .max_tokens = 7});
      worker.run();
      const auto& call = worker.calls().at(id);
      EXPECT_EQ(call.tokens, engine::answer_of(call.ask));
      EXPECT_EQ(call.cached_tokens, i * 48);
      EXPECT_EQ(call.cached_at_first, i * 48);
    }
    EXPECT_EQ(worker.seen().num_parts, 4);
    EXPECT_EQ(worker.num_ahead() > 0, async);
    EXPECT_EQ(worker.kv().used, 0);
    EXPECT_EQ(worker.kv().cached, 14);
    EXPECT_EQ(worker.kv().found_tokens, 48);
  }
}

// With a state beside the pages: from its snapshot, and what was computed is counted.
TEST(SequenceWorker, AnswersAndTellsWhatASnapshotSaved) {
  for (const bool async : {false, true}) {
    SequenceWorker worker({.async = async, .recurrent = true, .snapshots = 4});
    for (int i = 0; i < 2; ++i) {
      const auto id = worker.add({.prompt = ids(50, 1), .max_tokens = 7});
      worker.run();
      const auto& call = worker.calls().at(id);
      EXPECT_EQ(call.tokens, engine::answer_of(call.ask, true));
      EXPECT_EQ(call.cached_tokens, i * 40);
      EXPECT_EQ(worker.seen().num_tokens, i == 0 ? 50 + 6 : 50 + 6 + 10 + 6);
    }
    EXPECT_EQ(worker.num_ahead() > 0, async);
    EXPECT_EQ(worker.kv().used, 0);
    EXPECT_EQ(worker.kv().num_snapshots, 4);
  }
}

TEST(SequenceWorker, ACutOffPromptLeavesNoTrace) {
  for (const bool async : {false, true}) {
    for (int turns = 0; turns < 28; ++turns) {
      const bool recurrent = turns >= 14;
      SequenceWorker worker({.prefix_cache = turns % 2 == 0, .async = async, .recurrent = recurrent, .snapshots = 2});
      const auto id = worker.add({.prompt = ids(60, 1), .max_tokens = 5});
      for (int i = 0; i < turns % 14 && worker.may_cancel(id); ++i) worker.turn();
      if (worker.may_cancel(id)) worker.cancel(id);
      worker.run();
      const auto& call = worker.calls().at(id);
      EXPECT_TRUE(call.done);
      EXPECT_EQ(call.tokens, engine::answer_of(call.ask, recurrent)) << turns << " turns";
      EXPECT_EQ(worker.kv().used, 0);
    }
  }
}

TEST(SequenceWorker, TinyPoolsAndRandomEvents) {
  std::int64_t num_preempted = 0, num_cut_off = 0, num_ahead = 0, found_with_state = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const bool recurrent = below(2) == 0;
    SequenceWorker worker({.chunk_tokens = 4 + below(30),
                           .max_rows = 1 + below(8),
                           .pool_tokens = 96 + below(30) * 4,
                           .prefix_cache = below(3) > 0,
                           .async = below(2) == 0,
                           .recurrent = recurrent,
                           .snapshots = below(6),
                           .snapshot_tokens = 4 << below(3)});
    std::vector<std::uint64_t> all;
    for (int event = 0; event < 150; ++event) {
      const int what = below(10);
      if (what < 2 && all.size() < 30) {
        Ask ask{.prompt = ids(below(3) * 11, below(2)), .max_tokens = 1 + below(30)};
        for (int t = 0; t < 1 + below(25); ++t) ask.prompt.push_back(below(4));
        all.push_back(worker.add(ask));
      } else if (what == 2 && !all.empty()) {
        const auto id = all[static_cast<std::size_t>(below(static_cast<int>(all.size())))];
        if (!worker.calls().at(id).removed && below(3) == 0) worker.remove(id);
      } else if (what == 3 && !all.empty()) {
        const auto id = all[static_cast<std::size_t>(below(static_cast<int>(all.size())))];
        if (worker.may_cancel(id)) worker.cancel(id);
      } else {
        worker.turn();
      }
    }
    worker.run();
    for (const auto id : all) {
      const auto& call = worker.calls().at(id);
      num_cut_off += call.num_cut_off;
      ASSERT_TRUE(call.done || call.removed) << "request " << id << " stands still, seed " << seed;
      if (!call.done) continue;
      ASSERT_EQ(call.tokens, engine::answer_of(call.ask, recurrent)) << "request " << id << ", seed " << seed;
    }
    if (recurrent) found_with_state += worker.kv().found_tokens;
    ASSERT_EQ(worker.kv().used, 0) << seed;
    num_preempted += worker.kv().num_preempted;
    num_ahead += worker.num_ahead();
  }
  EXPECT_GT(num_preempted, 10);
  EXPECT_GT(num_cut_off, 20);
  EXPECT_GT(num_ahead, 100);
  EXPECT_GT(found_with_state, 100);
}

}  // namespace
}  // namespace mstar::worker
