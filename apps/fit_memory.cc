// The memory plan of a deployment against what there is.
#include <algorithm>
#include <set>

#include "mstar/base/log.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/cuda/cuda_device.h"
#include "mstar/models/checkpoint_numbers.h"
#include "runtime.h"

namespace mstar::apps {

resource::PoolLimits limits_of(const RuntimeConfig& config) {
  return {.max_requests = config.max_concurrent_requests,
          .max_rows = config.max_step_rows > 0 ? config.max_step_rows : config.max_concurrent_requests,
          .max_tokens = config.max_step_tokens > 0 ? config.max_step_tokens : 512};
}

Result<std::size_t> available_bytes(const RuntimeConfig& config, Backend backend, int num_ranks) {
  if (config.memory_bytes > 0) return config.memory_bytes;
  if (backend != Backend::cuda) return make_cpu_device()->total_bytes();
  std::set<int> indices;
  for (int rank = 0; rank < num_ranks; ++rank) indices.insert(cuda_index(config, rank));
  std::size_t least = ~std::size_t{0};
  for (const int index : indices) {
    MSTAR_TRY_ASSIGN(const std::size_t bytes, cuda_device_bytes(index));
    least = std::min(least, bytes);
  }
  return least;
}

Result<MemoryPlan> memory_of(const std::vector<const OpenedModel*>& models, const RuntimeConfig& config,
                             Backend backend, std::size_t budget_bytes) {
  std::vector<PlannedModel> planned;
  for (const OpenedModel* each : models) {
    const auto kept = [each](const std::string& component) {
      return models::kept_as(each->config.options, component).value_or("stored");  // the family has checked it
    };
    planned.push_back({each->config.name, each->decl.get(), each->checkpoint, &each->groups, kept});
  }
  MSTAR_TRY_ASSIGN(MemoryPlan plan, plan_memory(planned, limits_of(config), budget_bytes));
  if (backend == Backend::cuda)
    for (const MemoryLine& each : plan.lines)
      if (const int index = cuda_index(config, each.rank); index != 0) plan.rank_devices[each.rank] = index;
  return plan;
}

Result<MemoryPlan> fit_memory(const std::vector<const OpenedModel*>& models, Backend backend,
                              const std::vector<MemoryLine>& reserved, std::size_t budget, RuntimeConfig& config) {
  const int wanted = config.max_concurrent_requests;
  const auto with_reserved = [&](MemoryPlan plan) {
    plan.lines.insert(plan.lines.end(), reserved.begin(), reserved.end());
    return plan;
  };
  MSTAR_TRY_ASSIGN(MemoryPlan plan, memory_of(models, config, backend, budget));
  while (!with_reserved(plan).fits() && !config.max_requests_given && config.max_concurrent_requests > 1) {
    --config.max_concurrent_requests;
    MSTAR_TRY_ASSIGN(plan, memory_of(models, config, backend, budget));
  }
  if (!with_reserved(plan).fits())
    return exhausted(
        "the models need more memory than there is; raise --memory or allow fewer requests with --max-requests\n" +
        memory_table(with_reserved(plan)));
  if (config.max_concurrent_requests < wanted)
    log_warn("{} requests at once instead of {}, so that the caches fit into {}", config.max_concurrent_requests,
             wanted, format_bytes(budget));
  return plan;
}

}  // namespace mstar::apps
