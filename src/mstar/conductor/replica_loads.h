// Live requests of each replica of a node group, kept so that a choice costs the same however many replicas there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "mstar/base/ids.h"

namespace mstar::conductor {

// Replicas are numbered as in the list. Each call but the constructor is O(1), or O(number of different loads) where
// the least loaded replica goes out of service. One owner at a time; no errors.
class ReplicaLoads {
 public:
  // None takes requests yet. Worker ids are small numbers, each at most once.
  explicit ReplicaLoads(std::span<const WorkerId> replicas);

  std::size_t size() const { return replicas_.size(); }
  WorkerId worker(std::size_t replica) const { return replicas_[replica].worker; }
  std::optional<std::size_t> find(WorkerId worker) const;
  void add(std::size_t replica) { change(replica, 1); }
  void remove(std::size_t replica) { change(replica, -1); }
  int load(std::size_t replica) const { return replicas_[replica].load; }

  void set_takes(std::size_t replica, bool takes);
  bool takes(std::size_t replica) const { return replicas_[replica].place != kNowhere; }
  // Of those that take requests.
  bool any_takes() const { return !taking_.empty(); }
  int least() const { return least_; }
  // One of them, one of those with the least load: each as likely as another. There is one.
  std::size_t draw_any(std::mt19937_64& random) const { return draw(taking_, random); }
  std::size_t draw_least(std::mt19937_64& random) const {
    return draw(by_load_[static_cast<std::size_t>(least_)], random);
  }

 private:
  static constexpr std::uint32_t kNowhere = ~0u;
  struct Replica {
    WorkerId worker;
    int load = 0;
    std::uint32_t place = kNowhere;         // in by_load_[load]
    std::uint32_t taking_place = kNowhere;  // in taking_
  };
  static std::size_t draw(const std::vector<std::uint32_t>& from, std::mt19937_64& random) {
    return from[from.size() == 1 ? 0 : random() % from.size()];
  }
  void change(std::size_t replica, int by);
  void put(std::size_t replica);
  void take_out(std::size_t replica);

  std::vector<Replica> replicas_;
  std::vector<std::uint32_t> number_of_;             // by worker id; kNowhere: not of the group
  std::vector<std::uint32_t> taking_;                // those that take requests
  std::vector<std::vector<std::uint32_t>> by_load_;  // the same, by load
  int least_ = 0;                                    // of taking_; 0 when that is empty
};

}  // namespace mstar::conductor
