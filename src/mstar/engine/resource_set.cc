// ResourceSet: the resources of one worker's components.
#include <algorithm>
#include <utility>

#include "mstar/base/check.h"
#include "mstar/engine/engine.h"
#include "mstar/engine/sequence_rules.h"

namespace mstar::engine {

Result<ResourceSet> ResourceSet::build(const decl::Decl& decl, std::span<const decl::ComponentRef> components,
                                       const resource::PoolLimits& limits, Device& device, MeshSize mesh) {
  ResourceSet set;
  set.by_ref_.resize(decl.resources().size());
  set.num_plan_slots_ = resource::kNumSlots * static_cast<int>(components.size());
  resource::PoolLimits sized = limits;
  sized.num_plan_slots = std::max(set.num_plan_slots_, 1);
  for (const decl::ComponentRef component : components)
    if (!decl.at(component).on_host())
      sized.max_tokens = std::max(sized.max_tokens, decl.at(component).device().max_batch_tokens);
  for (const decl::ComponentRef component : components) {
    if (decl.at(component).on_host()) continue;
    for (const decl::ResourceRef ref : decl.at(component).device().uses) {
      if (set.by_ref_[ref.value]) continue;
      const SequenceRules rules = sequence_rules(decl, ref);
      resource::PoolLimits own = sized;
      own.head_shards = decl::head_shards(decl.at(component).device(), mesh);
      own.on_demand = rules.on_demand;
      own.prefix_cache &= rules.prefix_cache;
      own.state_snapshots = rules.state_snapshots;
      own.snapshot_tokens = rules.snapshot_tokens;
      MSTAR_TRY_ASSIGN(set.by_ref_[ref.value], resource::make_resource(decl.at(ref), own, device));
    }
  }
  return set;
}

int ResourceSet::claim_plan_slots() {
  MSTAR_CHECK(claimed_plan_slots_ < num_plan_slots_, "more components than the resources were built for");
  return std::exchange(claimed_plan_slots_, claimed_plan_slots_ + resource::kNumSlots);
}

resource::Resource* ResourceSet::at(decl::ResourceRef ref) const { return by_ref_[ref.value].get(); }

Status ResourceSet::add_request(RequestId request, const decl::RequestParams& params) {
  for (const auto& each : by_ref_) {
    if (!each) continue;
    if (Status added = each->add_request(request, params); !added) {
      remove_request(request);
      return added;
    }
  }
  return ok_status();
}

void ResourceSet::remove_request(RequestId request) {
  for (const auto& each : by_ref_)
    if (each) each->remove_request(request);
}

std::vector<resource::Usage> ResourceSet::usage() const {
  std::vector<resource::Usage> out;
  for (const auto& each : by_ref_)
    if (each) out.push_back(each->usage());
  return out;
}

std::int64_t ResourceSet::cached_tokens(RequestId request) const {
  std::int64_t count = -1;
  for (const auto& each : by_ref_)
    if (const std::int64_t own = each ? each->cached_tokens(request) : -1; own >= 0)
      count = std::max<std::int64_t>(count, 0) + own;
  return count;
}

}  // namespace mstar::engine
