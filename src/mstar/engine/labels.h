// Labels of one component's state: the names that Runs use, as the numbers that resources know.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mstar/decl/decl.h"
#include "mstar/resource/resource.h"

namespace mstar::engine {

class ResourceSet;

// Immutable after of(). Validated declarations only: labels of a Run are known, and all labelled resources of a
// component list theirs in one order.
class Labels {
 public:
  // bad_model for a Run of the component under several labels at once, which no engine runs yet.
  static Result<Labels> of(const decl::Decl& decl, decl::ComponentRef component);

  // Number of the Run's label; 0 where the component has no labelled resource.
  int index(const decl::Run& run) const;
  // Copies labels in all labelled resources; a list without forks costs nothing.
  Status fork(const ResourceSet& resources, RequestId request, std::span<const decl::Fork> forks, Stream stream) const;

 private:
  int find(const std::string& label) const;
  std::vector<std::string> names_;
  std::vector<decl::ResourceRef> resources_;  // labelled ones
};

}  // namespace mstar::engine
