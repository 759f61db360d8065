// One recording on its way through the runtime: gathers its segments and tells how far it is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "mstar/conductor/frontend.h"
#include "output_files.h"
#include "progress.h"
#include "transcript_text.h"

namespace mstar::apps {

// Wakes the command's thread when any job moved on, or when it is to stop. Thread: any.
class Wakeup {
 public:
  void notify() {
    std::lock_guard lock(mutex_);
    raised_ = true;
    changed_.notify_all();
  }
  // Until notify() was called since the last wait, or the time is over.
  void wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [this] { return raised_; });
    raised_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
};

// Thread: on_event the runtime's; the rest any.
class TranscribeJob final : public EventSink, public std::enable_shared_from_this<TranscribeJob> {
 public:
  using Clock = std::chrono::steady_clock;

  TranscribeJob(InputFile input, std::shared_ptr<Wakeup> wakeup)
      : input_(std::move(input)), wakeup_(std::move(wakeup)) {}

  // Hands the recording's bytes to the runtime; any error becomes the job's. The job must be owned by a shared_ptr: the
  // runtime holds it until its last event.
  void start(Frontend& frontend, decl::ApiRequest request, Result<HostValue> bytes);
  void abort(Frontend& frontend);
  void on_event(RequestEvent event) override;

  const InputFile& input() const { return input_; }
  bool ended() const;
  // After the end: nothing when the whole recording was heard.
  std::optional<Error> error() const;
  // What there is so far.
  Transcript transcript() const;
  FileProgress progress() const;

 private:
  void fail(Error error);

  const InputFile input_;
  const std::shared_ptr<Wakeup>
      wakeup_;                // shared with the command and the other jobs: events may come after the command left
  mutable std::mutex mutex_;  // guards all below
  RequestId request_;
  Transcript transcript_;
  std::optional<double> duration_s_;
  Clock::time_point started_{}, ended_at_{};
  bool ended_ = false;
  std::optional<Error> error_;
};

}  // namespace mstar::apps
