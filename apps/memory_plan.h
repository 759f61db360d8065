// What a deployment will hold in device memory, reckoned before any weight is read.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/resource/resource.h"
#include "mstar/weights/checkpoint.h"
#include "node_groups.h"

namespace mstar::apps {

struct MemoryLine {
  int rank = 0;
  std::string model, part;  // a component or a resource
  std::string kind;         // "weights", "pool", "step arenas", "captured steps"
  std::size_t bytes = 0;
};
// A plan fits when what lies on each device fits into that device's budget.
struct MemoryPlan {
  std::vector<MemoryLine> lines;
  std::size_t budget_bytes = 0;     // of each device
  std::map<int, int> rank_devices;  // of ranks that are not on device 0; on a CPU all share that one
  int device_of(int rank) const;
  std::size_t total_bytes() const;
  std::size_t rank_bytes(int rank) const;
  std::size_t fullest_bytes() const;  // of the device with the most
  bool fits() const { return fullest_bytes() <= budget_bytes; }
};

// One model of the deployment. Borrowed parts outlive the call.
struct PlannedModel {
  std::string name;
  const decl::Decl* decl = nullptr;
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // null: no weights
  const std::vector<NodeGroup>* groups = nullptr;
  // How a component's matrices are kept: "stored", "f32", ...
  std::function<std::string(const std::string& component)> weights;
};

// Weights by component (their homes' bytes, matrices in the dtype they are kept in), then the pools of the resources
// that the rank's components use. Step arenas are known only once the bodies are built. bad_model for rules that cannot
// work.
Result<MemoryPlan> plan_memory(const std::vector<PlannedModel>& models, const resource::PoolLimits& limits,
                               std::size_t budget_bytes);

// How many places (option `kv_tokens`) a language model's keys and values get on a CPU where nobody says: an eighth of
// the budget, but at least two of the longest requests as far as half of the budget holds those. 0: the worst case of
// `max_requests`, because that is no more than this, or because not even one request would fit. Never more than
// `free_bytes`, what weights and the other models leave.
std::int64_t default_kv_tokens(const decl::PagedKv& spec, int max_requests, std::size_t budget_bytes,
                               std::size_t free_bytes);

// A table with one line for each entry, a total for each rank where there are several, the sum and the budget.
std::string memory_table(const MemoryPlan& plan);
// "1.5 GiB", "64 MiB", "812 KiB".
std::string format_bytes(std::size_t bytes);

}  // namespace mstar::apps
