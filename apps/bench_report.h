// A load test's figures for people and for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mstar/load/load_run.h"
#include "mstar/load/summary.h"

namespace mstar::apps {

struct BenchReport {
  load::LoadConfig config;
  std::string server;                // its header Server
  std::vector<std::string> command;  // without the API key
  load::Summary summary;
  std::optional<double> server_cpu_s;
  bool stopped = false;  // before its end
};

// Several lines.
std::string bench_table(const BenchReport& report);
// One object: command, seed, versions, machine, configuration, figures.
std::string bench_json(const BenchReport& report);
// What a terminal shows meanwhile.
std::string bench_progress(const load::LoadProgress& progress, int num_requests, double elapsed_s);
// Arguments with the value of --api-key replaced by three stars.
std::vector<std::string> without_api_key(std::vector<std::string> arguments);

}  // namespace mstar::apps
