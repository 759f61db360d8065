// Runtimes over real models, with their workers in threads or processes. For tests.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime.h"
#include "waiting_sink.h"
#include "weight_cache.h"

namespace mstar::apps {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

inline const std::string kSeeded = std::string(MSTAR_SOURCE_DIR) + "/tests/golden/whisper_tiny_seeded/hf";

// `seconds` of a tone that glides, as a 16 kHz WAV file.
inline std::shared_ptr<const std::string> tone(int seconds) {
  const std::uint32_t num_bytes = static_cast<std::uint32_t>(seconds) * 16000 * 2;
  std::string out;
  const auto put = [&](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  out += "RIFF";
  put(num_bytes + 36);
  out += "WAVEfmt ";
  put(std::uint32_t{16});
  put(std::uint16_t{1});
  put(std::uint16_t{1});
  put(std::uint32_t{16000});
  put(std::uint32_t{32000});
  put(std::uint16_t{2});
  put(std::uint16_t{16});
  out += "data";
  put(num_bytes);
  for (int i = 0; i < seconds * 16000; ++i) {
    const double t = i / 16000.0;
    put(static_cast<std::int16_t>(8000 * std::sin(t * (900 + 300 * std::sin(t)))));
  }
  return std::make_shared<const std::string>(std::move(out));
}

inline RuntimeConfig config_of(Isolation isolation, std::vector<ModelConfig> models) {
  RuntimeConfig config;
  config.models = std::move(models);
  config.num_threads = 2;
  config.max_concurrent_requests = 4;
  config.isolation = isolation;
  config.worker_program = MSTAR_BINARY;
  return config;
}

inline ModelConfig model_of(const std::string& path, const std::string& name, int rank = 0) {
  ModelConfig out{.model = path, .name = name};
  out.node_groups = {{.components = {"features", "encoder", "cross", "decoder"}, .ranks = {rank}}};
  return out;
}

struct Call {
  std::shared_ptr<std::string> text = std::make_shared<std::string>();
  std::shared_ptr<std::atomic<int>> num_chunks = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<WaitingSink> sink;
  RequestId id;
};

inline Call call(Runtime& runtime, const std::string& model, std::shared_ptr<const std::string> audio) {
  Call out;
  out.sink = std::make_shared<WaitingSink>([text = out.text, count = out.num_chunks](const decl::Chunk& chunk) {
    *text += chunk.value.text();
    *text += '\n';
    ++*count;
  });
  decl::ApiRequest request{.route = decl::Route::audio_transcriptions, .model = model};
  request.media.push_back(
      {.field = "file", .file_name = "tone.wav", .bytes = HostValue::shared_blob(std::move(audio))});
  auto id = runtime.frontend().submit(std::move(request), out.sink);
  EXPECT_TRUE(id) << id.error().message;
  if (id) out.id = *id;
  return out;
}

inline std::string answer(Runtime& runtime, const std::string& model, std::shared_ptr<const std::string> audio) {
  const Call made = call(runtime, model, std::move(audio));
  const auto finished = made.sink->wait();
  if (!finished) return "failed: " + finished.error().message;
  return *made.text + std::to_string(finished->usage.completion_tokens);
}

template <class Condition>
bool comes_true(Condition condition, std::chrono::seconds limit = 60s) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

inline bool is_gone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

// Processes whose parent is `parent`.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.rfind("PPid:", 0) == 0 && std::stoi(line.substr(5)) == parent) out.push_back(std::stoi(name));
  }
  return out;
}

// The value of one line of /metrics that begins with `start`; -1 when there is none.
inline std::int64_t metric(Runtime& runtime, const std::string& start) {
  const std::string text = "\n" + runtime.frontend().metrics_text();
  const auto at = text.find("\n" + start);
  return at == std::string::npos ? -1 : std::stoll(text.substr(text.find("} ", at) + 2));
}

}  // namespace mstar::apps
