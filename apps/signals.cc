#include "signals.h"

#include <pthread.h>

namespace mstar::apps {

SignalWatch::SignalWatch(std::function<void(int, int)> on_signal) : on_signal_(std::move(on_signal)) {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  stopping_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);  // to that thread alone, where it is blocked and so ends sigwait
  thread_.join();
}

void SignalWatch::watch() {
  for (int count = 1;; ++count) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0 || stopping_) return;
    on_signal_(signal, count);
  }
}

}  // namespace mstar::apps
