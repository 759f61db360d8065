// The server in front of a fake runtime, to try clients against: server_demo [port [microseconds between tokens]].
// Prints its port, runs until a signal.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "mstar/server/fake_frontend.h"
#include "mstar/server/http_server.h"

int main(int argc, char** argv) {
  using namespace mstar;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const std::chrono::microseconds gap(argc > 2 ? std::atoi(argv[2]) : 0);
  server::FakeFrontend frontend([gap](server::FakeJob& job) {
    if (job.request.route == decl::Route::generate) {
      job.text("You said: ");
      job.text(job.request.text);
      return job.finish();
    }
    if (job.request.route == decl::Route::chat_completions || job.request.route == decl::Route::completions) {
      // For load tests: as many tokens as are asked for, in their time.
      if (job.request.fields.has("ignore_eos")) {
        const std::int64_t num = job.request.fields.get_int("max_tokens", 3).value_or(3);
        auto due = std::chrono::steady_clock::now();
        for (std::int64_t i = 0; i < num && !job.aborted; ++i) {
          std::this_thread::sleep_until(due += gap);
          job.text(" word");
        }
        return job.end(decl::Finish::length, {7, num});
      }
      for (const char* part : {"Hello", " there", "."}) job.text(part);
      return job.end(decl::Finish::stop, {7, 3});
    }
    // So that error classes can be tried: this prompt fails after the first segment.
    if (job.request.text == "fail late") {
      job.segment(0, 0, 1, " Well,");
      return job.fail(internal_error("the fake model failed"));
    }
    server::FakeFrontend::two_segments(job);
  });
  server::ServerConfig config;
  config.port = static_cast<std::uint16_t>(argc > 1 ? std::atoi(argv[1]) : 0);
  auto started = server::HttpServer::start(config, frontend);
  if (!started) {
    std::fprintf(stderr, "%s\n", started.error().message.c_str());
    return 1;
  }
  std::printf("%d\n", (*started)->port());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  return (*started)->drain(std::chrono::seconds(10)) ? 0 : 2;
}
