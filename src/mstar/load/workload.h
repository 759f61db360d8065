// The requests of a load test: seeded, so that every run and every server gets the same ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::load {

// Both ends belong to it.
struct Range {
  int least = 0;
  int most = 0;
};
// "128" or "16-512", within 0..limit; invalid_request otherwise.
Result<Range> parse_range(std::string_view text, int limit);

enum class CompletionRoute { completions, chat };

struct Workload {
  CompletionRoute route = CompletionRoute::completions;
  std::string model;
  Range input_tokens{128, 128};
  Range output_tokens{128, 128};
  Range token_ids{1000, 9999};  // of prompts of /v1/completions; a chat's prompt is plain English words instead
  bool ignore_eos = false;
  double temperature = 0;
  std::uint64_t seed = 0;
};

struct PlannedRequest {
  int input_tokens = 0;  // words, for a chat
  int output_tokens = 0;
  std::string path;  // "/v1/completions"
  std::string body;  // JSON
};

// Request number `index`. It depends on (seed, index) alone: not on other requests, the machine or the mode. Pure.
PlannedRequest plan_request(const Workload& workload, std::uint64_t index);

// Seconds from the start of a run at which each of `num_requests` is due: a Poisson stream of `rate` a second. Pure.
std::vector<double> poisson_arrivals(std::uint64_t seed, double rate, int num_requests);

}  // namespace mstar::load
