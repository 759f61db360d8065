#include <CLI/CLI.hpp>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <sstream>

#include "commands.h"
#include "mstar/base/log.h"
#include "runtime.h"
#include "settings.h"

namespace mstar::apps {
namespace {

class Collect final : public EventSink {
 public:
  void on_event(RequestEvent event) override {
    std::lock_guard lock(mutex_);
    if (auto* chunk = std::get_if<decl::Chunk>(&event)) {
      segments.emplace_back(chunk->value.text());
      return;
    }
    if (auto* failed = std::get_if<Failed>(&event)) error = failed->error;
    done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }
  std::vector<std::string> segments;
  std::optional<Error> error;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

}  // namespace

void add_transcribe_flags(CLI::App& command, TranscribeFlags& flags) {
  command.add_option("files", flags.files, "audio files")->required();
  command.add_option("--model", flags.model.model, "a checkpoint directory")->required();
  command.add_option("--format", flags.format, "txt, srt, vtt or json");
  command.add_option("--output", flags.output, "directory to write to (default: standard output)");
  command.add_option("--language", flags.language, "language code; detected when absent");
  command.add_option("--task", flags.task, "transcribe or translate");
  command.add_option("--prompt", flags.prompt, "text that the recording is to be read as continuing");
  add_model_flags(command, flags.model);
}

int run_transcribe(const TranscribeFlags& flags) {
  auto settings = runtime_settings(flags.model);
  if (!settings) {
    std::fprintf(stderr, "mstar: %s\n", settings.error().message.c_str());
    return 2;
  }
  auto runtime = Runtime::build(*settings);
  if (!runtime) {
    std::fprintf(stderr, "mstar: %s\n", runtime.error().message.c_str());
    return 1;
  }
  int status = 0;
  for (const std::string& file : flags.files) {
    std::ifstream in(file, std::ios::binary);
    std::ostringstream bytes;
    bytes << in.rdbuf();
    decl::ApiRequest request;
    request.route = decl::Route::audio_transcriptions;
    request.model = (*runtime)->frontend().models().front().name;
    request.media.push_back({.modality = decl::Modality::audio, .field = "file", .file_name = file, .content_type = {}, .bytes = std::make_shared<const std::string>(bytes.str())});
    if (!flags.language.empty()) request.fields.set("language", flags.language);
    auto sink = std::make_shared<Collect>();
    auto id = (*runtime)->frontend().submit(std::move(request), sink);
    if (id) sink->wait();
    if (!id || sink->error) {
      std::fprintf(stderr, "mstar: %s: %s\n", file.c_str(), id ? sink->error->message.c_str() : id.error().message.c_str());
      status = 1;
      continue;
    }
    for (const std::string& segment : sink->segments) std::printf("%s\n", segment.c_str());
  }
  return status;
}

}  // namespace mstar::apps
