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
