// The only way into another thread's state: an unbounded many-producer, one-consumer queue.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace mstar {

// Thread: push and close from any thread; pop from the owner. Order is per producer. A full peer never blocks a sender.
template <class T>
class Queue {
 public:
  // False when the queue is closed; the item is then dropped.
  bool push(T item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      items_.push_back(std::move(item));
      if (wake_) wake_();
    }
    ready_.notify_one();
    return true;
  }

  // Each of `items` in order, which are moved from; the owner is woken once.
  template <class Items>
  bool push_all(Items& items) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      for (auto& each : items) items_.emplace_back(std::move(each));
      if (wake_) wake_();
    }
    ready_.notify_one();
    return true;
  }

  // Everything that has arrived, in order; never waits.
  std::vector<T> take_all() {
    std::lock_guard lock(mutex_);
    return take();
  }
  // The same into an empty vector, whose memory the queue goes on with.
  void take_all(std::vector<T>& into) {
    std::lock_guard lock(mutex_);
    drop_popped();
    items_.swap(into);
  }

  // Waits for at least one item, the timeout, or close.
  std::vector<T> wait_all(std::chrono::microseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [&] { return !items_.empty() || closed_; });
    return take();
  }

  // Waits for an item without taking it, the timeout, or close.
  void wait(std::chrono::microseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [&] { return !items_.empty() || closed_; });
  }

  // Looks for an item until then without sleeping, so that whoever pushes one need not wake the owner; gives way to
  // other threads. True when there is one, or after close.
  bool look_until(std::chrono::steady_clock::time_point deadline) {
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (items_.size() > num_popped_ || closed_) return true;
      }
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::yield();
    }
  }

  // Waits without a timeout; empty only after close.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return !items_.empty() || closed_; });
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_[num_popped_++]);
    if (2 * num_popped_ >= items_.size()) drop_popped();
    return item;
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }
  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  // Called under the queue's lock after each push; for an event loop that sleeps elsewhere. Set before use.
  void set_wake(std::function<void()> wake) {
    std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

 private:
  // Those that pop() has taken still stand in front.
  void drop_popped() {
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(std::exchange(num_popped_, 0)));
  }
  std::vector<T> take() {
    drop_popped();
    return std::exchange(items_, {});
  }

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> items_;
  std::size_t num_popped_ = 0;  // fewer than there are, or none
  std::function<void()> wake_;
  bool closed_ = false;
};

}  // namespace mstar
