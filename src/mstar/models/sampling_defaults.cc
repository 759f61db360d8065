#include "mstar/models/sampling_defaults.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "mstar/base/log.h"
#include "mstar/models/text_surface.h"

namespace mstar::models {
namespace {

// Of a number that stands in a file as `where`.
void add(Params& to, const char* field, double value, const char* where) {
  Params one;
  if (field == std::string_view("top_k") && value == std::floor(value) && std::abs(value) <= 0x1p31) {
    one.set(field, static_cast<std::int64_t>(value));
  } else {
    one.set(field, value);
  }
  if (auto read = read_sampling(one, std::numeric_limits<std::int32_t>::max()); !read) {
    log_warn("the checkpoint's {} of {} is left out: {}", where, value, read.error().message);
    return;
  }
  to.set(field, one.values().begin()->second);
}

}  // namespace

Params hf_sampling_defaults(const nlohmann::json& generation) {
  Params out;
  for (const char* field : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}) {
    const auto it = generation.find(field);
    if (it != generation.end() && it->is_number()) add(out, field, it->get<double>(), field);
  }
  const auto samples = generation.find("do_sample");
  if (samples != generation.end() && samples->is_boolean() && !samples->get<bool>()) out.set("temperature", 0.0);
  return out;
}

Params gguf_sampling_defaults(const weights::Metadata& metadata) {
  constexpr std::pair<const char*, const char*> kKeys[] = {{"general.sampling.temp", "temperature"},
                                                           {"general.sampling.top_k", "top_k"},
                                                           {"general.sampling.top_p", "top_p"},
                                                           {"general.sampling.min_p", "min_p"},
                                                           {"general.sampling.penalty_repeat", "repetition_penalty"}};
  Params out;
  for (const auto& [key, field] : kKeys) {
    if (!metadata.find(key)) continue;
    if (const auto value = metadata.number(key)) add(out, field, *value, key);
  }
  return out;
}

}  // namespace mstar::models
