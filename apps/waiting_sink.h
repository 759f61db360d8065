// An EventSink for callers that wait: chunks go to a function, the end to wait().
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "mstar/conductor/frontend.h"

namespace mstar::apps {

class WaitingSink final : public EventSink {
 public:
  // `on_chunk` runs on the runtime's thread, one call at a time, in order; it must not block for long.
  explicit WaitingSink(std::function<void(const decl::Chunk&)> on_chunk = {}) : on_chunk_(std::move(on_chunk)) {}

  void on_event(RequestEvent event) override {
    if (const auto* chunk = std::get_if<decl::Chunk>(&event)) {
      if (on_chunk_) on_chunk_(*chunk);
      return;
    }
    std::lock_guard lock(mutex_);
    if (auto* failed = std::get_if<Failed>(&event)) end_.emplace(std::move(failed->error));
    if (auto* finished = std::get_if<Finished>(&event)) end_.emplace(std::move(*finished));
    ended_.notify_all();
  }
  // Blocks until the request's one terminal event.
  Result<Finished> wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return end_.has_value(); });
    return *end_;
  }

 private:
  std::function<void(const decl::Chunk&)> on_chunk_;
  std::mutex mutex_;  // guards end_
  std::condition_variable ended_;
  std::optional<Result<Finished>> end_;
};

}  // namespace mstar::apps
