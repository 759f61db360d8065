// What profiles of workers' steps say: a table, JSON, and a timeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mstar/base/step_profile.h"

namespace mstar::apps {

class Runtime;

// Of numbers in any order; 0 of none. The percentiles are the nearest that occurred.
struct Spread {
  double mean = 0, p50 = 0, p95 = 0;
};
Spread spread_of(std::vector<std::int64_t> values);

// For people: a block for each component, kind and size of steps, in microseconds. Empty when no step ran.
std::string profile_table(const std::vector<const StepProfile*>& by_rank);
// {"workers": [{"rank", "steps": [{"model", "component", "kind", "rows", "num_steps", "num_kept", "mean_rows",
// "step_us", "wait_us", "host_us", "exposed_us", "phases": {NAME: {"count", "mean_us", "p50_us", "p95_us",
// "exposed_mean_us"}}}]}]}, where the five with a name in _us and no further word are {"mean", "p50", "p95"}.
std::string profile_json(const std::vector<const StepProfile*>& by_rank);
// Trace events as chrome://tracing and Perfetto read them.
std::string profile_trace(const std::vector<const StepProfile*>& by_rank);

// Prints and writes what the runtime's configuration asks for; faults go to standard error.
void report_profile(const Runtime& runtime);

}  // namespace mstar::apps
