#include "weight_cache.h"

#include <cstdlib>

namespace mstar::apps {
namespace {

constexpr const char* kDefaults[] = {"whisper-base", "whisper-tiny.en"};

bool holds_weights(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

}  // namespace

std::filesystem::path weight_cache() {
  // The XDG rule, which tools/fetch_weights.py keeps too: a relative path is ignored.
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg == '/')
    return std::filesystem::path(xdg) / "mstar/weights";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::filesystem::path(home) / ".cache/mstar/weights";
  return {};
}

std::string find_model(const std::string& name) {
  std::error_code ignored;
  if (name.empty() || std::filesystem::exists(name, ignored)) return name;
  const std::filesystem::path cache = weight_cache();
  const bool plain = name.find('/') == std::string::npos && name != "..";
  if (plain && !cache.empty() && holds_weights(cache / name)) return (cache / name).string();
  return name;
}

Result<std::string> default_model() {
  const std::filesystem::path cache = weight_cache();
  for (const char* name : kDefaults)
    if (!cache.empty() && holds_weights(cache / name)) return (cache / name).string();
  return bad_model("no model: name one with --model, or run ./dev weights to fetch the default one into " +
                   (cache.empty() ? std::string("~/.cache/mstar/weights") : cache.string()));
}

}  // namespace mstar::apps
