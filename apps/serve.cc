// mstar serve: models over HTTP until SIGTERM or SIGINT.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>

#include "commands.h"
#include "mstar/base/log.h"
#include "mstar/models/silero/voice_weights.h"
#include "mstar/server/http_server.h"
#include "open_files.h"
#include "profile_report.h"
#include "settings.h"
#include "signals.h"
#include "startup_text.h"
#include "warmup.h"
#include "weight_cache.h"

namespace mstar::apps {
namespace {

constexpr std::chrono::seconds kDrain{30};
constexpr std::chrono::seconds kLastBytes{5};

// The first signal asks for the end, the second one does not wait for it. Before the server listens the first one is
// enough.
class EndRequest {
 public:
  void on_signal(int signal, int count) {
    std::lock_guard lock(mutex_);
    if (count > 1 || !serving_) ::_exit(count > 1 ? exit_status_of(signal) : 0);
    signal_ = signal;
    asked_.notify_all();
  }
  void serving() {
    std::lock_guard lock(mutex_);
    serving_ = true;
  }
  int wait() {
    std::unique_lock lock(mutex_);
    asked_.wait(lock, [this] { return signal_ != 0; });
    return signal_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable asked_;
  bool serving_ = false;
  int signal_ = 0;
};

int complain(const Error& error, int status) {
  std::fprintf(stderr, "mstar: %s\n", error.message.c_str());
  return status;
}

}  // namespace

void add_serve_flags(CLI::App& command, ServeFlags& flags) {
  command.add_option("models", flags.models,
                     "checkpoints (a directory or a GGUF file) or names of fetched weights, served together; or one "
                     "config.yaml (default: what ./dev weights has fetched for speech and for chat)");
  command.add_option("--config", flags.config, "a config.yaml");
  command.add_option("--host", flags.host, "address to listen on (default: 127.0.0.1)");
  command.add_option("--port", flags.port, "port to listen on; 0 picks a free one (default: 8000)");
  command.add_option("--alias", flags.aliases,
                     "a further name, as NAME, or NAME=MODEL where there are several models; may be given again");
  command
      .add_option("--api-key", flags.api_keys,
                  "a key that clients must send as 'Authorization: Bearer KEY'; several with commas")
      ->delimiter(',')
      ->envname("MSTAR_API_KEY");
  command.add_option(
      "--cors", flags.cors_origins,
      "an origin whose web pages may read answers, '*' for all (the default), '' for none; may be given again");
  add_model_flags(command, flags.model);
  add_profile_flag(command, flags.model);
}

// Requests of parts first: their parts are requests too.
bool drain(Runtime& runtime) {
  const auto deadline = std::chrono::steady_clock::now() + kDrain;
  const bool ended = runtime.frontend().drain(kDrain);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return runtime.conductor().drain(std::max(left, std::chrono::milliseconds(0))) && ended;
}

int run_serve(const ServeFlags& flags) {
  EndRequest end;
  const SignalWatch signals([&](int signal, int count) { end.on_signal(signal, count); });
  std::signal(SIGPIPE, SIG_IGN);

  auto settings = serve_settings(flags);
  if (!settings) return complain(settings.error(), settings.error().code == Code::invalid_request ? 2 : 1);
  const std::size_t fitting = raise_open_files(settings->server.max_connections);
  if (fitting < settings->server.max_connections)
    log_warn("{}", open_files_warning(settings->server.max_connections, fitting));
  settings->server.max_connections = fitting;
  for (const WarmupRequest& each : settings->warmup) settings->runtime.wanted_models.push_back(each.model);
  if (const Status readable = check_warmup(settings->warmup); !readable) return complain(readable.error(), 1);
  auto runtime = Runtime::build(settings->runtime);
  if (!runtime) return complain(runtime.error(), runtime.error().code == Code::invalid_request ? 2 : 1);
  conductor::Conductor& frontend = (*runtime)->conductor();
  const ReplicaCounts replicas = (*runtime)->num_replicas();
  if (const Status warm = run_warmup(frontend, settings->warmup, replicas); !warm) return complain(warm.error(), 1);
  const auto calls = warmup_calls(frontend, settings->warmup, replicas);
  const Status taken = calls ? frontend.set_warmup(*calls) : Status(calls.error());
  if (!taken) return complain(taken.error(), 1);
  settings->server.stays_awake = stays_awake(settings->runtime);
  settings->server.voice = [voice = std::make_shared<const models::VoiceWeights>(find_model("silero-vad"))] {
    return voice->get();
  };
  auto http = server::HttpServer::start(settings->server, (*runtime)->frontend());
  if (!http) return complain(http.error(), 1);
  end.serving();
  const Startup startup{.memory = (*runtime)->memory(),
                        .device = (*runtime)->device_description(),
                        .models = frontend.models(),
                        .url = url_of(settings->server.host, (*http)->port()),
                        .sample = find_sample()};
  std::fputs(startup_text(startup).c_str(), stderr);

  const int signal = end.wait();
  log_info("{}: finishing the requests in flight; once more to quit at once", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  (*http)->stop_accepting();
  if (!drain(**runtime)) log_warn("some requests took too long and are given up");
  (*http)->drain(kLastBytes);
  report_profile(**runtime);
  return 0;
}

}  // namespace mstar::apps
