// Token sequences with a state beside their pages: where its snapshots are taken, and who goes on from them.
#include "mstar/engine/sequence_fixture.h"

namespace mstar::engine {
namespace {

// It is taken in passing, before the prompt's last 8 tokens, and goes on from there the next time.
TEST_F(Sequences, APromptThatComesAgainGoesOnFromItsSnapshot) {
  for (const bool async : {false, true}) {
    ASSERT_TRUE(make(beside_state(async, 4, 64)));
    std::vector<Ask> asks = {{.prompt = ids(42, 1), .max_tokens = 6}};
    const Outcome first = run(asks);
    expect_all(asks, first);
    EXPECT_EQ(first.cached[0], 0);
    EXPECT_EQ(seen_.num_parts, 0);
    EXPECT_EQ(kv().num_snapshots, 1);
    const auto before = seen_.num_tokens;
    const Outcome again = run(asks);
    expect_all(asks, again);
    EXPECT_EQ(again.cached[0], 32);
    EXPECT_EQ(seen_.num_tokens - before, 10 + 5);
    EXPECT_EQ(seen_.num_parts, 0);
    // Where it is a prefix of another one.
    asks[0].prompt.resize(60, 3);
    const Outcome longer = run(asks);
    expect_all(asks, longer);
    EXPECT_EQ(longer.cached[0], 32);
    EXPECT_EQ(kv().num_snapshots, 4) << "one at 40, where it leaves the first, one at 52, and of the answer one at 64";
    EXPECT_EQ(kv().found_tokens, 64);
    EXPECT_EQ(seen_.num_parts, 1) << "cut at 40: a step keeps one of a row";
  }
}

TEST_F(Sequences, ASnapshotCostsNoStep) {
  for (const bool async : {false, true}) {
    Setup setup = beside_state(async, 4, 1024);
    setup.context = 1024;
    setup.snapshot_tokens = 512;
    ASSERT_TRUE(make(setup));
    const auto steps = [&] { return decoder_->engine->counters().num_steps; };
    std::vector<Ask> asks = {{.prompt = ids(640, 1), .max_tokens = 1}};
    expect_all(asks, run(asks));
    EXPECT_EQ(steps(), 1);
    const Outcome again = run(asks);
    expect_all(asks, again);
    EXPECT_EQ(again.cached[0], 632);
    EXPECT_EQ(steps(), 2);
    asks[0].prompt.resize(900, 7);  // a longer talk: its own snapshot follows the one it began from
    EXPECT_EQ(run(asks).cached[0], 632);
    EXPECT_EQ(steps(), 3);
    const Outcome longer = run(asks);
    expect_all(asks, longer);
    EXPECT_EQ(longer.cached[0], 892);
    EXPECT_EQ(steps(), 4);
  }
}

// Rows in flight take what there is; the others keep nothing.
TEST_F(Sequences, MoreRowsThanSnapshotsInOneStep) {
  for (const bool async : {false, true}) {
    ASSERT_TRUE(make(beside_state(async, 2, 256)));
    std::vector<Ask> asks;
    for (int i = 0; i < 5; ++i) asks.push_back({.prompt = ids(42, i), .max_tokens = 3});
    expect_all(asks, run(asks));
    EXPECT_EQ(seen_.most_tokens, 5 * 42);
    EXPECT_EQ(kv().num_snapshots, 2);
    EXPECT_EQ(run({asks[1]}).cached[0], 32);
    EXPECT_EQ(run({asks[4]}).cached[0], 0);
    EXPECT_EQ(run({asks[4]}).cached[0], 32);
  }
}

TEST_F(Sequences, PartsEndOnTheGridOfSnapshots) {
  ASSERT_TRUE(make({.chunk_tokens = 22, .recurrent = true, .snapshots = 8}));
  std::vector<Ask> asks = {{.prompt = ids(60, 1), .max_tokens = 2}};
  expect_all(asks, run(asks));
  EXPECT_EQ(seen_.part_ends, (std::vector<int>{16, 32, 48}));
  EXPECT_EQ(kv().num_snapshots, 4) << "and one at 52";
  for (const int length : {59, 40, 33, 30, 17, 16}) {
    asks[0].prompt = ids(length, 1);
    const Outcome out = run(asks);
    expect_all(asks, out);
    EXPECT_EQ(out.cached[0], length > 52 ? 52 : (length - 1) / 16 * 16) << length;
  }
}

// The second turn of a talk goes on where the answer met the grid last.
TEST_F(Sequences, AnAnswerKeepsItsLastSnapshot) {
  for (const bool async : {false, true}) {
    ASSERT_TRUE(make(beside_state(async, 8, 64)));
    std::vector<Ask> asks = {{.prompt = ids(20, 1), .max_tokens = 40}};
    expect_all(asks, run(asks));
    EXPECT_EQ(kv().num_snapshots, 2) << "at 12, and at 48";
    for (const std::int32_t id : answer_of(asks[0], true)) asks[0].prompt.push_back(id);
    const Outcome out = run(asks);
    expect_all(asks, out);
    EXPECT_EQ(out.cached[0], 48);
  }
}

// What is computed is counted: n equal prompts are computed once up to the snapshot, and wait for it.
TEST_F(Sequences, EqualPromptsWithStateThatComeTogetherAreComputedOnce) {
  for (const bool async : {false, true}) {
    for (const int chunk : {16, 64}) {
      ASSERT_TRUE(make(beside_state(async, 8, chunk)));
      const std::vector<Ask> asks(6, Ask{.prompt = ids(41, 1), .max_tokens = 8});
      const Outcome out = run(asks);
      expect_all(asks, out);
      EXPECT_EQ(out.cached, (std::vector<std::int64_t>{0, 32, 32, 32, 32, 32}));
      EXPECT_EQ(seen_.num_tokens, 41 + 5 * 9 + 6 * 7);
    }
  }
}

// Nobody knew where they would part: the second one to come is cut there, and the others go on from it.
TEST_F(Sequences, ASnapshotIsTakenWhereTextsPart) {
  ASSERT_TRUE(make({.chunk_tokens = 128, .recurrent = true, .snapshots = 12, .snapshot_tokens = 32}));
  std::vector<Ask> asks;
  for (int i = 0; i < 6; ++i) {
    asks.push_back({.prompt = ids(26, 1), .max_tokens = 3});
    for (const std::int32_t id : ids(30, 10 + i)) asks.back().prompt.push_back(id);
  }
  const Outcome out = run(asks);
  expect_all(asks, out);
  EXPECT_EQ(out.cached, (std::vector<std::int64_t>{0, 0, 24, 24, 24, 24}));
  EXPECT_EQ(kv().num_snapshots, 7) << "one at 24, and at 48 one of each";
}

TEST_F(Sequences, WhatWasSnappedLongestAgoGoesFirst) {
  ASSERT_TRUE(make({.recurrent = true, .snapshots = 2, .snapshot_tokens = 64}));
  const std::vector<Ask> a = {{.prompt = ids(28, 1)}}, b = {{.prompt = ids(28, 2)}}, c = {{.prompt = ids(28, 3)}};
  expect_all(a, run(a)), expect_all(b, run(b));
  EXPECT_EQ(run(a).cached[0], 20);
  EXPECT_EQ(run(c).cached[0], 0);  // takes b's
  EXPECT_EQ(kv().num_snapshots, 2);
  const Outcome again = run(b);  // takes a's; its pages are there and of no use
  expect_all(b, again);
  EXPECT_EQ(again.cached[0], 0);
  EXPECT_EQ(run(c).cached[0], 20);
  EXPECT_EQ(run(a).cached[0], 0);
  // Pages that go take their snapshots along.
  ASSERT_TRUE(make({.kv_tokens = 32, .recurrent = true, .snapshots = 4, .snapshot_tokens = 64}));
  expect_all(a, run(a)), expect_all(b, run(b));
  EXPECT_EQ(kv().num_snapshots, 1);
  EXPECT_EQ(run(b).cached[0], 20);
  EXPECT_EQ(run(a).cached[0], 0);
}

TEST_F(Sequences, ARequestThatLostItsPagesGoesOnFromASnapshot) {
  for (const bool async : {false, true}) {
    Setup setup = beside_state(async, 8, 16);
    setup.kv_tokens = 64;
    setup.promised = 1;
    ASSERT_TRUE(make(setup));
    const std::vector<Ask> asks = {{.prompt = ids(25, 1), .max_tokens = 25}, {.prompt = ids(25, 2), .max_tokens = 25}};
    expect_all(asks, run(asks));
    EXPECT_GE(kv().num_preempted, 1);
    EXPECT_GT(kv().num_snapshots, 0);
  }
}

// What a step is to keep is nobody's until it has ended well.
TEST_F(Sequences, ASnapshotOfAStepThatFailsIsGivenBack) {
  enum class End { drop, remove, finish };
  for (const bool async : {false, true}) {
    for (const End how : {End::drop, End::remove, End::finish}) {
      ASSERT_TRUE(make(beside_state(async, 1, 64)));
      const DecoderDecl& d = *decoder_->declaration;
      const auto params = std::make_shared<decl::RequestParams>();
      ASSERT_TRUE(decoder_->resources->add_request(RequestId(500), *params));
      RowInputs row{.request = RequestId(500), .params = params, .walk = d.prefill, .run = d.prefill_run};
      row.ports = {{HostValue::i32(ids(42, 1))}};
      row.tag = 9;
      std::vector<RowInputs> rows;
      rows.push_back(std::move(row));
      auto prepared = decoder_->engine->prepare(std::move(rows));
      ASSERT_TRUE(prepared.step);
      ASSERT_TRUE(decoder_->engine->advance(*prepared.step));
      EXPECT_EQ(kv().num_snapshots, 0);
      ASSERT_TRUE(decoder_->resources->add_request(RequestId(501), *params));
      EXPECT_EQ(pool().reserve_snapshot(RequestId(501), 0), -1);
      if (how == End::drop) decoder_->engine->drop(*prepared.step, 9);
      if (how == End::remove) decoder_->resources->remove_request(RequestId(500));
      decoder_->engine->finish(std::move(prepared.step));
      EXPECT_EQ(kv().num_snapshots, how == End::finish ? 1 : 0);
      for (const int id : {500, 501}) decoder_->resources->remove_request(RequestId(static_cast<std::uint64_t>(id)));
      EXPECT_TRUE(pool().adds_up());
      const std::vector<Ask> asks = {{.prompt = ids(42, 1), .max_tokens = 2}};
      const Outcome out = run(asks);
      expect_all(asks, out);
      EXPECT_EQ(out.cached[0], how == End::finish ? 32 : 0);
      EXPECT_EQ(kv().num_snapshots, 1);
    }
  }
}

}  // namespace
}  // namespace mstar::engine
