// The memory plan of a deployment against what there is.
#include "mstar/base/log.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/cuda/cuda_device.h"
#include "runtime.h"

namespace mstar::apps {

resource::PoolLimits limits_of(const RuntimeConfig& config) {
  return {.max_requests = config.max_concurrent_requests,
          .max_rows = config.max_step_rows > 0 ? config.max_step_rows : config.max_concurrent_requests,
          .max_tokens = config.max_step_tokens > 0 ? config.max_step_tokens : 512};
}

Result<std::size_t> available_bytes(const RuntimeConfig& config, Backend backend) {
  if (config.memory_bytes > 0) return config.memory_bytes;
  if (backend == Backend::cuda) return cuda_device_bytes(0);
  return make_cpu_device()->total_bytes();
}

Result<MemoryPlan> memory_of(const std::vector<const OpenedModel*>& models, const RuntimeConfig& config,
                             std::size_t budget_bytes) {
  std::vector<PlannedModel> planned;
  for (const OpenedModel* each : models) {
    MSTAR_TRY_ASSIGN(std::string kept, each->config.options.get_string("weights", "stored"));
    planned.push_back({each->config.name, each->decl.get(), each->checkpoint, &each->groups, std::move(kept)});
  }
  return plan_memory(planned, limits_of(config), budget_bytes);
}

Result<MemoryPlan> fit_memory(const std::vector<const OpenedModel*>& models, std::size_t reserved_bytes,
                              std::size_t budget, RuntimeConfig& config) {
  const int wanted = config.max_concurrent_requests;
  MSTAR_TRY_ASSIGN(MemoryPlan plan, memory_of(models, config, budget));
  while (plan.total_bytes() + reserved_bytes > budget && !config.max_requests_given &&
         config.max_concurrent_requests > 1) {
    --config.max_concurrent_requests;
    MSTAR_TRY_ASSIGN(plan, memory_of(models, config, budget));
  }
  if (plan.total_bytes() + reserved_bytes > budget) {
    if (reserved_bytes > 0) plan.lines.push_back({0, "all", "working memory", "step arenas", reserved_bytes});
    return exhausted(
        "the models need more memory than there is; raise --memory or allow fewer requests with --max-requests\n" +
        memory_table(plan));
  }
  if (config.max_concurrent_requests < wanted)
    log_warn("{} requests at once instead of {}, so that the caches fit into {}", config.max_concurrent_requests,
             wanted, format_bytes(budget));
  return plan;
}

}  // namespace mstar::apps
