// What every rank of a group that works in step must agree on.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "mstar/base/digest.h"
#include "mstar/engine/engine.h"

namespace mstar::worker {

// The digest of all that became of requests, rows and steps so far, and of the pools as they stand. Cost of value():
// O(requests). Thread: its rank's.
class ReplicatedState {
 public:
  // Each model's pools, those that the group's components use; in the same order on every rank. They outlive this.
  void watch(const engine::ResourceSet& resources, const std::vector<decl::ResourceRef>& refs) {
    pools_.emplace_back(&resources, refs);
  }
  void note(std::uint64_t outcome) { past_.add(outcome); }
  std::uint64_t value() const {
    Digest now = past_;
    for (const auto& pools : pools_) now.add(pools.first->digest(pools.second));
    return now.value();
  }

 private:
  Digest past_;
  std::vector<std::pair<const engine::ResourceSet*, std::vector<decl::ResourceRef>>> pools_;
};

// What these components keep, each once, in the order of the declaration.
inline std::vector<decl::ResourceRef> resources_of(const decl::Decl& decl,
                                                   const std::vector<decl::ComponentRef>& components) {
  std::set<decl::ResourceRef> refs;
  for (const decl::ComponentRef component : components)
    for (const decl::ResourceRef ref : decl.at(component).device().uses) refs.insert(ref);
  return {refs.begin(), refs.end()};
}

}  // namespace mstar::worker
