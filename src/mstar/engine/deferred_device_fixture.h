// A device for tests of the engine: work is queued and runs only when somebody waits for it, in order, with the memory
// as it is then; captures are recorded and replayed. So a buffer that the host changes too early gives wrong results
// here, not only on a GPU. Copies of the two other streams run as early as they may, or as late.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "mstar/base/check.h"
#include "mstar/device/cpu/cpu_device.h"

namespace mstar::engine {

class DeferredDevice final : public Device {
 public:
  using Work = std::function<void()>;

  DeviceId id() const override { return {Backend::cuda, 0}; }
  std::string description() const override { return "deferred"; }
  std::size_t total_bytes() const override { return std::size_t{1} << 30; }
  Result<void*> allocate(std::size_t bytes) override {
    if (recording_) return internal_error("memory was asked for while a graph was being captured");
    return host_->allocate(bytes);
  }
  // Waits first, as a GPU does before it frees.
  void release(void* pointer) override {
    run_until(num_queued_);
    host_->release(pointer);
  }
  Result<void*> allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(void* pointer) override { release(pointer); }
  std::int64_t num_allocations() const override { return host_->num_allocations(); }
  Stream default_stream() override { return {}; }
  Stream upload_stream() override { return {&uploads_}; }
  Stream readback_stream() override { return {&readbacks_}; }

  // What a kernel launch is on a GPU.
  void launch(Work work) {
    if (recording_) {
      recorded_.push_back(std::move(work));
    } else {
      queue_.push_back(std::move(work));
      ++num_queued_;
    }
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copy(to, from, bytes, stream);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copy(to, from, bytes, stream);
  }
  void copy_within(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copy(to, from, bytes, stream);
  }
  void fill_zero(void* to, std::size_t bytes, Stream) override {
    launch([=] { std::memset(to, 0, bytes); });
  }
  void synchronize(Stream stream) override {
    if (stream.native == &uploads_) return queue_uploads();
    run_until(num_queued_);
    if (stream.native == &readbacks_) run_readbacks(num_readbacks_);
  }

  Result<std::unique_ptr<Event>> make_event(bool) override { return std::unique_ptr<Event>(new Marker(*this)); }

  bool is_asynchronous() const override { return true; }
  bool supports_capture() const override { return !refuse_capture; }
  Status begin_capture(Stream) override {
    recording_ = true;
    return ok_status();
  }
  Result<std::unique_ptr<CapturedGraph>> end_capture(Stream) override {
    recording_ = false;
    if (std::exchange(fail_captures, std::max(0, fail_captures - 1)) > 0) {
      recorded_.clear();
      return internal_error("the capture was invalidated");
    }
    return std::unique_ptr<CapturedGraph>(new Recorded(*this, std::exchange(recorded_, {})));
  }

  std::int64_t num_copies() const { return num_copies_; }
  // Queued work that has not run.
  std::size_t num_waiting() const { return queue_.size(); }

  bool late_copies = false;  // of the two other streams: when an event lets others wait for them, not when they may
  bool refuse_capture = false;
  int fail_captures = 0;  // so many captures end in an error

 private:
  class Marker final : public Event {
   public:
    explicit Marker(DeferredDevice& device) : device_(device) {}
    void record(Stream stream) override {
      stream_ = stream;
      at_ = is_of_readbacks() ? device_.readbacks_after_ : device_.num_queued_;
      num_readbacks_ = device_.num_readbacks_;
    }
    void wait() override {
      device_.run_until(is_of_readbacks() && device_.late_copies ? device_.num_queued_ : at_);
      if (is_of_readbacks()) device_.run_readbacks(num_readbacks_);
    }
    bool reached() const override { return device_.num_run_ >= at_; }
    void wait_on(Stream stream) override {
      if (stream_.native == &device_.uploads_) device_.queue_uploads();
      if (stream.native == &device_.readbacks_) device_.readbacks_after_ = at_;
    }
    double us_since(const Event&) const override { return 0; }

   private:
    bool is_of_readbacks() const { return stream_.native == &device_.readbacks_; }
    DeferredDevice& device_;
    Stream stream_ = {};
    std::int64_t at_ = 0, num_readbacks_ = 0;
  };
  class Recorded final : public CapturedGraph {
   public:
    Recorded(DeferredDevice& device, std::vector<Work> work) : device_(device), work_(std::move(work)) {}
    Status launch(Stream) override {
      for (const Work& each : work_) device_.launch(each);
      return ok_status();
    }
    std::size_t num_nodes() const override { return work_.size(); }

   private:
    DeferredDevice& device_;
    std::vector<Work> work_;
  };

  void copy(void* to, const void* from, std::size_t bytes, Stream stream) {
    if (bytes == 0) return;
    ++num_copies_;
    const auto run = [=] { std::memmove(to, from, bytes); };
    MSTAR_CHECK(!recording_ || !stream.native, "a graph is recorded on the default stream");
    if (stream.native == &readbacks_) {
      readbacks_.emplace_back(run);
      ++num_readbacks_;
    } else if (stream.native == &uploads_ && late_copies) {
      uploads_.emplace_back(run);
    } else if (stream.native == &uploads_) {
      run();
    } else {
      launch(run);
    }
  }
  void queue_uploads() {
    for (Work& each : std::exchange(uploads_, {})) launch(std::move(each));
  }
  void run_readbacks(std::int64_t position) {
    for (; num_read_back_ < position; ++num_read_back_) {
      readbacks_.front()();
      readbacks_.pop_front();
    }
  }
  void run_until(std::int64_t position) {
    MSTAR_CHECK(!recording_, "a wait while a graph was being captured");
    while (num_run_ < position) {
      Work next = std::move(queue_.front());
      queue_.pop_front();
      ++num_run_;
      next();
    }
  }

  std::unique_ptr<Device> host_ = make_cpu_device();
  std::deque<Work> queue_;
  std::int64_t num_queued_ = 0, num_run_ = 0, num_copies_ = 0;
  std::deque<Work> uploads_, readbacks_;  // that wait
  std::int64_t num_readbacks_ = 0, num_read_back_ = 0;
  std::int64_t readbacks_after_ = 0;  // in the queue: what those that are asked for now wait for
  std::vector<Work> recorded_;
  bool recording_ = false;
};

}  // namespace mstar::engine
