#include "mstar/conductor/split_frontend.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace mstar::conductor {

// One request of parts. A thread of its own makes them; their events come from the inner frontend's. Owners: the
// frontend's table, the thread and the parts' sinks.
class SplitFrontend::Work final : public std::enable_shared_from_this<Work> {
 public:
  Work(SplitFrontend& owner, RequestId id, std::unique_ptr<decl::Splitter> splitter, std::shared_ptr<EventSink> sink)
      : owner_(owner), id_(id), splitter_(std::move(splitter)), sink_(std::move(sink)) {}

  void start() {
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }

  void end(Error error) {
    std::unique_lock lock(mutex_);
    if (ended_) return;
    finish_with(RequestEvent(Failed{std::move(error)}), lock);
  }

 private:
  class PartSink final : public EventSink {
   public:
    PartSink(std::shared_ptr<Work> work, std::size_t part) : work_(std::move(work)), part_(part) {}
    void on_event(RequestEvent event) override { work_->on_event(part_, std::move(event)); }

   private:
    const std::shared_ptr<Work> work_;
    const std::size_t part_;
  };
  struct Part {
    RequestId request;                // invalid until the inner frontend has it, and once it has ended
    std::vector<decl::Chunk> chunks;  // of one whose turn has not come
    bool ended = false;
  };

  void run() {
    Status done = ok_status();
    try {
      done = make_parts();
    } catch (const std::exception& error) {
      done = internal_error(std::string("a request could not be split: ") + error.what());
    }
    if (!done) end(std::move(done.error()));
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_; });
      splitter_.reset();
    }
    owner_.forget(id_);  // nothing of the owner is touched after it
  }

  Status make_parts() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ended_ || may_begin(); });
        if (ended_) return ok_status();
      }
      MSTAR_TRY_ASSIGN(std::optional<decl::ApiRequest> next, splitter_->next([this] { return is_ended(); }));
      if (!next) break;
      MSTAR_TRY(submit(std::move(*next)));
    }
    std::unique_lock lock(mutex_);
    has_all_ = true;
    finish_if_done(lock);
    return ok_status();
  }

  // Few enough run, and few enough wait for those before them.
  bool may_begin() const {
    const auto most = static_cast<std::size_t>(owner_.options_.most_running);
    if (parts_.empty()) return true;
    if (splitter_->first_goes_ahead() && !parts_.front().ended) return false;
    return num_running_ < most && parts_.size() < next_told_ + 4 * most;
  }

  bool is_ended() const {
    std::lock_guard lock(mutex_);
    return ended_;
  }

  // Waits for a place.
  Status submit(decl::ApiRequest request) {
    std::size_t part = 0;
    {
      std::lock_guard lock(mutex_);
      part = parts_.size();
      parts_.emplace_back();
      ++num_running_;
    }
    for (;;) {
      auto id = owner_.inner_.submit(request, std::make_shared<PartSink>(shared_from_this(), part));
      std::unique_lock lock(mutex_);
      if (id) {
        if (!parts_[part].ended) parts_[part].request = *id;
        const bool late = ended_;
        lock.unlock();
        if (late) owner_.inner_.abort(*id);
        return ok_status();
      }
      if (ended_) return ok_status();
      if (id.error().code != Code::exhausted) return std::move(id.error());
      changed_.wait_for(lock, owner_.options_.retry, [this] { return ended_; });
      if (ended_) return ok_status();
    }
  }

  void on_event(std::size_t at, RequestEvent event) {
    std::unique_lock lock(mutex_);
    Part& part = parts_[at];
    if (ended_ || part.ended) return;
    if (auto* const failed = std::get_if<Failed>(&event))
      return finish_with(RequestEvent(Failed{std::move(failed->error)}), lock);
    if (auto* const chunk = std::get_if<decl::Chunk>(&event)) {
      part.chunks.push_back(std::move(*chunk));
    } else {
      auto& finished = std::get<Finished>(event);
      part.ended = true;
      part.request = RequestId();
      --num_running_;
      add(finished);
      splitter_->learn(at, finished.metadata);
      changed_.notify_all();
    }
    tell(lock);
  }

  void add(const Finished& finished) {
    usage_.prompt_tokens += finished.usage.prompt_tokens;
    usage_.completion_tokens += finished.usage.completion_tokens;
    usage_.audio_seconds += finished.usage.audio_seconds;
    if (finished.finish == decl::Finish::length) finish_ = decl::Finish::length;
  }

  // What has its turn, in order.
  void tell(std::unique_lock<std::mutex>& lock) {
    while (next_told_ < parts_.size()) {
      Part& part = parts_[next_told_];
      for (decl::Chunk& chunk : std::exchange(part.chunks, {})) {
        auto restored = splitter_->restore(next_told_, std::move(chunk));
        if (!restored) return finish_with(RequestEvent(Failed{std::move(restored.error())}), lock);
        sink_->on_event(std::move(*restored));
      }
      if (!part.ended) break;
      ++next_told_;
    }
    finish_if_done(lock);
  }

  void finish_if_done(std::unique_lock<std::mutex>& lock) {
    if (ended_ || !has_all_ || next_told_ < parts_.size()) return;
    finish_with(RequestEvent(Finished{finish_, usage_, splitter_->metadata()}), lock);
  }

  void finish_with(RequestEvent event, std::unique_lock<std::mutex>& lock) {
    ended_ = true;
    std::vector<RequestId> running;
    for (const Part& each : parts_)
      if (each.request.valid() && !each.ended) running.push_back(each.request);
    sink_->on_event(std::move(event));
    changed_.notify_all();
    lock.unlock();
    for (const RequestId each : running) owner_.inner_.abort(each);
  }

  SplitFrontend& owner_;
  const RequestId id_;
  std::unique_ptr<decl::Splitter> splitter_;
  const std::shared_ptr<EventSink> sink_;
  mutable std::mutex mutex_;  // guards what follows; held while the sink hears, which must not block
  std::condition_variable changed_;
  std::vector<Part> parts_;
  std::size_t num_running_ = 0;
  std::size_t next_told_ = 0;  // the part whose chunks go out as they come
  bool has_all_ = false;       // no more parts will come
  bool ended_ = false;         // the sink has heard its last event
  Usage usage_;
  decl::Finish finish_ = decl::Finish::stop;
};

SplitFrontend::SplitFrontend(Frontend& inner, SplitOptions options) : inner_(inner), options_(std::move(options)) {}

SplitFrontend::~SplitFrontend() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto left = works_;
  lock.unlock();
  for (const auto& each : left) each.second->end(cancelled("the runtime has stopped"));
  lock.lock();
  changed_.wait(lock, [this] { return works_.empty(); });
}

Result<std::vector<RequestId>> SplitFrontend::submit_call(CallRequests call) {
  // Only single requests are split: several choices of one recording have no use.
  if (call.requests.size() != 1 || call.choices_per_request != 1) return inner_.submit_call(std::move(call));
  std::unique_ptr<decl::Splitter> splitter;
  try {
    MSTAR_TRY_ASSIGN(splitter, options_.split(call.requests.front()));
  } catch (const std::exception& error) {
    return internal_error(std::string("the request could not be read: ") + error.what());
  }
  if (!splitter) return inner_.submit_call(std::move(call));
  const RuntimeState state = inner_.state();
  if (!state.ready) return unavailable(state.reason.empty() ? "the server is not ready" : state.reason);
  const RequestId id(next_id_++);
  auto work = std::make_shared<Work>(*this, id, std::move(splitter), std::move(call.sinks.front()));
  {
    std::lock_guard lock(mutex_);
    if (draining_) return unavailable("the server is shutting down");
    if (works_.size() >= static_cast<std::size_t>(options_.most_requests))
      return exhausted("too many long requests run already; try again shortly");
    works_.emplace(id, work);
  }
  work->start();
  return std::vector<RequestId>{id};
}

void SplitFrontend::abort(RequestId request) {
  std::shared_ptr<Work> work;
  {
    std::lock_guard lock(mutex_);
    const auto found = works_.find(request);
    if (found != works_.end()) work = found->second;
  }
  if (work) return work->end(cancelled("the request was aborted"));
  inner_.abort(request);
}

void SplitFrontend::forget(RequestId request) {
  std::shared_ptr<Work> last;  // ends after the lock
  std::lock_guard lock(mutex_);
  const auto found = works_.find(request);
  last = std::move(found->second);
  works_.erase(found);
  changed_.notify_all();
}

bool SplitFrontend::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  return changed_.wait_for(lock, timeout, [this] { return works_.empty(); });
}

}  // namespace mstar::conductor
