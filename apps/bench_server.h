// The server under a load test, looked at from outside.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/load/load_run.h"

namespace mstar::apps {

struct BenchServer {
  std::string software;             // its header Server; may be empty
  std::vector<std::string> models;  // that it lists; empty where it has no such list
  std::string model;                // to ask for
};

// Asks for the list of models, and chooses `wanted`, or the only one there is. unavailable when nothing answers,
// invalid_request when the key is refused or a model must be named; the messages say what to do.
Result<BenchServer> look_at_server(const load::HttpUrl& url, const std::string& api_key, const std::string& wanted);

// One request of the workload for a single token, so that what the server refuses of all of them is said once.
Status probe_server(const load::LoadConfig& config, const BenchServer& server);

// Microseconds of CPU, user and system, that the process and its children have used so far. Their clock ticks are
// hundredths of a second on most machines. invalid_request when there is no such process.
Result<std::int64_t> cpu_time_us(int pid);
// Of the text of /proc/PID/stat, in clock ticks; -1 when it is none.
std::int64_t cpu_ticks(const std::string& stat);

}  // namespace mstar::apps
