#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "commands.h"
#include "mstar/base/log.h"
#include "mstar/server/http_server.h"
#include "runtime.h"
#include "settings.h"

namespace mstar::apps {

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  command.add_option("--threads", flags.threads, "CPU step threads (default: the cores that this process may use)");
  command.add_option("--memory", flags.memory, "device memory to plan with, such as 4G (default: all)");
  command.add_option("--weights", flags.weights, "how matrices are kept: stored, f32, f16, bf16 or i8");
  command.add_option("--max-requests", flags.max_requests, "requests worked on at once; more wait");
}

void add_serve_flags(CLI::App& command, ServeFlags& flags) {
  command.add_option("model", flags.model.model, "a checkpoint directory, or a config.yaml");
  command.add_option("--config", flags.config, "a config.yaml");
  command.add_option("--host", flags.host, "address to listen on");
  command.add_option("--port", flags.port, "port to listen on; 0 picks a free one");
  add_model_flags(command, flags.model);
}

int run_serve(const ServeFlags& flags) {
  // Blocked in every thread, so that the wait below is the one place that sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  auto settings = serve_settings(flags);
  if (!settings) {
    std::fprintf(stderr, "mstar: %s\n", settings.error().message.c_str());
    return 2;
  }
  auto runtime = Runtime::build(settings->runtime);
  if (!runtime) {
    std::fprintf(stderr, "mstar: %s\n", runtime.error().message.c_str());
    return 1;
  }
  auto http = server::HttpServer::start(settings->server, (*runtime)->frontend());
  if (!http) {
    std::fprintf(stderr, "mstar: %s\n", http.error().message.c_str());
    return 1;
  }
  std::fprintf(stderr, "%s", (*runtime)->memory_report().c_str());
  log_info("serving on http://{}:{}", settings->server.host, (*http)->port());
  const std::string url = "http://" + settings->server.host + ":" + std::to_string((*http)->port());
  std::fprintf(stderr,
               "\nTry:\n  curl %s/v1/audio/transcriptions -F model=%s -F file=@speech.wav\n"
               "  curl %s/v1/audio/transcriptions -F model=%s -F file=@speech.wav -F response_format=srt\n  curl "
               "%s/v1/models\n\n",
               url.c_str(), settings->runtime.models.front().name.c_str(), url.c_str(),
               settings->runtime.models.front().name.c_str(), url.c_str());
  int signal = 0;
  sigwait(&signals, &signal);
  log_info("{}: finishing the requests in flight", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  (*http)->stop_accepting();
  (*runtime)->frontend().drain(std::chrono::seconds(30));
  (*http)->drain(std::chrono::seconds(5));
  return 0;
}

}  // namespace mstar::apps
