// The engine on a device that defers its work and records graphs: leases, slots, padding, loop-back, drops.
#include "mstar/engine/engine.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "mstar/engine/decoder_fixture.h"
#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/resource/paged_kv.h"

namespace mstar::engine {
namespace {

constexpr int kVocab = 1000;

// The next token after `history`: what CountingBody computes from the pages that it has written.
std::int32_t next_token(std::int64_t sum, std::int64_t length) {
  return static_cast<std::int32_t>((sum * 31 + length) % kVocab);
}

std::vector<std::int32_t> expected_tokens(const DecodeRequest& request) {
  std::int64_t sum = 0, length = 0;
  for (const std::int32_t id : request.prompt) sum += id, ++length;
  std::vector<std::int32_t> out;
  while (static_cast<int>(out.size()) < request.max_tokens) {
    out.push_back(next_token(sum, length));
    if (out.back() == request.stop_id) break;
    sum += out.back();
    ++length;
  }
  return out;
}

constexpr std::int32_t kPadding = 7;
constexpr int kPromptTokens = 3;  // of prompts whose steps may be captured

// What a kernel of the body below sees: device pointers and the sizes of its launch.
struct Kernel {
  const std::int32_t* ids;
  const std::int32_t* offsets;
  const std::int32_t* positions;
  PagedKvView kv;
  int num_rows;
  std::int32_t* tokens;
  std::int32_t* echo;
  int* num_bad_padding;

  float& cell(int row, int position) const {
    const std::int32_t page = kv.page_table[row * kv.max_pages + position / kv.page_tokens];
    return kv.keys.data<float>()[page * kv.page_tokens + position % kv.page_tokens];
  }
  void operator()() const {
    for (int r = 0; r < num_rows; ++r) {
      if (kv.page_table[r * kv.max_pages] == 0) {
        const int count = offsets[r + 1] - offsets[r];
        const bool padded = std::all_of(ids + offsets[r], ids + offsets[r + 1], [](auto id) { return id == kPadding; });
        *num_bad_padding += !padded || kv.lengths[r] != count || positions[offsets[r]] != 0;
      }
      for (int t = offsets[r]; t < offsets[r + 1]; ++t) cell(r, positions[t]) = static_cast<float>(ids[t]);
      std::int64_t sum = 0;
      for (int p = 0; p < kv.lengths[r]; ++p) sum += static_cast<std::int64_t>(cell(r, p));
      tokens[r] = next_token(sum, kv.lengths[r]);
      echo[r] = ids[offsets[r + 1] - 1];
    }
  }
};

struct Recorded {
  std::vector<int> rows;              // of each forward that ran
  std::set<const void*> ids, tokens;  // memory that it was given
  int num_bad_padding = 0;            // rows of no request that held something else than padding
  int captured_prompt_rows = 0;       // not a record: steps of up to so many prompts of kPromptTokens are captured too
};

// A decoder whose "kernel" is queued on the DeferredDevice.
class CountingBody final : public ComponentBody {
 public:
  CountingBody(const DecoderDecl& d, Recorded& log)
      : d_(d),
        log_(log),
        padding_(HostValue::i32(std::vector<std::int32_t>{kPadding})),
        prompt_padding_(HostValue::i32(std::vector<std::int32_t>(kPromptTokens, kPadding))) {}
  std::vector<SlotSpec> input_slots() const override { return {{.name = "ids", .dtype = DType::i32, .max_items = 64}}; }
  std::vector<SlotSpec> output_slots() const override {
    return {{.name = "echo", .dtype = DType::i32}, {.name = "token", .dtype = DType::i32, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* prompt = row.value(d_.prompt);
    const Value* ids = prompt ? prompt : row.value(d_.token);
    return demand(ids, prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1);
  }
  std::vector<CaptureSpec> captures() const override {
    std::vector<CaptureSpec> out = {{.row = demand(&padding_, 1)}};
    if (log_.captured_prompt_rows > 0)
      out.push_back({.row = demand(&prompt_padding_, kPromptTokens), .max_rows = log_.captured_prompt_rows});
    return out;
  }
  std::size_t workspace_bytes(int, int) const override { return 256; }
  Status forward(Forward& step, int) override {
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(d_.kv));
    const int slot = step.plan_slot();
    const RaggedView rows = kv.ragged(slot);
    log_.rows.push_back(step.num_rows());
    log_.ids.insert(step.input(0).pointer);
    log_.tokens.insert(step.output(1).pointer);
    static_cast<DeferredDevice&>(step.ops().device)
        .launch(Kernel{step.input(0).data<std::int32_t>(), rows.offsets, kv.positions(slot), kv.view(0, slot),
                       step.num_rows(), step.output(1).data<std::int32_t>(), step.output(0).data<std::int32_t>(),
                       &log_.num_bad_padding});
    return fail ? Status(*fail) : ok_status();
  }
  std::optional<Error> fail;
  bool restart = false;

 private:
  RowDemand demand(const Value* ids, int tokens) const {
    RowDemand out;
    out.resources.tokens = tokens;
    out.resources.restart = restart;
    out.resources.samples = true;
    out.shape_key = tokens == kPromptTokens ? 1 : 0;
    out.sources = {{0, ids}};
    out.results = {{.slot = 1, .output = 0, .items = 1}, {.slot = 0, .output = -1, .items = 1}};
    return out;
  }
  const DecoderDecl& d_;
  Recorded& log_;
  Value padding_, prompt_padding_;
};

class EngineOnADeferredDevice : public testing::Test {
 protected:
  DecoderEngine make(std::vector<int> captured_rows, int max_rows = 8) {
    DecoderSpec spec{
        .kv = {.name = "kv", .layers = 1, .kv_heads = 1, .head_dim = 1, .page_tokens = 4, .max_tokens_per_request = 64},
        .vocab = kVocab,
        .captured_rows = std::move(captured_rows),
        .max_batch_rows = max_rows};
    if (tune_) tune_(spec);
    auto declaration = declare_decoder(spec, [this](const DecoderDecl& d) -> decl::BuildBody {
      return [this, &d](BuildContext&) -> Result<std::unique_ptr<ComponentBody>> {
        auto body = std::make_unique<CountingBody>(d, log_);
        body_ = body.get();
        return std::unique_ptr<ComponentBody>(std::move(body));
      };
    });
    auto made = DecoderEngine::create(std::move(declaration),
                                      {.max_requests = 16, .max_rows = max_rows, .max_tokens = 64}, device_);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  void expect_all(DecoderEngine& decoder, const std::vector<DecodeRequest>& requests, const DecodeOptions& options) {
    auto got = decode(decoder, device_, requests, options);
    ASSERT_TRUE(got) << got.error().message;
    for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*got)[i].tokens, expected_tokens(requests[i])) << i;
    for (const auto& usage : decoder.resources->usage()) {
      if (usage.name == "kv") {
        EXPECT_EQ(usage.used, 0);
      }
    }
    EXPECT_EQ(log_.num_bad_padding, 0);
  }
  static std::vector<DecodeRequest> some_requests(int count, int max_tokens) {
    std::vector<DecodeRequest> out;
    for (int i = 0; i < count; ++i) {
      DecodeRequest request{.max_tokens = max_tokens};
      for (int t = 0; t < 1 + i % 7; ++t) request.prompt.push_back((i * 37 + t * 11 + 3) % kVocab);
      out.push_back(std::move(request));
    }
    return out;
  }

  DeferredDevice device_;
  std::function<void(DecoderSpec&)> tune_;
  Recorded log_;
  CountingBody* body_ = nullptr;
};

TEST_F(EngineOnADeferredDevice, EagerStepsWithAndWithoutRunningAhead) {
  DecoderEngine decoder = make({});
  EXPECT_EQ(decoder.engine->buckets().size(), 0);
  for (const bool ahead : {false, true}) expect_all(decoder, some_requests(5, 20), {.run_ahead = ahead});
  EXPECT_EQ(decoder.engine->counters().num_replays, 0);
  EXPECT_EQ(decoder.engine->counters().num_eager, 40);
}

TEST_F(EngineOnADeferredDevice, CapturesEachBucketForBothSlotsLargestFirst) {
  DecoderEngine decoder = make({1, 2, 4, 8, 16});
  // 16 is over the limit of rows. Each bucket ran once for real and was recorded in each slot.
  EXPECT_EQ(log_.rows, (std::vector<int>{8, 8, 8, 4, 4, 4, 2, 2, 2, 1, 1, 1}));
  EXPECT_EQ(decoder.engine->buckets().size(), 4);
  EXPECT_EQ(log_.ids.size(), 2u);  // one static input a slot, whatever the bucket
  EXPECT_EQ(log_.tokens.size(), 2u);
  EXPECT_EQ(decoder.engine->num_graph_nodes(0), 1u);
}

TEST_F(EngineOnADeferredDevice, ReplaysGiveTheTokensOfEagerSteps) {
  DecoderEngine decoder = make({1, 2, 4, 8});
  log_ = {};
  for (const bool ahead : {false, true}) {
    for (const int count : {1, 3, 5, 8}) expect_all(decoder, some_requests(count, 12), {.run_ahead = ahead});
  }
  const StepCounters& counters = decoder.engine->counters();
  // A prompt of one token asks for what a decode row asks for, so one prefill step of a single request replays too.
  EXPECT_EQ(counters.num_eager, 6);
  EXPECT_EQ(log_.rows.size(), 6u);  // no forward runs in a replay
  EXPECT_EQ(counters.num_replays, 2 * 4 * 11 + 2);
  EXPECT_EQ(counters.num_padding_rows, 2 * (1 * 11 + 3 * 11));  // 3 rows in a bucket of 4, 5 in one of 8
  EXPECT_EQ(counters.num_host_syncs, counters.num_steps);
}

TEST_F(EngineOnADeferredDevice, StepsOfEqualPromptsReplayUpToTheirRows) {
  log_.captured_prompt_rows = 4;
  DecoderEngine decoder = make({1, 2, 4, 8});
  EXPECT_EQ(decoder.engine->buckets().size(), 7);
  const StepCounters& counters = decoder.engine->counters();
  std::int64_t num_eager = 0;
  for (const int count : {1, 2, 3, 4, 5, 2}) {
    std::vector<DecodeRequest> requests = some_requests(count, 6);
    for (int i = 0; i < count; ++i) requests[static_cast<std::size_t>(i)].prompt = {i + 1, 5, 2 * i};
    expect_all(decoder, requests, {});
    num_eager += count > 4;  // five prompts are more than were captured
    EXPECT_EQ(counters.num_eager, num_eager) << count;
  }
  // Prompts of other lengths, alone and among equal ones, run eagerly; those behind them replay again.
  expect_all(decoder, {{.prompt = {4, 5}, .max_tokens = 3}}, {});
  expect_all(decoder, {{.prompt = {4, 5, 6}, .max_tokens = 3}, {.prompt = {7, 8}, .max_tokens = 3}}, {});
  EXPECT_EQ(counters.num_eager, num_eager + 2);
  expect_all(decoder, {{.prompt = {4, 5, 6}, .max_tokens = 3}}, {});
  EXPECT_EQ(counters.num_eager, num_eager + 2);
}

TEST_F(EngineOnADeferredDevice, WarmStepsAllocateNothingAndCopyLittle) {
  DecoderEngine decoder = make({1, 2, 4, 8});
  const std::int64_t before = device_.num_allocations();
  expect_all(decoder, some_requests(5, 30), {});
  EXPECT_EQ(device_.num_allocations(), before);
  EXPECT_EQ(decoder.engine->counters().num_allocations, 0);
  // A steady step: the rows' tokens in one piece, the plans of the keys and values and of the sampler, outputs from the
  // graph's memory (two groups) and the read-back. No padding is written again.
  const std::int64_t copies = device_.num_copies();
  expect_all(decoder, some_requests(5, 31), {});
  const std::int64_t first = device_.num_copies() - copies;
  expect_all(decoder, some_requests(5, 32), {});
  EXPECT_EQ(device_.num_copies() - copies - first, first + 6);
}

TEST_F(EngineOnADeferredDevice, RowsThatLeftTheirStepsHoldBlocksThatWereReserved) {
  DecoderEngine decoder = make({1, 2, 4, 8});
  const std::int64_t before = device_.num_allocations();
  std::vector<std::shared_ptr<BufferPool::Block>> held;
  for (int i = 0; i < 8 + resource::kNumSlots + 1; ++i) {
    auto block = decoder.buffers->take(4);
    ASSERT_TRUE(block);
    held.push_back(std::move(*block));
  }
  EXPECT_EQ(device_.num_allocations(), before);
}

TEST_F(EngineOnADeferredDevice, WhatIsReservedIsBesideWhatWasBefore) {
  auto pool = std::make_shared<BufferPool>(device_);
  const std::array<std::size_t, 2> sizes = {60'000, 2 << 20};
  // As two components do, of which the second one reads what the first one makes.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(pool->reserve(sizes));
  const std::int64_t before = pool->num_allocations();
  std::vector<std::shared_ptr<BufferPool::Block>> held;
  const auto take = [&](std::size_t bytes) {
    auto block = pool->take(bytes);
    ASSERT_TRUE(block);
    held.push_back(std::move(*block));
  };
  // Blocks of any sizes share the large ones' memory, as long as they fit.
  for (int i = 0; i < 8; ++i) take(512 << 10);
  take(60'000);
  take(60'000);
  EXPECT_EQ(pool->num_allocations(), before);
  take(512 << 10);
  EXPECT_EQ(pool->num_allocations(), before + 1) << "more than was reserved";
  held.clear();
  for (int i = 0; i < 2; ++i) take(2 << 20);
  EXPECT_EQ(pool->num_allocations(), before + 1) << "what came back is whole again";
  for (int i = 0; i < 400; ++i) take(4);
  EXPECT_EQ(pool->num_allocations(), before + 1) << "small blocks have memory of their own";
}

TEST_F(EngineOnADeferredDevice, BlocksOfASizeClassServeWhoeverAsksForLess) {
  auto pool = std::make_shared<BufferPool>(device_);
  for (const std::size_t bytes : {60'000, 2 << 20}) ASSERT_TRUE(pool->take(bytes));
  const auto small = pool->take(4);
  ASSERT_TRUE(small);
  EXPECT_EQ(pool->num_allocations(), 2);
  const auto fresh = pool->take(4);
  ASSERT_TRUE(fresh);
  EXPECT_EQ(pool->num_allocations(), 3) << "two megabytes are kept for who needs them";
}

TEST_F(EngineOnADeferredDevice, StopsWasteAtMostOneRowEach) {
  DecoderEngine decoder = make({1, 2, 4, 8});
  auto requests = some_requests(8, 25);
  int num_stops = 0;
  for (std::size_t i = 0; i < requests.size(); i += 2) {
    const auto tokens = expected_tokens(requests[i]);
    requests[i].stop_id = tokens[3 + i];  // may come earlier; then it stops there
    ++num_stops;
  }
  expect_all(decoder, requests, {.run_ahead = false});
  EXPECT_EQ(decoder.engine->counters().num_dropped_rows, 0);
  expect_all(decoder, requests, {.run_ahead = true});
  EXPECT_GT(decoder.engine->counters().num_dropped_rows, 0);
  EXPECT_LE(decoder.engine->counters().num_dropped_rows, num_stops);
}

TEST_F(EngineOnADeferredDevice, RandomArrivalsStopsAndSizes) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint32_t>(n)); };
    device_.late_copies = seed % 2 == 0;
    DecoderEngine decoder = make(below(3) ? std::vector<int>{1, 2, 3, 6} : std::vector<int>{4, 8});
    std::vector<DecodeRequest> requests;
    for (int i = 0; i < 12; ++i) {
      DecodeRequest request{.max_tokens = 1 + below(20), .start_at_step = below(40)};
      for (int t = 0; t < 1 + below(9); ++t) request.prompt.push_back(below(kVocab));
      if (below(2)) request.stop_id = expected_tokens(request).back();
      requests.push_back(std::move(request));
    }
    expect_all(decoder, requests, {.run_ahead = below(4) > 0});
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST_F(EngineOnADeferredDevice, TwoStepsMayBeInFlightAndAThirdWaits) {
  DecoderEngine decoder = make({1, 2});
  Engine& engine = *decoder.engine;
  const auto params = std::make_shared<decl::RequestParams>();
  const Value prompt(HostValue::i32(std::vector<std::int32_t>{5}));
  const auto row = [&](std::uint64_t id) {
    RowInputs out{.request = RequestId(id),
                  .params = params,
                  .walk = decoder.declaration->prefill,
                  .run = decoder.declaration->prefill_run};
    out.ports = {{prompt}};
    std::vector<RowInputs> rows;
    rows.push_back(std::move(out));
    return rows;
  };
  for (std::uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(decoder.resources->add_request(RequestId(id), *params));
  auto first = engine.prepare(row(1)), second = engine.prepare(row(2)), third = engine.prepare(row(3));
  ASSERT_TRUE(first.step && second.step);
  EXPECT_FALSE(third.step);
  EXPECT_EQ(third.waiting.size(), 1u);
  EXPECT_TRUE(third.failed.empty());
  ASSERT_TRUE(engine.advance(*first.step));
  ASSERT_TRUE(engine.advance(*second.step));
  EXPECT_GT(device_.num_waiting(), 0u);  // nobody has waited yet
  auto results = engine.finish(std::move(first.step));
  EXPECT_EQ(results[0].outputs[0][0].host.as<std::int32_t>()[0], next_token(5, 1));
  auto again = engine.prepare(std::move(third.waiting));
  ASSERT_TRUE(again.step);
  results = engine.finish(std::move(second.step));
  EXPECT_EQ(results[0].outputs[0][0].host.as<std::int32_t>()[0], next_token(5, 1));
  ASSERT_TRUE(engine.advance(*again.step));
  EXPECT_FALSE(engine.finish(std::move(again.step))[0].error);
}

TEST_F(EngineOnADeferredDevice, RunsAheadOnlyWhereARowCanBeTakenBack) {
  const decl::RecurrentState in_place{.name = "state", .tensors = {{"x", {1}}}};
  decl::RecurrentState doubled = in_place;
  doubled.double_buffered = true;
  EXPECT_TRUE(make({}).engine->may_run_ahead());
  tune_ = [](DecoderSpec& spec) { spec.run_ahead = false; };
  EXPECT_FALSE(make({}).engine->may_run_ahead()) << "the component says no";
  tune_ = [&](DecoderSpec& spec) { spec.state = in_place; };
  EXPECT_FALSE(make({}).engine->may_run_ahead()) << "what a step overwrites cannot be brought back";
  tune_ = [&](DecoderSpec& spec) { spec.state = doubled; };
  EXPECT_TRUE(make({}).engine->may_run_ahead());
}

// What cannot be taken back waits until its row is certain.
TEST_F(EngineOnADeferredDevice, ARowAheadThatRestartsWaits) {
  DecoderEngine decoder = make({});
  const auto params = std::make_shared<decl::RequestParams>();
  ASSERT_TRUE(decoder.resources->add_request(RequestId(1), *params));
  body_->restart = true;
  for (const bool ahead : {true, false}) {
    RowInputs row{.request = RequestId(1),
                  .params = params,
                  .walk = decoder.declaration->prefill,
                  .run = decoder.declaration->prefill_run,
                  .ahead = ahead};
    row.ports = {{HostValue::i32(std::vector<std::int32_t>{5})}};
    std::vector<RowInputs> rows;
    rows.push_back(std::move(row));
    auto prepared = decoder.engine->prepare(std::move(rows));
    EXPECT_EQ(prepared.waiting.size(), ahead ? 1u : 0u);
    ASSERT_EQ(prepared.step == nullptr, ahead);
    if (!prepared.step) continue;
    ASSERT_TRUE(decoder.engine->advance(*prepared.step));
    EXPECT_FALSE(decoder.engine->finish(std::move(prepared.step))[0].error);
  }
}

// A value of step N stays what it was when the graph of its slot runs again.
TEST_F(EngineOnADeferredDevice, ValuesOutliveTheSlotThatMadeThem) {
  DecoderEngine decoder = make({1});
  const auto params = std::make_shared<decl::RequestParams>();
  ASSERT_TRUE(decoder.resources->add_request(RequestId(1), *params));
  std::vector<Value> kept = {HostValue::i32(std::vector<std::int32_t>{5})};
  for (int i = 0; i < 6; ++i) {
    RowInputs row{.request = RequestId(1),
                  .params = params,
                  .walk = decoder.declaration->decode,
                  .run = decoder.declaration->decode_run};
    row.ports = {{kept.back()}};
    std::vector<RowInputs> rows;
    rows.push_back(std::move(row));
    auto prepared = decoder.engine->prepare(std::move(rows));
    ASSERT_TRUE(prepared.step);
    ASSERT_TRUE(decoder.engine->advance(*prepared.step));
    kept.push_back(decoder.engine->promised(*prepared.step)[0].outputs[0][0]);
    decoder.engine->finish(std::move(prepared.step));
  }
  EXPECT_EQ(decoder.engine->counters().num_replays, 6);
  const auto expected = expected_tokens({.prompt = {5}, .max_tokens = 6});
  for (int i = 0; i < 6; ++i) {
    auto host = kept[static_cast<std::size_t>(i + 1)].to_host();
    ASSERT_TRUE(host);
    EXPECT_EQ(host->as<std::int32_t>()[0], expected[static_cast<std::size_t>(i)]) << i;
  }
}

TEST_F(EngineOnADeferredDevice, ABucketThatCannotBeRecordedRunsEagerly) {
  device_.fail_captures = 1;
  DecoderEngine decoder = make({2, 8});
  EXPECT_EQ(decoder.engine->buckets().size(), 1);
  EXPECT_EQ(decoder.engine->buckets().at(0).rows, 2);
  expect_all(decoder, some_requests(5, 10), {});
  EXPECT_EQ(decoder.engine->counters().num_replays, 0);
  expect_all(decoder, some_requests(2, 10), {});
  EXPECT_EQ(decoder.engine->counters().num_replays, 9);

  device_.refuse_capture = true;
  DecoderEngine plain = make({2, 8});
  EXPECT_EQ(plain.engine->buckets().size(), 0);
  expect_all(plain, some_requests(2, 10), {});
}

TEST_F(EngineOnADeferredDevice, AFailedForwardRollsBackAndTheNextStepRuns) {
  DecoderEngine decoder = make({});
  const auto params = std::make_shared<decl::RequestParams>();
  ASSERT_TRUE(decoder.resources->add_request(RequestId(1), *params));
  const auto step = [&] {
    RowInputs row{.request = RequestId(1),
                  .params = params,
                  .walk = decoder.declaration->prefill,
                  .run = decoder.declaration->prefill_run};
    row.ports = {{HostValue::i32(std::vector<std::int32_t>{5, 6})}};
    std::vector<RowInputs> rows;
    rows.push_back(std::move(row));
    auto prepared = decoder.engine->prepare(std::move(rows));
    auto whole = decoder.engine->advance(*prepared.step);
    EXPECT_TRUE(whole && *whole);
    return decoder.engine->finish(std::move(prepared.step));
  };
  body_->fail = internal_error("no");
  auto results = step();
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->message, "no");
  body_->fail.reset();
  results = step();
  ASSERT_FALSE(results[0].error);
  EXPECT_EQ(results[0].outputs[0][0].host.as<std::int32_t>()[0], next_token(11, 2));  // the first two tokens are gone
}

}  // namespace
}  // namespace mstar::engine
