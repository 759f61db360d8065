// The figures of a load test.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mstar/load/load_run.h"

namespace mstar::load {

// Of a set of numbers; all 0 when there are none. Percentiles lie between two neighbours in proportion, as numpy's do.
struct Distribution {
  std::int64_t num = 0;
  double mean = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
};
Distribution distribution(std::vector<double> values);

struct Summary {
  double duration_s = 0;
  int num_requests = 0;  // that went well
  int num_failed = 0;
  int num_interrupted = 0;
  std::map<std::string, int> failures;          // by kind
  std::map<std::string, std::string> messages;  // one for each kind
  int max_open = 0;                             // requests at the same time

  // Of the requests that went well. Tokens are counted twice: as pieces of text that came, and as the server's usage
  // says.
  std::int64_t num_pieces = 0;
  std::int64_t usage_tokens = 0;
  std::int64_t prompt_tokens = 0;  // of usage; 0 where there is none
  std::int64_t cached_tokens = 0;
  int num_without_usage = 0;
  int num_differing = 0;          // requests whose two counts are not the same
  int num_short = 0;              // requests with fewer tokens than asked for
  bool counted_by_usage = false;  // every request has its usage; output_tokens are from there, else from the pieces
  std::int64_t output_tokens = 0;
  double output_tokens_per_s = 0, pieces_per_s = 0, prompt_tokens_per_s = 0, requests_per_s = 0;

  // Milliseconds. Open loop: times to the first piece and to the end begin when the request was due.
  Distribution ttft_ms;    // to the first piece
  Distribution gap_ms;     // between two pieces of a request (ITL)
  Distribution e2e_ms;     // to the end
  Distribution jitter_ms;  // |gap - median of all gaps|
  Distribution late_ms;    // open loop: begun later than due; the client's fault
};

Summary summarise(const std::vector<RequestRecord>& records, std::int64_t duration_us);

}  // namespace mstar::load
