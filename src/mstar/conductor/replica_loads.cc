#include "mstar/conductor/replica_loads.h"

#include <algorithm>

#include "mstar/base/check.h"

namespace mstar::conductor {

ReplicaLoads::ReplicaLoads(std::span<const WorkerId> replicas) {
  for (const WorkerId worker : replicas) {
    if (worker.value >= number_of_.size()) number_of_.resize(std::size_t{worker.value} + 1, kNowhere);
    number_of_[worker.value] = static_cast<std::uint32_t>(replicas_.size());
    replicas_.push_back({.worker = worker});
  }
}

std::optional<std::size_t> ReplicaLoads::find(WorkerId worker) const {
  if (worker.value >= number_of_.size() || number_of_[worker.value] == kNowhere) return std::nullopt;
  return number_of_[worker.value];
}

void ReplicaLoads::change(std::size_t replica, int by) {
  Replica& each = replicas_[replica];
  const bool taking = takes(replica);
  if (taking) take_out(replica);
  each.load += by;
  MSTAR_CHECK(each.load >= 0, "a replica with fewer than no requests");
  if (taking) put(replica);
  // By one at a time: whoever was alone with the least load still has it, or one next to it.
  while (taking && by_load_[static_cast<std::size_t>(least_)].empty()) ++least_;
}

void ReplicaLoads::set_takes(std::size_t replica, bool takes_now) {
  if (takes(replica) == takes_now) return;
  Replica& each = replicas_[replica];
  if (takes_now) {
    if (taking_.empty()) least_ = each.load;
    each.taking_place = static_cast<std::uint32_t>(taking_.size());
    taking_.push_back(static_cast<std::uint32_t>(replica));
    put(replica);
    return;
  }
  take_out(replica);
  const std::uint32_t last = taking_.back();
  taking_[each.taking_place] = last;
  replicas_[last].taking_place = each.taking_place;
  each.taking_place = kNowhere;  // also where it is the last
  taking_.pop_back();
  if (taking_.empty()) {
    least_ = 0;
    return;
  }
  while (by_load_[static_cast<std::size_t>(least_)].empty()) ++least_;
}

void ReplicaLoads::put(std::size_t replica) {
  Replica& each = replicas_[replica];
  const auto load = static_cast<std::size_t>(each.load);
  if (load >= by_load_.size()) by_load_.resize(load + 1);
  each.place = static_cast<std::uint32_t>(by_load_[load].size());
  by_load_[load].push_back(static_cast<std::uint32_t>(replica));
  least_ = std::min(least_, each.load);
}

void ReplicaLoads::take_out(std::size_t replica) {
  Replica& each = replicas_[replica];
  auto& same = by_load_[static_cast<std::size_t>(each.load)];
  const std::uint32_t last = same.back();
  same[each.place] = last;
  replicas_[last].place = each.place;
  each.place = kNowhere;  // also where it is the last
  same.pop_back();
}

}  // namespace mstar::conductor
