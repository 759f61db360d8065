// A deployment as a YAML file: models, placement, limits, the server. docs/serving.md lists the keys; the readers here
// are what it documents. Strict: an unknown key or a value of the wrong kind is an error with its place.
#pragma once

#include <string>
#include <string_view>

#include "settings.h"

namespace mstar::apps {

// Pure. invalid_request: one line for each fault, "file:line:column: ...".
Result<Settings> parse_config(std::string_view text, const std::string& file);

// Reads the file. Model and warmup paths are taken from its directory when something is there, else as find_model does.
Result<Settings> read_config(const std::string& path);

}  // namespace mstar::apps
