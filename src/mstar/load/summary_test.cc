#include "mstar/load/summary.h"

#include <gtest/gtest.h>

namespace mstar::load {
namespace {

RequestRecord record(std::int64_t begin_ms, std::vector<std::int64_t> piece_ms, std::int64_t end_ms) {
  RequestRecord out;
  out.output_tokens = static_cast<int>(piece_ms.size());
  out.due_us = out.begin_us = begin_ms * 1000;
  out.end_us = end_ms * 1000;
  for (const std::int64_t each : piece_ms) out.piece_us.push_back(each * 1000);
  out.usage = TokenUsage{.prompt_tokens = 10, .completion_tokens = out.output_tokens};
  return out;
}

TEST(Distribution, PercentilesAsNumpyHasThem) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Distribution d = distribution(values);
  EXPECT_EQ(d.num, 100);
  EXPECT_NEAR(d.mean, 50.5, 1e-9);
  EXPECT_NEAR(d.p50, 50.5, 1e-9);
  EXPECT_NEAR(d.p95, 95.05, 1e-9);
  EXPECT_NEAR(d.p99, 99.01, 1e-9);
  EXPECT_EQ(d.max, 100);
  EXPECT_EQ(distribution({3}).p99, 3);
  EXPECT_EQ(distribution({}).num, 0);
}

TEST(Summary, TimesAndRates) {
  std::vector<RequestRecord> records = {record(0, {100, 110, 130}, 140), record(50, {250}, 1000)};
  records[1].due_us = 20'000;  // an open loop that was late by 30 ms
  const Summary s = summarise(records, 1'000'000);
  EXPECT_EQ(s.num_requests, 2);
  EXPECT_EQ(s.max_open, 2);
  EXPECT_EQ(s.ttft_ms.max, 230);
  EXPECT_EQ(s.e2e_ms.max, 980);
  EXPECT_EQ(s.late_ms.max, 30);
  EXPECT_EQ(s.gap_ms.num, 2);
  EXPECT_EQ(s.gap_ms.p50, 15);
  EXPECT_EQ(s.jitter_ms.max, 5);
  EXPECT_EQ(s.output_tokens, 4);
  EXPECT_EQ(s.output_tokens_per_s, 4);
  EXPECT_EQ(s.prompt_tokens_per_s, 20);
  EXPECT_EQ(s.requests_per_s, 2);
  EXPECT_TRUE(s.counted_by_usage);
  EXPECT_EQ(s.num_differing, 0);
  EXPECT_EQ(s.num_short, 0);
}

TEST(Summary, BothCountsAreKept) {
  std::vector<RequestRecord> records = {record(0, {1, 2, 3}, 4), record(0, {1}, 4)};
  records[0].usage->completion_tokens = 5;  // two tokens had no text of their own
  records[0].output_tokens = 6;
  Summary s = summarise(records, 1000);
  EXPECT_EQ(s.num_pieces, 4);
  EXPECT_EQ(s.usage_tokens, 6);
  EXPECT_EQ(s.output_tokens, 6);
  EXPECT_EQ(s.num_differing, 1);
  EXPECT_EQ(s.num_short, 1);
  records[1].usage.reset();
  s = summarise(records, 1000);
  EXPECT_FALSE(s.counted_by_usage);
  EXPECT_EQ(s.num_without_usage, 1);
  EXPECT_EQ(s.output_tokens, 4);
}

TEST(Summary, FailuresByKindStayOutOfTheTimes) {
  std::vector<RequestRecord> records = {record(0, {1}, 2), record(0, {500}, 600), record(0, {}, 5), record(0, {}, 6),
                                        record(0, {3}, 7)};
  records[1].failure = "timeout";
  records[2].failure = records[3].failure = "http 503";
  records[2].message = "busy";
  records[4].interrupted = true;
  const Summary s = summarise(records, 10'000);
  EXPECT_EQ(s.num_requests, 1);
  EXPECT_EQ(s.num_failed, 3);
  EXPECT_EQ(s.num_interrupted, 1);
  EXPECT_EQ(s.failures.at("http 503"), 2);
  EXPECT_EQ(s.failures.at("timeout"), 1);
  EXPECT_EQ(s.messages.at("http 503"), "busy");
  EXPECT_EQ(s.e2e_ms.max, 2);
  EXPECT_EQ(s.output_tokens, 1);
}

TEST(Summary, OfNothing) {
  const Summary s = summarise({}, 0);
  EXPECT_EQ(s.output_tokens_per_s, 0);
  EXPECT_EQ(s.max_open, 0);
  EXPECT_FALSE(s.counted_by_usage);
}

}  // namespace
}  // namespace mstar::load
