// Token sequences on one engine: parts, prefixes, pages that are taken away. The body computes each token from the keys
// that it finds in its pages, so a wrong page, position, draw or order gives another answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "mstar/engine/decoder_fixture.h"
#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/engine/sequence_rules.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"
#include "mstar/resource/state_slots.h"

namespace mstar::engine {
namespace {

constexpr int kVocab = 997, kPageTokens = 4;

std::int32_t next_token(std::int64_t sum, std::int64_t length, std::uint64_t draw) {
  return static_cast<std::int32_t>((sum * 31 + length * 7 + static_cast<std::int64_t>(draw)) % kVocab);
}
std::int64_t weight(std::int64_t position) { return position % 5 + 1; }

struct Ask {
  std::vector<std::int32_t> prompt;
  int max_tokens = 1;
  int arrives = 0;  // at this turn
  std::string salt = {};
};

std::int64_t next_state(std::int64_t state, std::int32_t id) { return (state * 3 + id + 1) % kVocab; }

// With `recurrent` the body keeps a state beside its pages.
std::vector<std::int32_t> answer_of(const Ask& ask, bool recurrent = false) {
  std::int64_t sum = 0, length = 0, state = 0;
  const auto take = [&](std::int32_t id) {
    sum += id * weight(length++);
    if (recurrent) state = next_state(state, id);
  };
  for (const std::int32_t id : ask.prompt) take(id);
  std::vector<std::int32_t> out;
  while (static_cast<int>(out.size()) < ask.max_tokens) {
    out.push_back(next_token(sum + state, length, out.size()));
    take(out.back());
  }
  return out;
}

struct Kernel {
  std::vector<std::int32_t> offsets, outputs;  // outputs: -1 for rows that do not end
  std::vector<std::uint64_t> draws;
  const std::int32_t* ids;
  const std::int32_t* positions;
  PagedKvView kv;
  std::int32_t* tokens;
  std::vector<float*> states;  // of each row, where there are any

  float& cell(int row, int position) const {
    const std::int32_t page = kv.page_table[row * kv.max_pages + position / kv.page_tokens];
    return kv.keys.data<float>()[page * kv.page_tokens + position % kv.page_tokens];
  }
  void operator()() const {
    for (int r = 0; r + 1 < static_cast<int>(offsets.size()); ++r) {
      const auto at = static_cast<std::size_t>(r);
      for (int t = offsets[at]; t < offsets[at + 1]; ++t) {
        cell(r, positions[t]) = static_cast<float>(ids[t]);
        if (!states.empty())
          *states[at] = static_cast<float>(next_state(static_cast<std::int64_t>(*states[at]), ids[t]));
      }
      if (outputs[at] < 0) continue;
      std::int64_t sum = states.empty() ? 0 : static_cast<std::int64_t>(*states[at]);
      for (int p = 0; p < kv.lengths[r]; ++p) sum += static_cast<std::int64_t>(cell(r, p)) * weight(p);
      tokens[outputs[at]] = next_token(sum, kv.lengths[r], draws[at]);
    }
  }
};

struct Seen {
  std::int64_t num_tokens = 0;  // run
  int num_mixed = 0;            // steps with parts of prompts beside rows of one token
  int num_parts = 0;            // that do not end a row
  std::vector<int> part_ends;   // their positions
  int most_tokens = 0;          // of one step
};

class Body final : public ComponentBody {
 public:
  Body(const DecoderDecl& d, Seen& seen, bool per_token) : d_(d), seen_(seen), per_token_(per_token) {}
  std::vector<SlotSpec> input_slots() const override {
    return {{.name = "ids", .dtype = DType::i32, .max_items = 64, .per_token = per_token_}};
  }
  std::vector<SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* const prompt = row.value(d_.prompt);
    RowDemand out;
    out.sources = {{0, prompt ? prompt : row.value(d_.token)}};
    out.resources = {.tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1, .samples = true};
    out.results = {{.slot = 0, .output = 0, .items = 1}};
    return out;
  }
  std::size_t workspace_bytes(int, int) const override { return 256; }
  Status forward(Forward& step, int) override {
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(d_.kv));
    const auto& sampler = static_cast<resource::SamplerPool&>(step.resource(d_.sampler)).rows(step.plan_slot());
    Kernel kernel;
    bool has_part = false, has_decode = false;
    const auto offsets = step.token_offsets();
    kernel.offsets.assign(offsets.begin(), offsets.end());
    for (int r = 0; r < step.num_rows(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      EXPECT_EQ(step.output_offsets(0)[at + 1] - step.output_offsets(0)[at], step.row_ends(r) ? 1 : 0);
      kernel.outputs.push_back(step.row_ends(r) ? step.output_offsets(0)[at] : -1);
      kernel.draws.push_back(sampler[at].offset);
      if (!step.row_ends(r) && !step.ops().device.is_asynchronous())
        seen_.part_ends.push_back(kv.positions(step.plan_slot())[offsets[at + 1] - 1] + 1);
      seen_.num_parts += !step.row_ends(r);
      has_part |= offsets[at + 1] - offsets[at] > 1;
      has_decode |= offsets[at + 1] - offsets[at] == 1;
    }
    seen_.num_mixed += has_part && has_decode;
    seen_.num_tokens += offsets.back();
    seen_.most_tokens = std::max(seen_.most_tokens, offsets.back());
    if (const auto& uses = d_.decl.at(d_.component).device().uses; uses.size() > 2) {
      const auto& slots = static_cast<resource::StateSlots&>(step.resource(uses[2]));
      for (int r = 0; r < step.num_rows(); ++r)
        kernel.states.push_back(slots.tensor(0).data<float>() +
                                slots.write_index_on_host(step.plan_slot())[static_cast<std::size_t>(r)]);
    }
    kernel.ids = step.input(0).data<std::int32_t>();
    kernel.positions = kv.positions(step.plan_slot());
    kernel.kv = kv.view(0, step.plan_slot());
    kernel.tokens = step.output(0).data<std::int32_t>();
    if (step.ops().device.is_asynchronous()) {
      static_cast<DeferredDevice&>(step.ops().device).launch(std::move(kernel));
    } else {
      kernel();
    }
    return ok_status();
  }

 private:
  const DecoderDecl& d_;
  Seen& seen_;
  bool per_token_;
};

class Sequences : public testing::Test {
 protected:
  struct Setup {
    int chunk_tokens = 16;
    int max_rows = 8;
    int kv_tokens = 0;
    int context = 128;
    int promised = 8;
    bool prefix_cache = true;
    bool allow_cache = true;
    bool run_ahead = false;
    bool async = false;
    bool per_token = true;
    bool recurrent = false;
    std::uint32_t shuffle = 0;  // seed of the order of rows; 0: as they come
  };
  struct Outcome {
    std::vector<std::vector<std::int32_t>> answers;
    std::vector<std::int64_t> cached;
    std::map<std::size_t, std::string> errors;
  };

  Status make(const Setup& setup) {
    setup_ = setup;
    seen_ = {};
    decoder_.reset();
    device_ = setup.async ? std::make_unique<DeferredDevice>() : make_cpu_device();
    const DecoderSpec spec{.kv = {.name = "kv",
                                  .layers = 1,
                                  .kv_heads = 1,
                                  .head_dim = 1,
                                  .page_tokens = kPageTokens,
                                  .max_tokens_per_request = setup.context,
                                  .prefix_cache = setup.prefix_cache,
                                  .pool_tokens = setup.kv_tokens},
                           .vocab = kVocab,
                           .max_batch_rows = setup.max_rows,
                           .state = setup.recurrent ? std::optional(decl::RecurrentState{
                                                          .name = "state", .tensors = {{"s", {1}, DType::f32}}})
                                                    : std::nullopt,
                           .chunk_tokens = setup.chunk_tokens};
    auto declaration = declare_decoder(spec, [this](const DecoderDecl& d) -> decl::BuildBody {
      return [this, &d](BuildContext&) -> Result<std::unique_ptr<ComponentBody>> {
        return std::unique_ptr<ComponentBody>(std::make_unique<Body>(d, seen_, setup_.per_token));
      };
    });
    MSTAR_TRY_ASSIGN(DecoderEngine made, DecoderEngine::create(std::move(declaration),
                                                               {.max_requests = 64,
                                                                .max_rows = setup.max_rows,
                                                                .max_tokens = setup.chunk_tokens,
                                                                .prefix_cache = setup.allow_cache,
                                                                .promised_answer_tokens = setup.promised},
                                                               *device_));
    decoder_.emplace(std::move(made));
    return ok_status();
  }

  struct Live {
    Value input;
    bool prefill = true;
    Progress progress;
    int num_launched = 0;  // ending rows
    int num_in_flight = 0;
    bool part_in_flight = false;
    bool added = false, done = false;
  };
  struct Flight {
    StepPtr step;
  };

  // Runs all to their ends, as a worker would. Ids of requests go on from one call to the next.
  Outcome run(const std::vector<Ask>& asks) {
    const DecoderDecl& d = *decoder_->declaration;
    Outcome out;
    out.answers.resize(asks.size());
    out.cached.resize(asks.size());
    std::vector<Live> live(asks.size());
    std::vector<std::shared_ptr<decl::RequestParams>> params;
    for (const Ask& ask : asks) {
      params.push_back(std::make_shared<decl::RequestParams>());
      params.back()->sampling.max_tokens = ask.max_tokens;
      params.back()->cache_salt = ask.salt;
    }
    const std::uint64_t first = next_id_;
    next_id_ += asks.size();
    const auto end = [&](std::size_t i) {
      live[i].done = true;
      out.cached[i] = decoder_->resources->cached_tokens(RequestId(first + i));
      if (live[i].num_in_flight == 0) decoder_->resources->remove_request(RequestId(first + i));
    };
    std::mt19937 random(setup_.shuffle);
    std::deque<StepPtr> flights;
    int num_idle_turns = 0;
    for (int turn = 0; num_idle_turns < 3; ++turn) {
      std::vector<RowInputs> rows;
      bool all_done = true;
      for (std::size_t i = 0; i < asks.size(); ++i) {
        Live& l = live[i];
        all_done &= l.done;
        if (l.done || asks[i].arrives > turn) continue;
        if (!std::exchange(l.added, true)) {
          l.input = HostValue::i32(asks[i].prompt);
          const Status added = decoder_->resources->add_request(RequestId(first + i), *params[i]);
          EXPECT_TRUE(added) << added.error().message;
        }
        const bool may_run = l.num_in_flight == 0 || (setup_.run_ahead && l.num_in_flight == 1 && !l.part_in_flight);
        if (!may_run || l.num_launched == asks[i].max_tokens) continue;
        RowInputs row{.request = RequestId(first + i), .params = params[i], .walk = l.prefill ? d.prefill : d.decode};
        row.run = l.prefill ? d.prefill_run : d.decode_run;
        row.ports = {{l.input}};
        row.ahead = l.num_in_flight > 0;
        row.tag = static_cast<std::uint32_t>(i);
        row.progress = l.progress;
        rows.push_back(std::move(row));
      }
      if (all_done && flights.empty()) break;
      if (setup_.shuffle) std::shuffle(rows.begin(), rows.end(), random);
      bool launched = false;
      const bool asked = !rows.empty();
      if (asked) launched = launch(std::move(rows), live, flights, out, end);
      const std::size_t keep = setup_.run_ahead && launched ? 1 : 0;
      num_idle_turns = launched || !flights.empty() || !asked ? 0 : num_idle_turns + 1;
      while (flights.size() > keep) finish(flights, live, asks, out, end);
    }
    for (std::size_t i = 0; i < asks.size(); ++i) EXPECT_TRUE(live[i].done) << "request " << i << " stands still";
    return out;
  }

  template <class End>
  bool launch(std::vector<RowInputs> rows, std::vector<Live>& live, std::deque<StepPtr>& flights, Outcome& out,
              End&& end) {
    auto prepared = decoder_->engine->prepare(std::move(rows));
    for (const RowInputs& row : prepared.waiting)
      if (!row.ahead) live[row.tag].progress = row.progress;
    for (const RowResult& row : prepared.failed) {
      out.errors[row.tag] = row.error->message;
      end(row.tag);
    }
    if (!prepared.step) return false;
    for (bool whole = false; !whole;) {
      auto ran = decoder_->engine->advance(*prepared.step);
      EXPECT_TRUE(ran);
      whole = !ran || *ran;
    }
    for (const RowResult& row : decoder_->engine->promised(*prepared.step)) {
      Live& l = live[row.tag];
      ++l.num_in_flight;
      l.part_in_flight = row.partial;
      if (row.partial) continue;
      ++l.num_launched;
      l.input = row.outputs[0][0];
      l.prefill = false;
      l.progress = {};
    }
    flights.push_back(std::move(prepared.step));
    return true;
  }

  template <class End>
  void finish(std::deque<StepPtr>& flights, std::vector<Live>& live, const std::vector<Ask>& asks, Outcome& out,
              End&& end) {
    StepPtr step = std::move(flights.front());
    flights.pop_front();
    for (RowResult& row : decoder_->engine->finish(std::move(step))) {
      Live& l = live[row.tag];
      --l.num_in_flight;
      EXPECT_FALSE(row.error) << row.error->message;
      if (row.partial) {
        l.progress = row.progress;
        l.part_in_flight = false;
        continue;
      }
      auto& answer = out.answers[row.tag];
      answer.push_back(row.outputs[0][0].host.as<std::int32_t>()[0]);
      if (l.num_in_flight == 0) l.input = row.outputs[0][0];
      if (static_cast<int>(answer.size()) == asks[row.tag].max_tokens) end(row.tag);
    }
  }

  void expect_all(const std::vector<Ask>& asks, const Outcome& out) {
    EXPECT_TRUE(out.errors.empty()) << out.errors.begin()->second;
    for (std::size_t i = 0; i < asks.size(); ++i) EXPECT_EQ(out.answers[i], answer_of(asks[i], setup_.recurrent)) << i;
    EXPECT_EQ(kv().used, 0);
  }
  resource::Usage kv() const {
    for (const auto& usage : decoder_->resources->usage())
      if (usage.name == "kv") return usage;
    return {};
  }
  static std::vector<std::int32_t> ids(int count, int seed) {
    std::vector<std::int32_t> out;
    for (int i = 0; i < count; ++i) out.push_back((i * 37 + seed * 101 + 3) % kVocab);
    return out;
  }

  Setup setup_;
  Seen seen_;
  std::unique_ptr<Device> device_;
  std::optional<DecoderEngine> decoder_;
  std::uint64_t next_id_ = 1;
};

TEST_F(Sequences, ALongPromptRunsInPartsThatEndAtPages) {
  ASSERT_TRUE(make({.chunk_tokens = 10, .prefix_cache = false}));
  const std::vector<Ask> asks = {{.prompt = ids(33, 1), .max_tokens = 5}};
  expect_all(asks, run(asks));
  EXPECT_EQ(seen_.part_ends, (std::vector<int>{8, 16, 24}));
  EXPECT_EQ(seen_.num_tokens, 33 + 4);
  EXPECT_LE(seen_.most_tokens, 10);
}

TEST_F(Sequences, AnswersDoNotDependOnThePartsOrOnTheOthers) {
  std::vector<Ask> asks;
  for (int i = 0; i < 12; ++i)
    asks.push_back({.prompt = ids(1 + i * 7, i), .max_tokens = 1 + i % 5 * 3, .arrives = i / 3 * 2});
  for (const bool async : {false, true}) {
    for (const int chunk : {4, 7, 16, 64, 128}) {
      ASSERT_TRUE(make({.chunk_tokens = chunk, .prefix_cache = false, .run_ahead = async, .async = async}));
      expect_all(asks, run(asks));
      EXPECT_LE(seen_.most_tokens, chunk);
      EXPECT_TRUE(chunk > 78 || seen_.num_parts > 0);
      EXPECT_TRUE(chunk < 16 || seen_.num_mixed > 0);
    }
  }
}

TEST_F(Sequences, ACommonPrefixIsComputedOnce) {
  ASSERT_TRUE(make({}));
  std::vector<Ask> asks = {{.prompt = ids(42, 1), .max_tokens = 6}};
  EXPECT_EQ(run(asks).cached[0], 0);
  EXPECT_EQ(kv().cached, 11) << "42 + 5 tokens stand: the last is never fed";
  const auto before = seen_.num_tokens;
  const Outcome again = run(asks);
  expect_all(asks, again);
  EXPECT_EQ(again.cached[0], 40);
  EXPECT_EQ(seen_.num_tokens - before, 2 + 5);
  // The next turn of a talk: what was answered is found too.
  asks[0].prompt = ids(42, 1);
  for (const std::int32_t id : answer_of(asks[0])) asks[0].prompt.push_back(id);
  asks[0].prompt.resize(asks[0].prompt.size() + 9, 5);
  const Outcome turn = run(asks);
  expect_all(asks, turn);
  EXPECT_EQ(turn.cached[0], 44);
  EXPECT_EQ(kv().found_tokens, 40 + 44);
}

TEST_F(Sequences, ThePromptsLastTokenAlwaysRuns) {
  ASSERT_TRUE(make({}));
  const std::vector<Ask> asks = {{.prompt = ids(8, 1), .max_tokens = 3}};
  expect_all(asks, run(asks));
  const Outcome again = run(asks);
  expect_all(asks, again);
  EXPECT_EQ(again.cached[0], 4);
}

TEST_F(Sequences, OtherSaltsAndOtherIdsShareNothing) {
  ASSERT_TRUE(make({}));
  std::vector<Ask> asks = {{.prompt = ids(20, 1), .max_tokens = 3, .salt = "one"}};
  expect_all(asks, run(asks));
  asks[0].salt = "two";
  EXPECT_EQ(run(asks).cached[0], 0);
  asks[0].salt = "one";
  EXPECT_EQ(run(asks).cached[0], 16);
  asks[0].prompt[2] = 999;
  const Outcome other = run(asks);
  expect_all(asks, other);
  EXPECT_EQ(other.cached[0], 0);
}

TEST_F(Sequences, EqualPromptsThatComeTogetherShareTheirPages) {
  ASSERT_TRUE(make({.chunk_tokens = 64}));
  const std::vector<Ask> asks(6, Ask{.prompt = ids(41, 1), .max_tokens = 8});
  const Outcome out = run(asks);
  expect_all(asks, out);
  EXPECT_EQ(out.cached, (std::vector<std::int64_t>{0, 40, 40, 40, 40, 40}));
  EXPECT_EQ(seen_.num_tokens, 41 + 5 * 1 + 6 * 7);
  // Together in a pool that could not hold them apart.
  ASSERT_TRUE(make({.chunk_tokens = 16, .kv_tokens = 4 * (10 + 6 * 3)}));
  const Outcome tight = run(asks);
  expect_all(asks, tight);
  EXPECT_EQ(kv().num_preempted, 0);
}

TEST_F(Sequences, TheCacheCanBeSwitchedOff) {
  for (const bool declared : {false, true}) {
    ASSERT_TRUE(make({.prefix_cache = declared, .allow_cache = !declared}));
    const std::vector<Ask> asks = {{.prompt = ids(42, 1), .max_tokens = 2}};
    expect_all(asks, run(asks));
    const Outcome again = run(asks);
    expect_all(asks, again);
    EXPECT_EQ(again.cached[0], -1);
    EXPECT_EQ(kv().cached, 0);
  }
}

TEST_F(Sequences, WhatHasRestedLongestMakesRoom) {
  ASSERT_TRUE(make({.kv_tokens = 64}));  // 16 pages
  const std::vector<Ask> a = {{.prompt = ids(24, 1)}}, b = {{.prompt = ids(24, 2)}}, c = {{.prompt = ids(24, 3)}};
  run(a), run(b);
  EXPECT_EQ(kv().cached, 12);
  EXPECT_EQ(run(a).cached[0], 20);  // now b has rested longest
  expect_all(c, run(c));            // takes the 4 free ones, and two of b's end
  EXPECT_EQ(kv().cached, 16);
  EXPECT_EQ(run(a).cached[0], 20);
  EXPECT_EQ(run(b).cached[0], 12);
}

TEST_F(Sequences, ARequestThatCouldNotRunAloneIsRefusedWithNumbers) {
  ASSERT_TRUE(make({.kv_tokens = 40}));
  const std::vector<Ask> asks = {{.prompt = ids(30, 1), .max_tokens = 30}, {.prompt = ids(30, 2), .max_tokens = 10}};
  const Outcome out = run(asks);
  ASSERT_EQ(out.errors.size(), 1u);
  EXPECT_NE(out.errors.at(0).find("30 tokens and an answer of up to 30 need 15 pages of 4 tokens, and 'kv' has 10"),
            std::string::npos)
      << out.errors.at(0);
  EXPECT_EQ(out.answers[1], answer_of(asks[1]));
  EXPECT_EQ(kv().used, 0);
}

TEST_F(Sequences, APromptLongerThanTheContextIsRefused) {
  ASSERT_TRUE(make({.context = 32}));
  const Outcome out = run({{.prompt = ids(33, 1), .max_tokens = 1}});
  ASSERT_EQ(out.errors.size(), 1u);
  EXPECT_NE(out.errors.at(0).find("the context of 32 tokens is full"), std::string::npos);
}

// The pages of the youngest go to the oldest; the youngest answers the same later.
TEST_F(Sequences, TheYoungestGivesUpItsPagesAndComesAgain) {
  for (const bool async : {false, true}) {
    for (const bool cache : {false, true}) {
      ASSERT_TRUE(make({.kv_tokens = 48, .promised = 1, .prefix_cache = cache, .run_ahead = async, .async = async}));
      const std::vector<Ask> asks = {{.prompt = ids(9, 1), .max_tokens = 30}, {.prompt = ids(9, 2), .max_tokens = 30}};
      expect_all(asks, run(asks));
      EXPECT_GE(kv().num_preempted, 1);
      EXPECT_EQ(kv().used, 0);
    }
  }
}

// A pool of 96 pages and 32 requests with a common prefix of 59: each holds it once in the reference project's planner,
// and all wait for ever. Here all share it.
TEST_F(Sequences, ManyRequestsOnOneLongPrefixNeverStandStill) {
  for (const int promised : {1, 64}) {
    ASSERT_TRUE(
        make({.chunk_tokens = 64, .max_rows = 32, .kv_tokens = 96 * 4, .context = 75 * 4, .promised = promised}));
    std::vector<Ask> asks;
    for (int i = 0; i < 32; ++i) {
      asks.push_back({.prompt = ids(59 * 4, 1), .max_tokens = 12 + i});
      asks.back().prompt.push_back(i);
    }
    const Outcome out = run(asks);
    expect_all(asks, out);
    EXPECT_EQ(std::count(out.cached.begin(), out.cached.end(), 59 * 4), 31);
  }
}

TEST_F(Sequences, TinyPoolsRandomOrdersTheSameAnswersAsAlone) {
  std::int64_t num_preempted = 0, found = 0, parts = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const bool async = below(2) == 0, recurrent = below(4) == 0;
    ASSERT_TRUE(make({.chunk_tokens = 4 + below(30),
                      .max_rows = 1 + below(10),
                      .kv_tokens = 80 + below(20) * 4,
                      .context = 80,
                      .promised = 1 + below(20),
                      .prefix_cache = below(3) > 0,
                      .run_ahead = async && !recurrent && below(3) > 0,
                      .async = async,
                      .recurrent = recurrent,
                      .shuffle = seed}));
    std::vector<Ask> asks;
    for (int i = 0; i < 25; ++i) {
      Ask ask{.max_tokens = 1 + below(30), .arrives = below(60), .salt = below(5) ? "" : "other"};
      const int prefix = below(3);
      ask.prompt = ids(prefix * 11, below(3));
      for (int t = 0; t < 1 + below(25); ++t) ask.prompt.push_back(below(3));
      asks.push_back(std::move(ask));
    }
    const Outcome out = run(asks);
    expect_all(asks, out);
    EXPECT_TRUE(static_cast<resource::PagedKvPool&>(*decoder_->resources->at(decoder_->declaration->kv)).adds_up());
    const auto usage = kv();
    EXPECT_LE(usage.cached, usage.total);
    num_preempted += usage.num_preempted;
    found += usage.found_tokens;
    parts += seen_.num_parts;
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(num_preempted, 20);
  EXPECT_GT(found, 1000);
  EXPECT_GT(parts, 100);
}

// A recurrent state goes with the pages, and is made again from zeros.
TEST_F(Sequences, AStateBesideThePagesIsComputedAgainToo) {
  for (const bool async : {false, true}) {
    ASSERT_TRUE(make({.kv_tokens = 48, .promised = 1, .async = async, .recurrent = true}));
    const std::vector<Ask> asks = {{.prompt = ids(29, 1), .max_tokens = 10}, {.prompt = ids(9, 2), .max_tokens = 30}};
    expect_all(asks, run(asks));
    EXPECT_GE(kv().num_preempted, 1);
    EXPECT_EQ(kv().cached, 0);
  }
}

// A row that had begun and is not wanted any more leaves its label as it was.
TEST_F(Sequences, ARowThatIsUndoneLeavesNoTrace) {
  for (const bool recurrent : {false, true}) {
    ASSERT_TRUE(make({.chunk_tokens = 10, .recurrent = recurrent}));
    const DecoderDecl& d = *decoder_->declaration;
    auto& pool = static_cast<resource::PagedKvPool&>(*decoder_->resources->at(d.kv));
    const auto params = std::make_shared<decl::RequestParams>();
    ASSERT_TRUE(decoder_->resources->add_request(RequestId(1), *params));
    std::vector<std::int32_t> said;
    const auto part = [&](const std::vector<std::int32_t>& prompt, Progress progress) {
      RowInputs row{.request = RequestId(1), .params = params, .walk = d.prefill, .run = d.prefill_run};
      row.ports = {{HostValue::i32(prompt)}};
      row.progress = progress;
      std::vector<RowInputs> rows;
      rows.push_back(std::move(row));
      auto prepared = decoder_->engine->prepare(std::move(rows));
      EXPECT_TRUE(prepared.step);
      EXPECT_TRUE(decoder_->engine->advance(*prepared.step));
      RowResult result = std::move(decoder_->engine->finish(std::move(prepared.step)).at(0));
      if (!result.partial) said.push_back(result.outputs[0][0].host.as<std::int32_t>()[0]);
      return result;
    };
    const auto whole = ids(7, 1);
    EXPECT_FALSE(part(whole, {}).partial);
    RowResult result = part(ids(40, 2), {});
    result = part(ids(40, 2), result.progress);
    EXPECT_TRUE(result.partial);
    EXPECT_EQ(pool.text_length(RequestId(1), 0), 24);
    decoder_->engine->undo(RequestId(1), result.progress);
    EXPECT_EQ(pool.text_length(RequestId(1), 0), 7);
    EXPECT_TRUE(pool.adds_up());
    result = part(ids(6, 3), {});
    if (result.partial) result = part(ids(6, 3), result.progress);
    Ask both{.prompt = whole, .max_tokens = 1};
    for (const std::int32_t id : ids(6, 3)) both.prompt.push_back(id);
    std::int64_t sum = 0, length = 0, state = 0;
    for (const std::int32_t id : both.prompt) sum += id * weight(length++), state = next_state(state, id);
    EXPECT_EQ(said.back(), next_token(recurrent ? sum + state : sum, length, 1));
    decoder_->resources->remove_request(RequestId(1));
    EXPECT_EQ(kv().used, 0);
    EXPECT_TRUE(pool.adds_up());
  }
}

TEST_F(Sequences, ABodyWithoutIdsOrAStepWithoutAPageIsRefused) {
  const Status no_ids = make({.per_token = false});
  ASSERT_FALSE(no_ids);
  EXPECT_NE(no_ids.error().message.find("needs an input slot for the ids"), std::string::npos);
  const Status small = make({.chunk_tokens = 3});
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().message.find("a step of 3 tokens holds no page of 4"), std::string::npos);
}

TEST(SequenceRules, SayWhyNot) {
  decl::Decl d("m");
  const auto kv = d.resource(decl::PagedKv{.name = "kv", .labels = {"a"}, .prefix_cache = true});
  const auto forked = d.resource(decl::PagedKv{.name = "forked", .labels = {"a", "b"}, .prefix_cache = true});
  const auto hybrid = d.resource(decl::PagedKv{.name = "hybrid", .prefix_cache = true});
  const auto whole = d.resource(decl::PagedKv{.name = "whole", .prefix_cache = true});
  const auto state = d.resource(decl::RecurrentState{.name = "state"});
  const auto latents = d.resource(decl::PagedKv{.name = "beside latents", .prefix_cache = true});
  const auto off = d.resource(decl::PagedKv{.name = "off"});
  d.component(decl::DeviceComponent{.name = "one", .uses = {kv}, .chunked_prefill = true});
  d.component(decl::DeviceComponent{.name = "two", .uses = {forked}, .chunked_prefill = true});
  d.component(decl::DeviceComponent{.name = "three", .uses = {hybrid, state}, .chunked_prefill = true});
  d.component(decl::DeviceComponent{.name = "four", .uses = {whole}});
  const auto latent = d.resource(decl::Latents{.name = "latents"});
  d.component(decl::DeviceComponent{.name = "five", .uses = {latents, latent}, .chunked_prefill = true});
  d.component(decl::DeviceComponent{.name = "six", .uses = {off}, .chunked_prefill = true});
  EXPECT_TRUE(!sequence_rules(d, latents).on_demand && !sequence_rules(d, latents).prefix_cache);
  EXPECT_TRUE(sequence_rules(d, off).on_demand && !sequence_rules(d, off).prefix_cache);
  EXPECT_EQ(sequence_rules(d, off).why_not, "it is switched off");
  EXPECT_TRUE(sequence_rules(d, kv).on_demand && sequence_rules(d, kv).prefix_cache);
  EXPECT_EQ(sequence_rules(d, kv).why_not, "");
  EXPECT_TRUE(!sequence_rules(d, forked).on_demand && sequence_rules(d, forked).prefix_cache);
  EXPECT_TRUE(sequence_rules(d, hybrid).on_demand && !sequence_rules(d, hybrid).prefix_cache);
  EXPECT_EQ(sequence_rules(d, hybrid).why_not, "'three' keeps 'state' beside it, of which no snapshots are taken yet");
  EXPECT_TRUE(!sequence_rules(d, whole).on_demand && !sequence_rules(d, whole).prefix_cache);
  EXPECT_EQ(sequence_rules(d, whole).why_not, "'four' takes its inputs whole");
}

}  // namespace
}  // namespace mstar::engine
