#include "mstar/engine/labels.h"

#include <algorithm>

#include "mstar/engine/engine.h"

namespace mstar::engine {

Result<Labels> Labels::of(const decl::Decl& decl, decl::ComponentRef component) {
  Labels out;
  for (const decl::ResourceRef ref : decl.at(component).device().uses) {
    const auto* names = decl::labels_of(decl.at(ref));
    if (!names) continue;
    out.names_ = *names;
    out.resources_.push_back(ref);
  }
  bool several = false;
  for (const decl::Walk& walk : decl.walks())
    decl::for_each_run(walk.root,
                       [&](const decl::Run& run) { several |= run.component == component && run.labels.size() > 1; });
  if (several)
    return bad_model("component '" + decl.at(component).name() +
                     "' runs under several labels at once, which this build does not do yet");
  return out;
}

int Labels::find(const std::string& label) const {
  const auto it = std::find(names_.begin(), names_.end(), label);
  return it == names_.end() ? 0 : static_cast<int>(it - names_.begin());
}

int Labels::index(const decl::Run& run) const { return find(run.labels.front()); }

Status Labels::fork(const ResourceSet& resources, RequestId request, std::span<const decl::Fork> forks,
                    Stream stream) const {
  for (const decl::Fork& each : forks)
    for (const decl::ResourceRef ref : resources_)
      MSTAR_TRY(resources.at(ref)->fork(request, find(each.from), find(each.to), stream));
  return ok_status();
}

}  // namespace mstar::engine
