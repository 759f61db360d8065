// SIGINT and SIGTERM as calls on a thread of our own, so that what they start may lock, allocate and print.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

namespace mstar::apps {

// Create it before any other thread: the signals are blocked here and every later thread inherits that. One per
// process. `on_signal(signal, count)` runs on the watcher's thread; count is 1 for the first one.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void(int signal, int count)> on_signal);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  void watch();

  std::function<void(int, int)> on_signal_;
  sigset_t signals_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// What a shell reports for a program that a signal ended.
inline int exit_status_of(int signal) { return 128 + signal; }

}  // namespace mstar::apps
