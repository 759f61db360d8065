// Regions of a component of token sequences: steps that are not one graph take that of their trunk.
#include "mstar/engine/sequence_fixture.h"

namespace mstar::engine {
namespace {

class RegionsOfSequences : public Sequences {
 protected:
  // Some of them tell.
  static std::vector<Ask> some_asks() {
    std::vector<Ask> asks;
    for (int i = 0; i < 12; ++i)
      asks.push_back({.prompt = ids(1 + i * 7, i % 5),
                      .max_tokens = 2 + i % 5 * 3,
                      .arrives = i / 3 * 2,
                      .tells = i % 3 == 0 && i != 9});
    return asks;
  }
  const StepCounters& counters() const { return decoder_->engine->counters(); }
};

TEST_F(RegionsOfSequences, StepsOfRowsThatTellReplayTheirTrunk) {
  for (const bool recurrent : {false, true}) {
    for (const bool whole : {false, true}) {
      Setup setup = recurrent ? beside_state(true, 8, 32) : Setup{.chunk_tokens = 32, .run_ahead = true, .async = true};
      setup.max_rows = 12;
      setup.region_tokens = {16, 32};
      if (whole) setup.captured_tokens = {16, 32};
      ASSERT_TRUE(make(setup));
      const std::int64_t allocations = device_->num_allocations();
      for (int turn = 0; turn < 2; ++turn) expect_all(some_asks(), run(some_asks()));
      const StepCounters c = counters();
      // But for steps of single tokens of which one does not end its prompt.
      EXPECT_LE(c.num_eager, 2);
      EXPECT_GT(c.num_piecewise, 10);
      EXPECT_EQ(c.num_region_replays, c.num_piecewise);
      EXPECT_EQ(c.num_replays > 0, whole);
      EXPECT_EQ(c.num_steps, c.num_replays + c.num_piecewise + c.num_eager);
      EXPECT_EQ(device_->num_allocations(), allocations);
      // Rows {2, 5, 12} of one token; tokens {16, 32} of 12 rows: graphs of regions, and as many of whole steps.
      EXPECT_EQ(decoder_->engine->num_graphs(), (whole ? 2 : 1) * (3 + 2) * resource::kNumSlots);
      EXPECT_GT(decoder_->engine->captured_bytes(), 0u);
      // Without any that tells all is as it was.
      std::vector<Ask> silent = some_asks();
      for (Ask& ask : silent) ask.tells = false;
      expect_all(silent, run(silent));
      if (whole) {
        EXPECT_EQ(counters().num_piecewise, c.num_piecewise);
      }
    }
  }
}

TEST_F(RegionsOfSequences, WithoutGraphsTheyRunEagerly) {
  for (const bool async : {false, true}) {
    Setup setup{.chunk_tokens = 32, .run_ahead = async, .async = async};
    if (!async) setup.region_tokens = {12, 32};  // a CPU captures nothing
    ASSERT_TRUE(make(setup));
    expect_all(some_asks(), run(some_asks()));
    EXPECT_EQ(counters().num_region_replays, 0);
    EXPECT_EQ(counters().num_eager, counters().num_steps);
    EXPECT_EQ(decoder_->engine->num_graphs(), 0);
  }
}

// The largest sizes could not be recorded: what needs them runs eagerly, the rest does not.
TEST_F(RegionsOfSequences, ASizeThatCannotBeRecordedRunsEagerly) {
  ASSERT_TRUE(make({.chunk_tokens = 32, .async = true, .region_tokens = {12, 32}, .failing_captures = 1}));
  EXPECT_EQ(decoder_->engine->num_graphs(), 4 * resource::kNumSlots);
  std::vector<Ask> asks;
  for (int i = 0; i < 5; ++i) asks.push_back({.prompt = ids(2, i), .max_tokens = 4, .tells = i == 0});
  expect_all(asks, run(asks));
  EXPECT_EQ(counters().num_eager, 0);
  for (int i = 5; i < 8; ++i) asks.push_back({.prompt = ids(2, i), .max_tokens = 4});
  expect_all(asks, run(asks));
  EXPECT_EQ(counters().num_eager, 3) << "of eight rows each, behind the prompts";
}

TEST_F(RegionsOfSequences, StepsPastTheLargestSizeRunEagerly) {
  ASSERT_TRUE(make({.chunk_tokens = 64, .async = true, .region_tokens = {12, 32}}));
  const std::vector<Ask> asks = {{.prompt = ids(33, 1), .max_tokens = 4, .tells = true}};
  expect_all(asks, run(asks));
  EXPECT_EQ(counters().num_eager, 1);
  EXPECT_EQ(counters().num_piecewise, 3);
}

// Packed graphs of few rows: short prompts take them, of steps and of regions.
TEST_F(RegionsOfSequences, FewRowsHaveGraphsOfTheirOwn) {
  ASSERT_TRUE(make({.chunk_tokens = 64,
                    .max_rows = 16,
                    .async = true,
                    .captured_tokens = {8, 24, 48},
                    .few_rows = 3,
                    .region_tokens = {8, 24, 48}}));
  // Of 16 rows those of 24 and 48 tokens, of 3 those of 8 and 24.
  const BucketTable& buckets = decoder_->engine->buckets();
  const auto size_for = [&](int rows, int tokens) {
    const auto found = buckets.find({{}, rows, tokens, 0, 1});
    return found ? std::pair(buckets.at(*found).rows, buckets.at(*found).tokens) : std::pair(0, 0);
  };
  EXPECT_EQ(size_for(1, 7), std::pair(3, 8));
  EXPECT_EQ(size_for(3, 9), std::pair(3, 24));
  EXPECT_EQ(size_for(4, 8), std::pair(16, 24));
  EXPECT_EQ(size_for(2, 25), std::pair(16, 48));
  for (const bool tells : {false, true}) {
    const std::int64_t padding = counters().num_padding_rows;
    const std::vector<Ask> one = {{.prompt = ids(7, 1), .max_tokens = 1, .tells = tells}};
    expect_all(one, run(one));
    EXPECT_EQ(counters().num_padding_rows - padding, 2);
    std::vector<Ask> many;
    for (int i = 0; i < 5; ++i) many.push_back({.prompt = ids(2 + i, i), .max_tokens = 3, .tells = tells});
    expect_all(many, run(many));
  }
  EXPECT_EQ(counters().num_eager, 0);
}

TEST_F(RegionsOfSequences, RandomSchedulesGiveTheSameWithAndWithout) {
  StepCounters sum;
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const bool recurrent = below(2) == 0, doubled = below(2) == 0, ahead = below(3) > 0;
    const std::vector<int> tokens = {6, 16, 24};
    ASSERT_TRUE(make({.chunk_tokens = 4 + below(30),
                      .max_rows = 1 + below(10),
                      .kv_tokens = 80 + below(20) * 4,
                      .context = 80,
                      .promised = 1 + below(20),
                      .prefix_cache = below(3) > 0,
                      .run_ahead = ahead && (!recurrent || doubled),
                      .async = true,
                      .recurrent = recurrent,
                      .double_buffered = doubled,
                      .snapshots = below(4) ? 1 + below(8) : 0,
                      .snapshot_tokens = 4 << below(3),
                      .captured_tokens = below(2) ? tokens : std::vector<int>(),
                      .few_rows = below(3),
                      .region_tokens = seed % 4 ? tokens : std::vector<int>(),
                      .failing_captures = below(3) ? 0 : 1,
                      .late_copies = below(2) == 0,
                      .shuffle = seed}));
    std::vector<Ask> asks;
    for (int i = 0; i < 20; ++i) {
      Ask ask{.max_tokens = 1 + below(20), .arrives = below(60), .tells = below(4) == 0};
      ask.prompt = ids(below(3) * 11, below(3));
      for (int t = 0; t < 1 + below(25); ++t) ask.prompt.push_back(below(3));
      asks.push_back(std::move(ask));
    }
    expect_all(asks, run(asks));
    const StepCounters& c = counters();
    EXPECT_EQ(c.num_steps, c.num_replays + c.num_piecewise + c.num_eager);
    if (setup_.region_tokens.empty()) {
      EXPECT_EQ(c.num_piecewise, 0);
    }
    sum.num_replays += c.num_replays;
    sum.num_piecewise += c.num_piecewise;
    sum.num_eager += c.num_eager;
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(sum.num_replays, 500);
  EXPECT_GT(sum.num_piecewise, 1000);
  EXPECT_GT(sum.num_eager, 300);
}

}  // namespace
}  // namespace mstar::engine
