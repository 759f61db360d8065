// A discrete-event simulation of a deployment: the conductor and the workers as they are, clients, messages and steps
// as events of virtual time.
//
// Real: everything in conductor/, worker/, graph/, and of the engine all but the forward: admission, pages, parts of
// prompts, prefixes, running ahead, when the next step is built. Modelled: a step's time (StepCosts), the time of
// messages, of clients and of the conductor's own work, by constants.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/conductor/conductor.h"
#include "mstar/models/toy/step_costs.h"

namespace mstar::simulator {

struct SimulatedDeployment {
  models::StepCosts costs;
  int num_replicas = 1;
  conductor::Routing routing = conductor::Routing::least_loaded;
  int prefix_excess = 4;
  bool prefix_cache = true;
  int max_rows = 256;               // of a step
  int max_concurrent_requests = 0;  // of all replicas; 0: all that the load has at once
  int context_tokens = 1 << 14;
  std::int64_t kv_tokens = 0;  // places of a replica; 0: the worst case of twice its share of the requests
  std::uint64_t seed = 0;      // of the conductor's choices
};

struct SimulatedLoad {
  int num_requests = 100;
  int num_clients = 1;    // each sends its next request when it has its answer; 0: see rate_per_s
  double rate_per_s = 0;  // requests come by themselves, at random times
  std::pair<int, int> prompt_tokens = {64, 64};  // drawn between these
  std::pair<int, int> reply_tokens = {16, 16};
  // Conversations that the requests are turns of: a prompt is what its conversation has so far, cut to its first 64
  // tokens when it is longer than prompt_tokens.second, and 8 to 64 tokens more. 0: prompts share nothing.
  int num_chats = 0;
  std::uint64_t seed = 0;
};

struct Distribution {
  double mean = 0, p50 = 0, p95 = 0, p99 = 0;
  static Distribution of(std::vector<double> values);
};

struct SimulationReport {
  int num_requests = 0;  // that ended well
  int num_failed = 0;
  std::int64_t num_tokens = 0;
  double seconds = 0;  // virtual, from the first request to the last answer's end
  double tokens_per_s = 0;
  Distribution ttft_s, latency_s, gap_s;  // as clients see them; gaps are between the tokens of one answer
  double cached = 0;                      // of the prompts' tokens
  double busy = 0;                        // of the devices' time
  double conductor_busy = 0;
  std::vector<double> shares;  // of the steps' rows, by replica
  std::int64_t num_events = 0;
  // Of each request in the order of submission: its end, and how many events of an end it had. For tests.
  std::vector<double> end_s;
  std::vector<int> num_ends;
};

// The same report for the same arguments. bad_model or invalid_request where the deployment or the load cannot be;
// internal when something is left over at the end. Cost: some microseconds a token.
Result<SimulationReport> simulate(const SimulatedDeployment& deployment, const SimulatedLoad& load);

}  // namespace mstar::simulator
