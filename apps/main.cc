// mstar: serve models over HTTP, or run them from the command line.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands.h"
#include "mstar/base/log.h"
#include "worker_main.h"

int main(int argc, char** argv) {
  CLI::App app{"M* serves composite, any-to-any multimodal models.", "mstar"};
  app.set_version_flag("--version", [] { return mstar::apps::version_text(); });
  app.require_subcommand(1);
  app.fallthrough();
  std::string log_level = "info";
  app.add_option("--log-level", log_level, "trace, debug, info, warn, error or off")->capture_default_str();

  mstar::apps::ServeFlags serve;
  CLI::App* serve_command = app.add_subcommand("serve", "Serve models over HTTP (OpenAI-compatible).");
  mstar::apps::add_serve_flags(*serve_command, serve);
  mstar::apps::TranscribeFlags transcribe;
  CLI::App* transcribe_command = app.add_subcommand("transcribe", "Write down what audio files say.");
  mstar::apps::add_transcribe_flags(*transcribe_command, transcribe);
  mstar::apps::RunFlags run;
  CLI::App* run_command = app.add_subcommand("run", "Answer one request without a server.");
  mstar::apps::add_run_flags(*run_command, run);
  mstar::apps::ChatFlags chat;
  CLI::App* chat_command = app.add_subcommand("chat", "Talk with a model, here or on a server.");
  mstar::apps::add_chat_flags(*chat_command, chat);
  mstar::apps::InspectFlags inspect;
  CLI::App* inspect_command = app.add_subcommand("inspect", "Print a model's graph, memory and weight map.");
  mstar::apps::add_inspect_flags(*inspect_command, inspect);
  mstar::apps::BenchFlags bench;
  CLI::App* bench_command = app.add_subcommand("bench", "Load a server of OpenAI's completions, and measure it.");
  mstar::apps::add_bench_flags(*bench_command, bench);
  int worker_fd = -1;
  CLI::App* worker_command = app.add_subcommand("worker", "The process of one worker; started by serve.")->group("");
  worker_command->add_option("--fd", worker_fd, "its socket")->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& stop) {
    // Help and version end with 0; whatever else CLI11 says, the call was wrong.
    return app.exit(stop) == 0 ? 0 : 2;
  }
  if (!mstar::set_log_level(log_level)) {
    std::fprintf(stderr, "mstar: --log-level must be trace, debug, info, warn, error or off, not '%s'\n",
                 log_level.c_str());
    return 2;
  }
  if (worker_command->parsed()) return mstar::apps::run_worker(worker_fd);
  if (serve_command->parsed()) return mstar::apps::run_serve(serve);
  if (transcribe_command->parsed()) return mstar::apps::run_transcribe(transcribe);
  if (run_command->parsed()) return mstar::apps::run_run(run);
  if (chat_command->parsed()) return mstar::apps::run_chat(chat);
  if (bench_command->parsed()) return mstar::apps::run_bench(bench);
  return mstar::apps::run_inspect(inspect);
}
