// What a deployment would do: replicas, routing and load as flags, steps as a table says (bench/costs/*.json).
//
//   simulate COSTS.json [--replicas 1,2,4] [--routing random,least_loaded,prefix] [--clients 32,64 | --rate 10,20]
//            [--requests N] [--prompt LO HI] [--reply LO HI] [--chats N] [--max-rows N] [--seeds 1] [--seed 0]
//            [--no-prefix-cache] [--prefix-excess 4] [--per-replica]
//
// Clients and rates are those of all replicas together, with --per-replica those of each; so is the number of requests,
// which is 8 for each client if it is missing. With several seeds the numbers are means over them. Times to the first
// token and gaps between tokens are milliseconds; least and most are the rows of the replica with the fewest and the
// most, of an even share.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "mstar/base/log.h"
#include "mstar/simulator/simulation.h"

namespace mstar::simulator {
namespace {

struct Flags {
  std::string costs;
  std::vector<double> replicas = {1}, clients, rates;
  std::vector<std::string> routings = {"least_loaded"};
  SimulatedDeployment deployment;
  SimulatedLoad load;
  int requests = 0, seeds = 1;
  std::uint64_t seed = 0;
  bool per_replica = false;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream list(text);
  for (std::string each; std::getline(list, each, ',');) out.push_back(each);
  return out;
}
std::vector<double> numbers(const std::string& text) {
  std::vector<double> out;
  for (const std::string& each : split(text)) out.push_back(std::atof(each.c_str()));
  return out;
}

bool read_flags(int argc, char** argv, Flags& flags) {
  int at = 1;
  const auto next = [&] { return at < argc ? std::string(argv[at++]) : std::string(); };
  const auto range = [&](std::pair<int, int>& to) {
    to.first = std::atoi(next().c_str());
    to.second = std::atoi(next().c_str());
  };
  flags.costs = next();
  while (at < argc) {
    const std::string flag = next();
    if (flag == "--replicas") {
      flags.replicas = numbers(next());
    } else if (flag == "--routing") {
      flags.routings = split(next());
    } else if (flag == "--clients") {
      flags.clients = numbers(next());
    } else if (flag == "--rate") {
      flags.rates = numbers(next());
    } else if (flag == "--requests") {
      flags.requests = std::atoi(next().c_str());
    } else if (flag == "--prompt") {
      range(flags.load.prompt_tokens);
    } else if (flag == "--reply") {
      range(flags.load.reply_tokens);
    } else if (flag == "--chats") {
      flags.load.num_chats = std::atoi(next().c_str());
    } else if (flag == "--max-rows") {
      flags.deployment.max_rows = std::atoi(next().c_str());
    } else if (flag == "--seeds") {
      flags.seeds = std::atoi(next().c_str());
    } else if (flag == "--seed") {
      flags.seed = static_cast<std::uint64_t>(std::atoll(next().c_str()));
    } else if (flag == "--prefix-excess") {
      flags.deployment.prefix_excess = std::atoi(next().c_str());
    } else if (flag == "--no-prefix-cache") {
      flags.deployment.prefix_cache = false;
    } else if (flag == "--per-replica") {
      flags.per_replica = true;
    } else {
      std::fprintf(stderr, "unknown flag '%s'; the head of simulate.cc lists them\n", flag.c_str());
      return false;
    }
  }
  return !flags.costs.empty();
}

double processor_s() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void add(Distribution& to, const Distribution& from, double share) {
  to.mean += share * from.mean;
  to.p50 += share * from.p50;
  to.p95 += share * from.p95;
  to.p99 += share * from.p99;
}

int simulate_row(const Flags& flags, int replicas, const std::string& routing, double clients, double rate) {
  SimulatedDeployment deployment = flags.deployment;
  SimulatedLoad load = flags.load;
  deployment.num_replicas = replicas;
  deployment.context_tokens = std::max(2048, load.prompt_tokens.second + load.reply_tokens.second + 128);
  deployment.routing = routing == "random"   ? conductor::Routing::random
                       : routing == "prefix" ? conductor::Routing::prefix
                                             : conductor::Routing::least_loaded;
  const int scale = flags.per_replica ? replicas : 1;
  load.num_clients = static_cast<int>(clients) * scale;
  load.rate_per_s = rate * scale;
  load.num_requests = flags.requests > 0 ? flags.requests * scale : 8 * std::max(load.num_clients, 64 * replicas / 8);
  SimulationReport sum;
  double least = 1, most = 0;
  const double begun = processor_s();
  for (int i = 0; i < flags.seeds; ++i) {
    deployment.seed = load.seed = flags.seed + static_cast<std::uint64_t>(i);
    const auto report = simulate(deployment, load);
    if (!report) {
      std::fprintf(stderr, "%s\n", report.error().message.c_str());
      return 1;
    }
    const double share = 1.0 / flags.seeds;
    sum.num_failed += report->num_failed;
    sum.tokens_per_s += share * report->tokens_per_s;
    sum.cached += share * report->cached;
    sum.busy += share * report->busy;
    sum.conductor_busy += share * report->conductor_busy;
    sum.num_tokens += report->num_tokens;
    add(sum.ttft_s, report->ttft_s, share);
    add(sum.latency_s, report->latency_s, share);
    add(sum.gap_s, report->gap_s, share);
    for (const double each : report->shares) {
      least = std::min(least, each);
      most = std::max(most, each);
    }
  }
  const double spent = processor_s() - begun;
  std::printf(
      "%-13s %8d %7.0f %8.1f %10.0f %8.2f %8.2f %8.3f %8.3f %8.3f %8.3f %7.1f %6.1f %6.2f %9.2f %9.2f %6d %7.1f "
      "%6.2f\n",
      routing.c_str(), replicas, clients * scale, rate * scale, sum.tokens_per_s, 1e3 * sum.ttft_s.p50,
      1e3 * sum.ttft_s.p95, sum.latency_s.mean, sum.latency_s.p95, 1e3 * sum.gap_s.p50, 1e3 * sum.gap_s.p99,
      100 * sum.cached, 100 * sum.busy, 100 * sum.conductor_busy, least * replicas, most * replicas, sum.num_failed,
      spent, 1e6 * spent / static_cast<double>(std::max<std::int64_t>(1, sum.num_tokens)));
  std::fflush(stdout);
  return 0;
}

int run(int argc, char** argv) {
  Flags flags;
  if (!read_flags(argc, argv, flags)) return 2;
  set_log_level("warn");  // not of each worker that it has loaded
  auto costs = models::read_step_costs(flags.costs);
  if (!costs) {
    std::fprintf(stderr, "%s\n", costs.error().message.c_str());
    return 1;
  }
  flags.deployment.costs = std::move(*costs);
  std::printf("%-13s %8s %7s %8s %10s %8s %8s %8s %8s %8s %8s %7s %6s %6s %9s %9s %6s %7s %6s\n", "routing", "replicas",
              "clients", "rate", "tokens/s", "ttft_p50", "ttft_p95", "mean_s", "p95_s", "gap_p50", "gap_p99", "cached%",
              "busy%", "cond%", "least", "most", "failed", "cpu_s", "us/tok");
  if (flags.clients.empty() && flags.rates.empty()) flags.clients = {32};
  for (const double replicas : flags.replicas)
    for (const std::string& routing : flags.routings) {
      for (const double each : flags.clients)
        if (const int failed = simulate_row(flags, static_cast<int>(replicas), routing, each, 0)) return failed;
      for (const double each : flags.rates)
        if (const int failed = simulate_row(flags, static_cast<int>(replicas), routing, 0, each)) return failed;
    }
  return 0;
}

}  // namespace
}  // namespace mstar::simulator

int main(int argc, char** argv) { return mstar::simulator::run(argc, argv); }
