#include "weight_cache.h"

#include <cstdlib>
#include <span>

namespace mstar::apps {
namespace {

constexpr const char* kSpeech[] = {"whisper-base", "whisper-tiny.en"};
constexpr const char* kChat[] = {"smollm2-135m"};

bool holds_weights(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::string first_cached(std::span<const char* const> names) {
  const std::filesystem::path cache = weight_cache();
  for (const char* name : names)
    if (!cache.empty() && holds_weights(cache / name)) return (cache / name).string();
  return {};
}

Error none_cached(const std::string& wanted) {
  const std::filesystem::path cache = weight_cache();
  return bad_model("no model: name one, or run ./dev weights " + wanted + " to fetch the default one into " +
                   (cache.empty() ? std::string("~/.cache/mstar/weights") : cache.string()));
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

Result<std::string> default_speech_model() {
  if (std::string found = first_cached(kSpeech); !found.empty()) return found;
  return none_cached("whisper-base");
}

Result<std::vector<std::string>> default_models() {
  std::vector<std::string> out;
  for (const std::span<const char* const> names :
       {std::span<const char* const>(kSpeech), std::span<const char* const>(kChat)})
    if (std::string found = first_cached(names); !found.empty()) out.push_back(std::move(found));
  if (out.empty()) return none_cached("whisper-base");
  return out;
}

}  // namespace mstar::apps
