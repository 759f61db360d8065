#include "mstar/graph/signals.h"

namespace mstar::graph {

bool EarlySignals::hold(RequestId request, PartitionSignal signal) {
  if (num_signals_ >= max_signals_) return false;
  held_[request].push_back(std::move(signal));
  ++num_signals_;
  return true;
}

void EarlySignals::forget_before(RequestId request) {
  for (auto at = held_.begin(); at != held_.end();) {
    if (at->first < request) {
      num_signals_ -= at->second.size();
      at = held_.erase(at);
    } else {
      ++at;
    }
  }
}

EarlySignals::Replay EarlySignals::take(RequestId request) {
  Replay replay;
  const auto at = held_.find(request);
  if (at == held_.end()) return replay;
  num_signals_ -= at->second.size();
  replay.signals = std::move(at->second);
  held_.erase(at);
  for (std::size_t i = 0; i < replay.signals.size(); ++i) {
    if (!std::holds_alternative<Removal>(replay.signals[i].signal)) continue;
    replay.removed = true;
    replay.signals.resize(i);
    break;
  }
  return replay;
}

}  // namespace mstar::graph
