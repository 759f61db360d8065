// Token sequences on one engine: parts, prefixes, pages that are taken away.
#include "mstar/engine/sequence_fixture.h"
#include "mstar/engine/sequence_rules.h"

namespace mstar::engine {
namespace {

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

// Parts of prompts, ends of prompts, prompts found in the cache and rows of one token, in any mixture.
TEST_F(Sequences, StepsWithPromptsReplay) {
  std::vector<Ask> asks;
  for (int i = 0; i < 12; ++i)
    asks.push_back({.prompt = ids(1 + i * 7, i % 5), .max_tokens = 1 + i % 5 * 3, .arrives = i / 3 * 2});
  for (const bool recurrent : {false, true}) {
    for (const int chunk : {16, 17, 64, 128}) {
      Setup setup =
          recurrent ? beside_state(true, 8, chunk) : Setup{.chunk_tokens = chunk, .run_ahead = true, .async = true};
      setup.captured_tokens = {12, 32, 100};
      ASSERT_TRUE(make(setup));
      expect_all(asks, run(asks));
      expect_all(asks, run(asks));
      const StepCounters& counters = decoder_->engine->counters();
      EXPECT_GT(counters.num_replays, 20);
      // Past the largest number of tokens.
      EXPECT_LE(counters.num_eager, chunk > 100 ? 2 : 0) << chunk;
    }
  }
}

TEST_F(Sequences, PromptsOfLessThanHalfAStepAreNotCut) {
  for (const bool async : {false, true}) {
    ASSERT_TRUE(make({.chunk_tokens = 64, .prefix_cache = false, .run_ahead = async, .async = async}));
    std::vector<Ask> asks;
    for (int i = 0; i < 7; ++i) asks.push_back({.prompt = ids(25 + i, i), .max_tokens = 3});
    expect_all(asks, run(asks));
    EXPECT_EQ(seen_.num_parts, 0);
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
  std::int64_t num_preempted = 0, found = 0, found_with_state = 0, parts = 0, replays = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const bool async = below(2) == 0, recurrent = below(2) == 0, doubled = below(2) == 0;
    ASSERT_TRUE(make({.chunk_tokens = 4 + below(30),
                      .max_rows = 1 + below(10),
                      .kv_tokens = 80 + below(20) * 4,
                      .context = 80,
                      .promised = 1 + below(20),
                      .prefix_cache = below(3) > 0,
                      .run_ahead = async && (!recurrent || doubled) && below(3) > 0,
                      .async = async,
                      .recurrent = recurrent,
                      .double_buffered = doubled,
                      .snapshots = below(4) ? 1 + below(8) : 0,
                      .snapshot_tokens = 4 << below(3),
                      .captured_tokens = async && seed % 2 == 0 ? std::vector<int>{6, 16, 24} : std::vector<int>(),
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
    const auto usage = kv();
    EXPECT_LE(usage.cached, usage.total);
    num_preempted += usage.num_preempted;
    found += usage.found_tokens;
    if (recurrent) found_with_state += usage.found_tokens;
    parts += seen_.num_parts;
    if (!setup_.captured_tokens.empty()) replays += decoder_->engine->counters().num_replays;
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(replays, 1000);
  EXPECT_GT(num_preempted, 20);
  EXPECT_GT(found, 1000);
  EXPECT_GT(found_with_state, 300);
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
  for (const int kind : {0, 1, 2}) {
    const bool recurrent = kind > 0;
    ASSERT_TRUE(
        make({.chunk_tokens = 10, .recurrent = recurrent, .snapshots = kind == 2 ? 3 : 0, .snapshot_tokens = 8}));
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
  const auto add = [&](const char* name, std::vector<std::string> labels = {"main"}) {
    return d.resource(
        decl::PagedKv{.name = name, .page_tokens = 16, .labels = std::move(labels), .prefix_cache = true});
  };
  const auto use = [&](const char* name, std::vector<decl::ResourceRef> uses, bool in_parts = true) {
    d.component(decl::DeviceComponent{.name = name, .uses = std::move(uses), .chunked_prefill = in_parts});
  };
  const auto kv = add("kv", {"a"}), forked = add("forked", {"a", "b"}), whole = add("whole"), latents = add("latents");
  const auto off = d.resource(decl::PagedKv{.name = "off"});
  use("one", {kv});
  use("two", {forked});
  use("three", {whole}, false);
  use("four", {latents, d.resource(decl::Latents{.name = "noise"})});
  use("five", {off});
  const auto rules = [&](decl::ResourceRef ref) { return sequence_rules(d, ref); };
  EXPECT_TRUE(!rules(latents).on_demand && !rules(latents).prefix_cache);
  EXPECT_EQ(rules(latents).why_not, "'four' keeps 'noise' beside it, of which no snapshots are taken");
  EXPECT_TRUE(rules(off).on_demand && !rules(off).prefix_cache);
  EXPECT_EQ(rules(off).why_not, "it is switched off");
  EXPECT_TRUE(rules(kv).on_demand && rules(kv).prefix_cache);
  EXPECT_EQ(rules(kv).why_not, "");
  EXPECT_EQ(rules(kv).state_snapshots, 0);
  EXPECT_TRUE(!rules(forked).on_demand && rules(forked).prefix_cache);
  EXPECT_TRUE(!rules(whole).on_demand && !rules(whole).prefix_cache);
  EXPECT_EQ(rules(whole).why_not, "'three' takes its inputs whole");
}

TEST(SequenceRules, StatesNeedSnapshotsThatBelongToTheText) {
  decl::Decl d("m");
  const auto kv_of = [&](const char* name, std::vector<std::string> labels = {"main"}) {
    return d.resource(
        decl::PagedKv{.name = name, .page_tokens = 16, .labels = std::move(labels), .prefix_cache = true});
  };
  const auto state_of = [&](const char* name, int snapshots, int grid = 64) {
    return d.resource(decl::RecurrentState{.name = name, .snapshots = snapshots, .snapshot_tokens = grid});
  };
  const auto use = [&](const char* name, std::vector<decl::ResourceRef> uses) {
    d.component(decl::DeviceComponent{.name = name, .uses = std::move(uses), .chunked_prefill = true});
  };
  const auto rules = [&](decl::ResourceRef ref) { return sequence_rules(d, ref); };
  const auto good = kv_of("good"), bare = kv_of("bare"), odd = kv_of("odd"), forked = kv_of("forked", {"a", "b"});
  const auto mixed = kv_of("mixed"), grids = kv_of("grids"), shared = kv_of("shared");
  use("a", {good, state_of("conv", 7), state_of("rule", 5)});
  EXPECT_TRUE(rules(good).on_demand && rules(good).prefix_cache);
  EXPECT_EQ(rules(good).state_snapshots, 5);
  EXPECT_EQ(rules(good).snapshot_tokens, 64);
  const auto say = [&](decl::ResourceRef ref, bool on_demand, const std::string& why) {
    EXPECT_EQ(rules(ref).why_not, why);
    EXPECT_FALSE(rules(ref).prefix_cache);
    EXPECT_EQ(rules(ref).on_demand, on_demand);
    EXPECT_EQ(rules(ref).state_snapshots, 0);
  };
  use("b", {bare, state_of("s", 0)});
  say(bare, true, "'b' keeps 's' beside it, of which no snapshots are taken");
  use("c", {odd, state_of("t", 3, 24)});
  say(odd, true, "'c' keeps 't' beside it on a grid of 24 tokens, not of pages of 16");
  use("d", {forked, state_of("u", 3)});
  say(forked, false, "'d' keeps 'u' beside it, which forks");
  use("e", {mixed});
  use("f", {mixed, state_of("v", 3)});
  say(mixed, true, "'e' and 'f' keep different state beside it");
  use("g", {grids, state_of("w", 3), state_of("x", 3, 32)});
  say(grids, true, "'g' keeps 'x' beside it on a grid of its own");
  const auto state = state_of("y", 3);
  use("h", {shared, state});
  EXPECT_TRUE(rules(shared).prefix_cache);
  use("i", {state});
  say(shared, true, "'h' keeps 'y' beside it, which 'i' changes without it");
}

}  // namespace
}  // namespace mstar::engine
