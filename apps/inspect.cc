// mstar inspect: what a model says about itself, without loading it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands.h"
#include "inspect_text.h"
#include "mstar/device/cuda/cuda_device.h"
#include "placement_check.h"
#include "settings.h"

namespace mstar::apps {
namespace {

// As the start of a server does.
Status check(const RuntimeConfig& config, const OpenedModels& opened) {
  MSTAR_TRY(check_devices(config, opened.backend, num_ranks(opened.models), num_cuda_devices()));
  for (const OpenedModel& each : opened.models) {
    MSTAR_TRY_ASSIGN(const auto compiled, graph::CompiledModel::compile(*each.decl));
    MSTAR_TRY(check_fragments(compiled, each.groups));
  }
  return ok_status();
}

Result<std::string> inspect(const InspectFlags& flags) {
  MSTAR_TRY_ASSIGN(const Settings settings, model_settings(flags.model));
  const resource::PoolLimits limits = limits_of(settings.runtime);
  MSTAR_TRY_ASSIGN(const OpenedModels opened, open_models(settings.runtime));
  MSTAR_TRY(check(settings.runtime, opened));
  std::vector<const OpenedModel*> all;
  for (const OpenedModel& each : opened.models) all.push_back(&each);
  MSTAR_TRY_ASSIGN(const std::size_t budget,
                   available_bytes(settings.runtime, opened.backend, num_ranks(opened.models)));
  MSTAR_TRY_ASSIGN(const MemoryPlan plan, memory_of(all, settings.runtime, opened.backend, budget));
  std::string out;
  for (const OpenedModel& model : opened.models) {
    auto text = flags.json ? inspect_json(model, limits, plan) : inspect_text(model, limits);
    if (!text) return std::move(text.error());
    if (!out.empty()) out += flags.json ? "," : "\n";
    out += *text;
  }
  if (flags.json) return "[" + out + "]\n";
  return out + "\n" + draw_ranks(opened.models, settings.runtime, opened.backend, plan) +
         "\nmemory, without step arenas\n" + memory_table(plan);
}

}  // namespace

void add_inspect_flags(CLI::App& command, InspectFlags& flags) {
  command.add_option("model", flags.model.model,
                     "a checkpoint directory, fetched weights, a config.yaml, or a family without weights");
  command.add_flag("--json", flags.json, "a JSON list with one object for each model");
  add_model_flags(command, flags.model);
}

int run_inspect(const InspectFlags& flags) {
  const auto text = inspect(flags);
  if (!text) {
    std::fprintf(stderr, "mstar: %s\n", text.error().message.c_str());
    return text.error().code == Code::invalid_request ? 2 : 1;
  }
  std::fwrite(text->data(), 1, text->size(), stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace mstar::apps
