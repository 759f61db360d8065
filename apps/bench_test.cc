#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench_report.h"
#include "bench_server.h"

namespace mstar::apps {
namespace {

BenchReport report() {
  BenchReport out;
  out.config.url = *load::parse_http_url("http://127.0.0.1:8000");
  out.config.workload.model = "m";
  out.config.workload.input_tokens = {16, 512};
  out.config.workload.seed = 9;
  out.config.concurrency = 4;
  out.command = {"mstar", "bench"};
  load::RequestRecord record{.output_tokens = 3, .end_us = 2000, .piece_us = {1000, 1500, 1900}};
  record.usage = load::TokenUsage{.prompt_tokens = 5, .completion_tokens = 4};
  load::RequestRecord failed;
  failed.failure = "http 503";
  failed.message = "no room";
  out.summary = load::summarise({record, failed}, 2000);
  return out;
}

TEST(BenchTable, SaysWhatWasMeasured) {
  BenchReport r = report();
  std::string table = bench_table(r);
  for (const char* text :
       {"http://127.0.0.1:8000/v1/completions, model m", "closed loop of 4 clients", "16-512 tokens", "seed 9",
        "1 went well, 1 failed, 1 open at most", "1 x http 503: no room", "2000.0 tokens/s: 4",
        "4 tokens by the server's usage, 3 pieces of text; they differ in 1 request", "first text (TTFT)",
        "|gap - median|"})
    EXPECT_NE(table.find(text), table.npos) << text << "\n" << table;
  EXPECT_EQ(table.find("server's CPU"), table.npos);
  EXPECT_EQ(table.find("Stopped"), table.npos);
  r.server_cpu_s = 0.00003;
  r.stopped = true;
  table = bench_table(r);
  EXPECT_NE(table.find("10.00 us a piece"), table.npos) << table;
  EXPECT_NE(table.find("Stopped before the end"), table.npos);
  r.summary = load::summarise({}, 0);
  EXPECT_EQ(bench_table(r).find("TTFT"), table.npos);
}

TEST(BenchJson, HoldsEverything) {
  BenchReport r = report();
  r.server_cpu_s = 0.00003;
  const auto json = nlohmann::json::parse(bench_json(r));
  EXPECT_EQ(json["command"], (std::vector<std::string>{"mstar", "bench"}));
  EXPECT_EQ(json["seed"], 9);
  EXPECT_FALSE(json["version"].get<std::string>().empty());
  EXPECT_GT(json["machine"]["cores"], 0);
  EXPECT_EQ(json["config"]["input"], "16-512");
  EXPECT_EQ(json["config"]["concurrency"], 4);
  EXPECT_FALSE(json["config"].contains("rate"));
  EXPECT_EQ(json["figures"]["failures"]["http 503"], 1);
  EXPECT_EQ(json["figures"]["usage_tokens"], 4);
  EXPECT_EQ(json["figures"]["pieces"], 3);
  EXPECT_EQ(json["figures"]["e2e_ms"]["p99"], 2.0);
  EXPECT_NEAR(json["figures"]["server_cpu_us_per_piece"], 10, 1e-6);
}

TEST(BenchReport, KeepsNoKey) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(without_api_key({"mstar", "--api-key", "secret", "--url", "u"}),
            (Words{"mstar", "--api-key", "***", "--url", "u"}));
  EXPECT_EQ(without_api_key({"--api-key=secret"}), (Words{"--api-key=***"}));
  EXPECT_EQ(without_api_key({"--api-key"}), (Words{"--api-key"}));
}

TEST(CpuTime, OfStatAndOfThisProcess) {
  EXPECT_EQ(cpu_ticks("12 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0"), 42);
  EXPECT_EQ(cpu_ticks("12 (a) S 1 2 3"), -1);
  EXPECT_EQ(cpu_ticks(""), -1);
  const auto before = cpu_time_us(::getpid());
  ASSERT_TRUE(before);
  EXPECT_GE(*cpu_time_us(::getpid()), *before);
  EXPECT_FALSE(cpu_time_us(0x7FFFFFFF));
}

TEST(BenchProgress, Line) {
  EXPECT_EQ(bench_progress({.num_ended = 3, .num_open = 2, .num_pieces = 100}, 9, 2.0),
            "3 of 9 requests, 2 open, 50 pieces of text/s");
  EXPECT_EQ(bench_progress({.num_failed = 1}, 9, 0), "0 of 9 requests, 0 open, 0 pieces of text/s, 1 failed");
}

}  // namespace
}  // namespace mstar::apps
