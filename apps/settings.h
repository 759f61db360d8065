// Flags and YAML -> what the runtime and the server need. Strict: an unknown key is an error with its line and the
// allowed ones.
#pragma once

#include "commands.h"
#include "mstar/server/server_config.h"
#include "runtime.h"

namespace mstar::apps {

struct Settings {
  RuntimeConfig runtime;
  server::ServerConfig server;
};

// invalid_request when a flag is wrong, bad_model when the YAML is.
Result<Settings> serve_settings(const ServeFlags& flags);
Result<RuntimeConfig> runtime_settings(const ModelFlags& flags);
// "4G", "512M", "1000000"; invalid_request for anything else.
Result<std::size_t> parse_bytes(const std::string& text);
// "NAME=VALUE" each; the value stays text, which the getters of Params read as a number or a flag where one is wanted.
Status parse_params(const std::vector<std::string>& texts, Params& params);
void add_model_flags(CLI::App& command, ModelFlags& flags);

}  // namespace mstar::apps
