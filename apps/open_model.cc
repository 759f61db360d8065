// From a model's name to its declaration.
#include <algorithm>
#include <set>
#include <variant>

#include "mstar/base/log.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/cuda/cuda_device.h"
#include "mstar/models/checkpoint_numbers.h"
#include "placement_check.h"
#include "runtime.h"
#include "weight_cache.h"

namespace mstar::apps {
namespace {

bool is_family_without_weights(const std::string& name) {
  return std::any_of(models::all_models().begin(), models::all_models().end(),
                     [&](const auto& family) { return !family.needs_weights && family.name == name; });
}

Error not_found(const std::string& model) {
  std::string known;
  for (const auto& family : models::all_models())
    if (!family.needs_weights) known += (known.empty() ? "" : ", ") + std::string(family.name);
  return bad_model(
      "no model '" + model +
      "': it is no directory, no checkpoint file and no fetched weights (./dev weights --list names those)" +
      (known.empty() ? "" : ", nor one of the models without weights: " + known));
}

// What the node groups say of their components, as options of the model: `weights.encoder` beside `weights`.
Status take_group_weights(const std::vector<NodeGroupConfig>& groups, Params& options) {
  for (const NodeGroupConfig& group : groups) {
    if (group.weights.empty()) continue;
    for (const std::string& component : group.components) {
      const std::string key = models::weights_option(component);
      MSTAR_TRY_ASSIGN(const std::string before, options.get_string(key, group.weights));
      if (before != group.weights)
        return bad_model("the weights of '" + component + "' are to be kept as " + before + " and as " + group.weights +
                         "; node groups of different walks share one kind");
      options.set(key, group.weights);
    }
  }
  return ok_status();
}

Status check_group_weights(const std::vector<NodeGroupConfig>& groups, const Params& options, const decl::Decl& decl) {
  for (const NodeGroupConfig& group : groups) {
    if (group.weights.empty()) continue;
    MSTAR_TRY(models::kept_as(options, group.components.front()));
    const bool has_weights = std::any_of(group.components.begin(), group.components.end(), [&](const auto& component) {
      return !decl.at(decl.find_component(component)).device().homes.empty();
    });
    if (!has_weights)
      return bad_model("'" + group.components.front() + "' has no weights to be kept as " + group.weights);
  }
  return ok_status();
}

}  // namespace

std::string default_name(const std::string& model) {
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  if (std::filesystem::is_regular_file(path, ignored)) path = std::filesystem::absolute(path, ignored).parent_path();
  if (!path.has_filename()) path = path.parent_path();
  if (path == "." || path == "..") path = std::filesystem::canonical(path, ignored);
  return path.filename().string();
}

Result<std::unique_ptr<Device>> make_device(Backend backend, int index) {
  if (backend == Backend::cuda) return make_cuda_device(index);
  return make_cpu_device();
}

Result<OpenedModel> open_model(const ModelConfig& config, Backend backend) {
  OpenedModel out;
  out.config = config;
  if (out.config.name.empty()) out.config.name = default_name(config.model);
  MSTAR_TRY(take_group_weights(config.node_groups, out.config.options));
  models::ModelSource source{.name = config.model,
                             .directory = config.model,
                             .options = out.config.options,
                             .backend = backend,
                             .voice_directory = find_model("silero-vad")};
  if (!is_family_without_weights(config.model)) {
    std::error_code ignored;
    if (!std::filesystem::exists(source.directory, ignored)) return not_found(config.model);
    MSTAR_TRY_ASSIGN(const std::string format, config.options.get_string("load_format", "auto"));
    if (format == "dummy") {
      MSTAR_TRY_ASSIGN(source.checkpoint, models::dummy_checkpoint(source));
    } else if (format == "auto") {
      MSTAR_TRY_ASSIGN(source.checkpoint, weights::Checkpoint::open(source.directory));
    } else {
      return std::move(invalid_request("load_format must be auto or dummy, not '" + format + "'"))
          .with_field("load_format");
    }
    if (!std::filesystem::is_directory(source.directory, ignored)) source.directory = source.directory.parent_path();
  }
  MSTAR_TRY_ASSIGN(out.family, models::find_family(source));
  source.name = out.config.name;
  MSTAR_TRY_ASSIGN(decl::Decl declared, out.family->declare(source));
  out.decl = std::make_unique<const decl::Decl>(std::move(declared));
  out.checkpoint = std::move(source.checkpoint);
  MSTAR_TRY_ASSIGN(out.groups, resolve_node_groups(*out.decl, out.config.node_groups));
  MSTAR_TRY(check_group_weights(out.config.node_groups, out.config.options, *out.decl));
  return out;
}

namespace {

// See default_kv_tokens. Only a language model can do with less than the worst case: its requests wait for room, and
// are computed again.
bool takes_default_kv(const OpenedModel& model, Backend backend) {
  const auto& surfaces = model.decl->surfaces();
  const bool writes_text = std::any_of(surfaces.begin(), surfaces.end(), [](const decl::Surface& each) {
    return each.route == decl::Route::completions;
  });
  return writes_text && backend == Backend::cpu && !model.config.options.has("kv_tokens");
}

std::int64_t kv_tokens_for(const OpenedModel& model, int max_requests, std::size_t budget, std::size_t free_bytes) {
  for (const decl::ResourceSpec& each : model.decl->resources())
    if (const auto* kv = std::get_if<decl::PagedKv>(&each))
      return default_kv_tokens(*kv, max_requests, budget, free_bytes);
  return 0;
}

// Ranks that each hold keys and values of the model.
std::size_t num_kv_pools(const OpenedModel& model) {
  std::set<int> ranks;
  for (const NodeGroup& group : model.groups)
    for (const decl::ComponentRef component : group.components) {
      if (group.on_host()) continue;
      for (const decl::ResourceRef each : model.decl->at(component).device().uses)
        if (std::holds_alternative<decl::PagedKv>(model.decl->at(each)))
          for (const int rank : group.ranks()) ranks.insert(rank);
    }
  return std::max<std::size_t>(1, ranks.size());
}

// What a plan for one request at once leaves of the budget: all else that the models need is in that plan.
Result<std::size_t> bytes_left(const std::vector<OpenedModel>& models, Backend backend, RuntimeConfig config,
                               std::size_t budget) {
  config.max_concurrent_requests = 1;
  std::vector<const OpenedModel*> all;
  for (const OpenedModel& each : models) all.push_back(&each);
  MSTAR_TRY_ASSIGN(const MemoryPlan plan, memory_of(all, config, backend, budget));
  return budget > plan.fullest_bytes() ? budget - plan.fullest_bytes() : 0;
}

Result<std::vector<OpenedModel>> open_all(const RuntimeConfig& config, Backend backend) {
  std::vector<OpenedModel> out;
  std::size_t num_default = 0;  // pools of that size
  for (const ModelConfig& each : config.models) {
    MSTAR_TRY_ASSIGN(OpenedModel opened, open_model(each, backend));
    if (takes_default_kv(opened, backend)) num_default += num_kv_pools(opened);
    out.push_back(std::move(opened));
  }
  if (num_default == 0) return out;
  MSTAR_TRY_ASSIGN(const std::size_t budget, available_bytes(config, backend, num_ranks(out)));
  MSTAR_TRY_ASSIGN(const std::size_t left, bytes_left(out, backend, config, budget));
  for (OpenedModel& each : out) {
    if (!takes_default_kv(each, backend)) continue;
    const std::int64_t kv_tokens = kv_tokens_for(each, config.max_concurrent_requests, budget, left / num_default);
    if (kv_tokens == 0) continue;
    ModelConfig with_pool = each.config;
    with_pool.options.set("kv_tokens", kv_tokens);
    MSTAR_TRY_ASSIGN(each, open_model(with_pool, backend));
  }
  return out;
}

}  // namespace

Result<OpenedModels> open_models(const RuntimeConfig& config) {
  OpenedModels out;
  MSTAR_TRY_ASSIGN(const DeviceChoice device, chosen_device(config));
  if (device != DeviceChoice::cpu && num_cuda_devices() > 0) out.backend = Backend::cuda;
  if (device == DeviceChoice::cuda && out.backend != Backend::cuda)
    return unavailable("there is no CUDA device here that this program can use; --device cpu takes the processor");
  MSTAR_TRY_ASSIGN(out.models, open_all(config, out.backend));
  MSTAR_TRY(check_ranks_in_step(out.models, config, out.backend));
  if (out.backend == Backend::cpu) return out;
  const auto stays =
      std::find_if(out.models.begin(), out.models.end(), [](const OpenedModel& each) { return !each.family->on_cuda; });
  if (stays == out.models.end()) return out;
  const std::string text =
      "'" + stays->config.name + "' (" + std::string(stays->family->name) + ") runs on the CPU only";
  if (device == DeviceChoice::cuda) return bad_model(text + "; --device cpu takes the processor for all models");
  log_warn("{}, so all models do, and no CUDA device is used", text);
  out.backend = Backend::cpu;
  MSTAR_TRY_ASSIGN(out.models, open_all(config, out.backend));
  return out;
}

}  // namespace mstar::apps
