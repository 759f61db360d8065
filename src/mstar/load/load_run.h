// A load test: many streamed completions against one server, with the arrival time of each piece.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/load/completion_event.h"
#include "mstar/load/http_url.h"
#include "mstar/load/workload.h"

namespace mstar::load {

enum class LoadMode {
  closed,   // `concurrency` clients, each with one request after the other
  open,     // requests come at their times, however many are open
  offline,  // all at once
};

struct LoadConfig {
  HttpUrl url;
  std::string api_key;
  Workload workload;
  LoadMode mode = LoadMode::closed;
  int num_requests = 1;
  int concurrency = 1;     // closed
  double rate_per_s = 1;   // open
  double timeout_s = 600;  // of one request, from its start to its end
  int num_threads = 1;
  bool kernel_times = false;      // pieces arrive when the kernel takes them in, not when this process finds them
  std::uint64_t first_index = 0;  // of the workload's requests
};

// Times are microseconds from the start of the run.
struct RequestRecord {
  std::uint64_t index = 0;
  int input_tokens = 0;  // as planned
  int output_tokens = 0;
  std::int64_t due_us = 0;    // when it was to start: open loop; elsewhere begin_us
  std::int64_t begin_us = 0;  // it was sent, or connected for
  std::int64_t end_us = 0;
  std::vector<std::int64_t> piece_us;  // arrival of each event that had text
  std::optional<TokenUsage> usage;
  std::string finish_reason;
  bool interrupted = false;  // the run was stopped while it was open
  std::string failure;       // its kind, such as "connect", "timeout", "http 503"; empty: it went well
  std::string message;       // of the failure
};

struct LoadProgress {
  int num_ended = 0;
  int num_failed = 0;
  int num_open = 0;
  std::int64_t num_pieces = 0;
};

class LoadRun {
 public:
  // unavailable when the host's name is not known.
  static Result<std::unique_ptr<LoadRun>> make(LoadConfig config);
  ~LoadRun();

  // Blocks until all requests have ended or stop() was called. Once. The records are in the order of their indices;
  // what was never begun has none. duration_us() is valid afterwards.
  std::vector<RequestRecord> run();
  // Any thread, any time.
  void stop();
  LoadProgress progress() const;
  std::int64_t duration_us() const { return duration_us_; }  // to the end of the last request

  struct Shared;

 private:
  explicit LoadRun(std::unique_ptr<Shared> shared);
  std::unique_ptr<Shared> shared_;
  std::int64_t duration_us_ = 0;
};

// GET of a path, for a look at the server before the load. Blocks, `timeout_s` at most.
struct PlainAnswer {
  int status = 0;
  std::string server;  // its header Server
  std::string body;
};
// unavailable when nothing answers, invalid_request when what answers speaks no HTTP.
Result<PlainAnswer> http_get(const HttpUrl& url, const std::string& target, const std::string& api_key,
                             double timeout_s = 10);

}  // namespace mstar::load
