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

// `rest`: the body's fields after "model", with the closing brace.
std::string json_call(const std::string& url, const std::string& model, const std::string& rest) {
  return "  curl " + url + " -H 'Content-Type: application/json' -d '{\"model\": \"" + model + "\", " + rest + "'\n";
}

// One or two commands for what each model does best.
std::string commands(const Startup& s) {
  std::string out;
  for (const ServedModel& model : s.models) {
    if (serves(model, decl::Route::audio_transcriptions)) {
      const std::string call =
          "  curl " + s.url + "/v1/audio/transcriptions -F model=" + model.name + " -F file=@" + s.sample;
      out += call + "\n" + call + " -F response_format=srt\n";
    } else if (serves(model, decl::Route::chat_completions)) {
      out += json_call(s.url + "/v1/chat/completions", model.name,
                       R"("messages": [{"role": "user", "content": "What is photosynthesis?"}]})");
    } else if (serves(model, decl::Route::completions)) {
      out += json_call(s.url + "/v1/completions", model.name, R"("prompt": "Once upon a time"})");
    } else {
      const std::string fields = model.example.empty() ? R"({"text": "Hello"})" : model.example;
      out += json_call(s.url + "/generate", model.name, fields.substr(1));
    }
  }
  out += "  curl " + s.url + "/v1/models\n";
  if (s.models.size() == 1 && !serves(s.models.front(), decl::Route::audio_transcriptions))
    out += "  curl " + s.url + "/metrics\n";
  return out;
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
