#include "settings.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "config_yaml.h"
#include "weight_cache.h"
#include "yaml_tree.h"

namespace mstar::apps {
namespace {

constexpr const char* kDevices[] = {"auto", "cpu", "cuda"};  // of DeviceChoice
constexpr const char* kWeightKinds[] = {"stored", "f32", "f16", "bf16", "i8"};

bool is_yaml(const std::string& path) { return path.ends_with(".yaml") || path.ends_with(".yml"); }

Status read_profile(const std::vector<std::string>& texts, RuntimeConfig& out) {
  constexpr std::string_view kTrace = "trace=";
  for (const std::string& each : texts) {
    if (each == "phases") {
      out.profile.phases = true;
    } else if (each.starts_with(kTrace) && each.size() > kTrace.size()) {
      out.profile.trace_file = each.substr(kTrace.size());
      // Found out now, not when the work is done. A file takes its place in the end: a device must not be replaced.
      std::error_code error;
      if (std::filesystem::exists(out.profile.trace_file, error) &&
          !std::filesystem::is_regular_file(out.profile.trace_file, error))
        return invalid_request("--profile trace: '" + out.profile.trace_file + "' is not a file");
      if (!std::ofstream(out.profile.trace_file, std::ios::app))
        return invalid_request("--profile trace: '" + out.profile.trace_file + "' cannot be written");
    } else {
      return invalid_request("--profile must be phases or trace=FILE, not '" + each + "'");
    }
  }
  if (out.profile.is_on() && out.isolation == Isolation::process)
    return invalid_request("--profile sees workers of this process only, and the YAML has isolation: process");
  return ok_status();
}

Status overlay(const ModelFlags& flags, RuntimeConfig& out) {
  MSTAR_TRY(read_profile(flags.profile, out));
  if (flags.threads && (*flags.threads < 0 || *flags.threads > 1024))
    return invalid_request("--threads must be from 1 to 1024, or 0 for all");
  if (flags.threads) out.num_threads = *flags.threads;
  if (flags.stay_awake_us && (*flags.stay_awake_us < 0 || *flags.stay_awake_us > 1'000'000))
    return invalid_request("--stay-awake-us must be from 0 to 1000000");
  if (flags.stay_awake_us) out.stay_awake_us = flags.stay_awake_us;
  if (flags.max_requests && (*flags.max_requests < 1 || *flags.max_requests > 4096))
    return invalid_request("--max-requests must be from 1 to 4096");
  if (flags.max_requests) {
    out.max_concurrent_requests = *flags.max_requests;
    out.max_requests_given = true;
  }
  if (!flags.memory.empty()) {
    auto bytes = parse_bytes(flags.memory);
    if (!bytes) return std::move(bytes.error()).in("--memory");
    out.memory_bytes = *bytes;
  }
  if (!flags.load_format.empty() && flags.load_format != "auto" && flags.load_format != "dummy")
    return invalid_request("--load-format must be auto or dummy, not '" + flags.load_format + "'");
  if (!flags.load_format.empty())
    for (ModelConfig& each : out.models) each.options.set("load_format", flags.load_format);
  if (!flags.device.empty()) {
    const auto found = std::find(std::begin(kDevices), std::end(kDevices), flags.device);
    if (found == std::end(kDevices))
      return invalid_request("--device must be auto, cpu or cuda, not '" + flags.device + "'");
    out.device = static_cast<DeviceChoice>(found - std::begin(kDevices));
  }
  if (flags.batch_invariant)
    for (ModelConfig& each : out.models) each.options.set("batch_invariant", true);
  if (flags.weights.empty()) return ok_status();
  if (std::find(std::begin(kWeightKinds), std::end(kWeightKinds), flags.weights) == std::end(kWeightKinds))
    return invalid_request("--weights must be stored, f32, f16, bf16 or i8, not '" + flags.weights + "'");
  for (ModelConfig& each : out.models) each.options.set("weights", flags.weights);
  return ok_status();
}

}  // namespace

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  command.add_option("--threads", flags.threads, "CPU step threads (default: the cores that this process may use)");
  command.add_option("--stay-awake-us", flags.stay_awake_us,
                     "how long threads look for the next request, when the only one has ended, before they sleep "
                     "(default: 2000 with eight cores or more, else 0)");
  command.add_option("--device", flags.device, "auto (the default: CUDA where there is a device), cpu or cuda");
  command.add_option("--memory", flags.memory, "device memory to plan with, such as 4G (default: all)");
  command.add_option("--weights", flags.weights,
                     "how matrices are kept: stored (as in the checkpoint, the default), f32, f16, bf16 or i8");
  command.add_option("--load-format", flags.load_format,
                     "auto (the default), or dummy: seeded random weights at the size that config.json says");
  command.add_option("--max-requests", flags.max_requests, "requests worked on at once; more wait");
  command.add_flag("--batch-invariant", flags.batch_invariant,
                   "an answer's bits do not depend on what else runs; slower on CUDA, the CPU is always so");
}

void add_profile_flag(CLI::App& command, ModelFlags& flags) {
  command
      .add_option("--profile", flags.profile,
                  "phases: where the time of each worker's steps goes, as a table at the end and at /debug/profile; "
                  "trace=FILE: a timeline of the last steps, for chrome://tracing or Perfetto; may be given again")
      ->delimiter(',');
}

Status parse_params(const std::vector<std::string>& texts, Params& params) {
  for (const std::string& each : texts) {
    const std::size_t at = each.find('=');
    if (at == 0 || at == std::string::npos) return invalid_request("--param wants NAME=VALUE, not '" + each + "'");
    params.set(each.substr(0, at), each.substr(at + 1));
  }
  return ok_status();
}

Result<Settings> model_settings(const ModelFlags& flags) {
  Settings out;
  if (is_yaml(flags.model)) {
    MSTAR_TRY_ASSIGN(out, read_config(flags.model));
  } else {
    std::string model = find_model(flags.model);
    if (model.empty()) {
      MSTAR_TRY_ASSIGN(model, default_speech_model());
    }
    out.runtime.models.push_back({.model = std::move(model)});
  }
  MSTAR_TRY(overlay(flags, out.runtime));
  return out;
}

namespace {

// What is given on the command line: a YAML alone, models, or nothing, which is what the cache has.
Result<Settings> named_models(const ServeFlags& flags) {
  if (!flags.config.empty() && !flags.models.empty())
    return invalid_request("give models or --config, not both: a config.yaml names its models");
  if (!flags.config.empty() && !is_yaml(flags.config))
    return invalid_request("--config wants a .yaml file, not '" + flags.config + "'");
  ModelFlags one = flags.model;
  one.model = !flags.config.empty() ? flags.config : flags.models.size() == 1 ? flags.models.front() : "";
  if (!one.model.empty()) return model_settings(one);
  std::vector<std::string> models = flags.models;
  if (models.empty()) {
    MSTAR_TRY_ASSIGN(models, default_models());
  }
  Settings out;
  for (const std::string& each : models) {
    if (is_yaml(each)) return invalid_request("'" + each + "' can't stand beside other models: it names its own");
    out.runtime.models.push_back({.model = find_model(each)});
  }
  MSTAR_TRY(overlay(flags.model, out.runtime));
  return out;
}

// NAME for a single model, NAME=MODEL for one of several; MODEL is what it is served as.
Status add_alias(const std::string& text, std::vector<ModelConfig>& models) {
  const std::size_t at = text.find('=');
  const std::string alias = text.substr(0, at);
  if (alias.empty()) return invalid_request("--alias wants NAME or NAME=MODEL, not '" + text + "'");
  if (at == std::string::npos && models.size() != 1)
    return invalid_request("--alias " + text + " could be any of " + std::to_string(models.size()) + " models: say " +
                           text + "=MODEL");
  for (ModelConfig& each : models) {
    const std::string name = each.name.empty() ? default_name(each.model) : each.name;
    if (at != std::string::npos && name != text.substr(at + 1)) continue;
    each.aliases.push_back(alias);
    return ok_status();
  }
  return invalid_request("--alias " + text + " names no model that is served here");
}

}  // namespace

Result<Settings> serve_settings(const ServeFlags& flags) {
  MSTAR_TRY_ASSIGN(Settings out, named_models(flags));
  if (flags.port && (*flags.port < 0 || *flags.port > 65535)) return invalid_request("--port must be from 0 to 65535");
  if (flags.port) out.server.port = static_cast<std::uint16_t>(*flags.port);
  if (!flags.host.empty()) out.server.host = flags.host;
  if (!flags.api_keys.empty()) out.server.api_keys = flags.api_keys;
  for (const std::string& each : flags.api_keys)
    if (each.empty()) return invalid_request("--api-key must not be empty");
  if (!flags.cors_origins.empty()) out.server.cors_origins.clear();
  for (const std::string& each : flags.cors_origins)
    if (!each.empty()) out.server.cors_origins.push_back(each);
  for (const std::string& alias : flags.aliases) MSTAR_TRY(add_alias(alias, out.runtime.models));
  return out;
}

}  // namespace mstar::apps
