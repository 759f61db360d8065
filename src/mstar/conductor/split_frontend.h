// Requests that are answered in parts, in front of a runtime that knows whole ones only.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "mstar/conductor/frontend.h"
#include "mstar/decl/split.h"

namespace mstar::conductor {

struct SplitOptions {
  // Null where the model does not split the request (decl::Surface::split); the intake's errors.
  decl::MakeSplitter split;
  int most_running = 16;    // parts of one request at a time
  int most_requests = 256;  // that are split at a time; more are exhausted
  // How long a part waits that finds no place, while no other one of its request runs.
  std::chrono::milliseconds retry{50};
};

// Parts are submitted as others end, so that other requests get their turns. A request of parts counts as none of the
// inner frontend's by itself; its parts do. It fails with the first part that does, and then, as when it is aborted, no
// part of it runs on. Everything else goes straight to the inner frontend, which outlives this.
// Thread: any.
class SplitFrontend final : public Frontend {
 public:
  SplitFrontend(Frontend& inner, SplitOptions options);
  // Ends what is left as cancelled.
  ~SplitFrontend() override;

  Result<std::vector<RequestId>> submit_call(CallRequests call) override;
  void abort(RequestId request) override;
  Status push(RequestId request, std::string_view port, const HostValue& value, bool done) override {
    return inner_.push(request, port, value, done);
  }
  std::vector<ServedModel> models() const override { return inner_.models(); }
  Result<decl::TextCodec> text_codec(std::string_view model) const override { return inner_.text_codec(model); }
  RuntimeState state() const override { return inner_.state(); }
  std::vector<WorkerInfo> workers() const override { return inner_.workers(); }
  Result<WorkerInfo> order_worker(int rank, WorkerOrder order) override { return inner_.order_worker(rank, order); }
  std::string metrics_text() const override { return inner_.metrics_text(); }
  Result<std::string> profile_json() const override { return inner_.profile_json(); }

  // Takes no more requests of parts, and waits until those that there are have ended. False after the time.
  bool drain(std::chrono::milliseconds timeout);

 private:
  class Work;
  void forget(RequestId request);

  Frontend& inner_;
  const SplitOptions options_;
  std::mutex mutex_;  // guards the next three
  std::condition_variable changed_;
  std::map<RequestId, std::shared_ptr<Work>> works_;
  bool draining_ = false;
  std::atomic<std::uint64_t> next_id_{std::uint64_t{1} << 62};  // the inner frontend counts from 1
};

}  // namespace mstar::conductor
