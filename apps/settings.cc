#include "settings.h"

#include <cctype>
#include <charconv>

#include "weight_cache.h"

namespace mstar::apps {

Result<std::size_t> parse_bytes(const std::string& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  int shift = -1;
  if (unit.empty()) shift = 0;
  for (const auto& [names, bits] : {std::pair{std::string_view("kK"), 10}, std::pair{std::string_view("mM"), 20},
                                    std::pair{std::string_view("gG"), 30}})
    if (!unit.empty() && names.find(unit[0]) != names.npos &&
        (unit.size() == 1 || unit == std::string(1, unit[0]) + "iB"))
      shift = bits;
  if (error != std::errc() || shift < 0 || value > (~std::size_t{0} >> shift))
    return invalid_request("'" + text + "' is no size; write 4G, 512M or a number of bytes");
  return value << shift;
}

Status parse_params(const std::vector<std::string>& texts, Params& params) {
  for (const std::string& each : texts) {
    const std::size_t at = each.find('=');
    if (at == 0 || at == std::string::npos) return invalid_request("--param wants NAME=VALUE, not '" + each + "'");
    params.set(each.substr(0, at), each.substr(at + 1));
  }
  return ok_status();
}

Result<RuntimeConfig> runtime_settings(const ModelFlags& flags) {
  RuntimeConfig out;
  ModelConfig model{.model = find_model(flags.model)};
  model.options.set("weights", flags.weights);
  out.models.push_back(std::move(model));
  out.num_threads = flags.threads;
  if (flags.max_requests < 1) return invalid_request("--max-requests must be at least 1");
  out.max_concurrent_requests = flags.max_requests;
  if (!flags.memory.empty()) {
    MSTAR_TRY_ASSIGN(out.memory_bytes, parse_bytes(flags.memory));
  }
  return out;
}

Result<Settings> serve_settings(const ServeFlags& flags) {
  Settings out;
  if (flags.model.model.empty()) return invalid_request("name a model: a checkpoint directory or a config.yaml");
  MSTAR_TRY_ASSIGN(out.runtime, runtime_settings(flags.model));
  if (flags.port < 0 || flags.port > 65535) return invalid_request("--port must be between 0 and 65535");
  out.server.host = flags.host;
  out.server.port = static_cast<std::uint16_t>(flags.port);
  return out;
}

}  // namespace mstar::apps
