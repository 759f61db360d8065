#include "startup_text.h"

#include <algorithm>
#include <filesystem>

namespace mstar::apps {
namespace {

constexpr const char* kSamples[] = {
    "/usr/share/pocketsphinx/test/data/librivox/sense_and_sensibility_01_austen_64kb-0880.wav",
    "/usr/share/sounds/alsa/Front_Center.wav"};

bool serves(const ServedModel& model, decl::Route route) {
  return std::find(model.routes.begin(), model.routes.end(), route) != model.routes.end();
}

std::string names_of(const ServedModel& model) {
  std::string out = model.name;
  for (const std::string& alias : model.aliases) out += ", " + alias;
  return out;
}

std::string commands(const Startup& s) {
  for (const ServedModel& model : s.models) {
    if (!serves(model, decl::Route::audio_transcriptions)) continue;
    const std::string call =
        "  curl " + s.url + "/v1/audio/transcriptions -F model=" + model.name + " -F file=@" + s.sample;
    return call + "\n" + call + " -F response_format=srt\n  curl " + s.url + "/v1/models\n";
  }
  const std::string name = s.models.empty() ? "" : s.models.front().name;
  return "  curl " + s.url + "/generate -F model=" + name + " -F text='Hello'\n  curl " + s.url +
         "/v1/models\n  curl " + s.url + "/metrics\n";
}

}  // namespace

std::string url_of(const std::string& host, std::uint16_t port) {
  std::string shown = host;
  if (host.empty() || host == "0.0.0.0") shown = "127.0.0.1";
  if (host == "::") shown = "::1";
  if (shown.find(':') != std::string::npos) shown = "[" + shown + "]";
  return "http://" + shown + ":" + std::to_string(port);
}

std::string startup_text(const Startup& s) {
  std::string out = "memory on " + s.device + ":\n" + memory_table(s.memory);
  for (const ServedModel& model : s.models) out += "serving " + names_of(model) + "\n";
  return out + "ready on " + s.url + "\n\nTry:\n" + commands(s) + "\n";
}

std::string find_sample() {
  std::error_code ignored;
  for (const char* path : kSamples)
    if (std::filesystem::exists(path, ignored)) return path;
  return "speech.wav";
}

}  // namespace mstar::apps
