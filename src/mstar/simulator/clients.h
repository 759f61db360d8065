// The clients of a simulated deployment: what they ask, and what they saw.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "mstar/conductor/frontend.h"
#include "mstar/simulator/simulation.h"

namespace mstar::simulator {

// Draws the requests of a load, in their order.
class RequestSource {
 public:
  explicit RequestSource(const SimulatedLoad& load);
  decl::ApiRequest next();

 private:
  int draw(std::pair<int, int> range);
  std::vector<double> random_ids(int count);
  const SimulatedLoad& load_;
  std::mt19937_64 random_;
  std::vector<std::vector<double>> chats_;
};

// What one request's client saw, in virtual time.
struct Seen {
  std::int64_t sent_ns = 0, first_ns = -1, last_ns = -1, end_ns = -1;
  int num_tokens = 0, num_ends = 0;
  bool failed = false;
  std::int64_t prompt_tokens = 0, cached_tokens = 0;
};

// `gaps_s`: between tokens. `from_ns`: when the first request was sent.
SimulationReport report_of(const std::vector<Seen>& seen, std::vector<double> gaps_s, std::int64_t from_ns);

}  // namespace mstar::simulator
