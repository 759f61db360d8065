// mstar inspect: what a model says about itself, without loading it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands.h"
#include "inspect_text.h"
#include "settings.h"

namespace mstar::apps {
namespace {

Result<std::string> inspect(const InspectFlags& flags) {
  MSTAR_TRY_ASSIGN(const Settings settings, model_settings(flags.model));
  const resource::PoolLimits limits = limits_of(settings.runtime);
  std::vector<OpenedModel> models;
  std::string out;
  MSTAR_TRY_ASSIGN(OpenedModels opened, open_models(settings.runtime));
  for (OpenedModel& model : opened.models) {
    auto text = flags.json ? inspect_json(model, limits) : inspect_text(model, limits);
    if (!text) return std::move(text.error());
    if (!out.empty()) out += flags.json ? "," : "\n";
    out += *text;
    models.push_back(std::move(model));
  }
  if (flags.json) return "[" + out + "]\n";
  std::vector<const OpenedModel*> all;
  MSTAR_TRY_ASSIGN(const std::size_t budget, available_bytes(settings.runtime, opened.backend));
  for (const OpenedModel& each : models) all.push_back(&each);
  MSTAR_TRY_ASSIGN(const MemoryPlan plan, memory_of(all, settings.runtime, budget));
  return out + "\nmemory, without step arenas\n" + memory_table(plan);
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
