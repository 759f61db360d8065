// Flags and YAML -> what the runtime and the server need. Strict: an unknown key is an error with its line and the
// allowed ones.
#pragma once

#include "commands.h"
#include "mstar/server/server_config.h"
#include "runtime.h"

namespace mstar::apps {

// A request that is answered before the server listens, over the same path as any other.
struct WarmupRequest {
  std::string model;  // empty: the first one
  std::string text;
  std::vector<std::string> files;
  std::vector<decl::Modality> output_modalities;
  Params model_kwargs;
  int concurrency = 1;
};

struct Settings {
  RuntimeConfig runtime;
  server::ServerConfig server;
  std::vector<WarmupRequest> warmup;
};

// Flags over the YAML that they name. invalid_request when a flag or the YAML is wrong; bad_model when no model is
// named and none is cached.
Result<Settings> serve_settings(const ServeFlags& flags);
Result<Settings> model_settings(const ModelFlags& flags);
// "NAME=VALUE" each; the value stays text, which the getters of Params read as a number or a flag where one is wanted.
Status parse_params(const std::vector<std::string>& texts, Params& params);
void add_model_flags(CLI::App& command, ModelFlags& flags);
void add_profile_flag(CLI::App& command, ModelFlags& flags);

}  // namespace mstar::apps
