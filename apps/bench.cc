// mstar bench: a load test of a server of OpenAI's completions.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "bench_report.h"
#include "bench_server.h"
#include "commands.h"
#include "open_files.h"
#include "progress.h"
#include "signals.h"

namespace mstar::apps {
namespace {

using load::LoadMode;

constexpr int kMaxTokens = 1 << 20, kMaxRequests = 1'000'000, kMaxId = (1 << 24) - 1;
constexpr std::chrono::milliseconds kRedraw{250};

int complain(const Error& error) {
  std::fprintf(stderr, "mstar: %s\n", error.message.c_str());
  return error.code == Code::invalid_request ? 2 : 1;
}

// The first signal ends the load, the second one everything.
class Stopper {
 public:
  void on_signal(int signal, int count) {
    std::lock_guard lock(mutex_);
    if (count > 1 || !run_) ::_exit(exit_status_of(signal));
    signal_ = signal;
    run_->stop();
  }
  void watch(load::LoadRun* run) {
    std::lock_guard lock(mutex_);
    run_ = run;
  }
  int signal() {
    std::lock_guard lock(mutex_);
    return signal_;
  }

 private:
  std::mutex mutex_;
  load::LoadRun* run_ = nullptr;
  int signal_ = 0;
};

// Redraws a line on a terminal until it goes out of scope.
class ProgressLine {
 public:
  ProgressLine(const load::LoadRun& run, int num_requests) : board_(stderr) {
    if (!board_.on_terminal()) return;
    thread_ = std::thread([this, &run, num_requests] {
      const auto start = std::chrono::steady_clock::now();
      std::unique_lock lock(mutex_);
      while (!over_) {
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        board_.draw_text(bench_progress(run.progress(), num_requests, elapsed.count()));
        wake_.wait_for(lock, kRedraw);
      }
      board_.clear();
    });
  }
  ~ProgressLine() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  ProgressBoard board_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

Result<load::Range> range_of(const char* flag, const std::string& text, int least, int most) {
  auto range = load::parse_range(text, most);
  if (!range) return std::move(range.error()).in(flag);
  if (range->least < least) return invalid_request(std::string(flag) + " must be at least " + std::to_string(least));
  return range;
}

Status in_range(const char* flag, double value, double least, double most) {
  if (value >= least && value <= most) return ok_status();
  char text[96];
  std::snprintf(text, sizeof text, "%s must be from %g to %g", flag, least, most);
  return invalid_request(text);
}

Status read_mode(const BenchFlags& flags, load::LoadConfig& out) {
  if ((flags.concurrency ? 1 : 0) + (flags.rate ? 1 : 0) + (flags.offline ? 1 : 0) > 1)
    return invalid_request("give one of --concurrency, --rate and --offline");
  if (flags.concurrency) MSTAR_TRY(in_range("--concurrency", *flags.concurrency, 1, 100'000));
  if (flags.rate) MSTAR_TRY(in_range("--rate", *flags.rate, 0.001, 1e6));
  out.mode = flags.rate ? LoadMode::open : flags.offline ? LoadMode::offline : LoadMode::closed;
  out.concurrency = flags.concurrency.value_or(1);
  out.rate_per_s = flags.rate.value_or(1);
  return ok_status();
}

Result<load::LoadConfig> read_flags(const BenchFlags& flags) {
  load::LoadConfig out;
  MSTAR_TRY_ASSIGN(out.url, load::parse_http_url(flags.url));
  MSTAR_TRY(read_mode(flags, out));
  MSTAR_TRY(in_range("--requests", flags.num_requests, 1, kMaxRequests));
  MSTAR_TRY(in_range("--warmup", flags.num_warmup, 0, kMaxRequests));
  MSTAR_TRY(in_range("--timeout", flags.timeout_s, 0.001, 1e6));
  MSTAR_TRY(in_range("--client-threads", flags.client_threads, 1, 64));
  MSTAR_TRY(in_range("--temperature", flags.temperature, 0, 100));
  if (flags.route != "completions" && flags.route != "chat")
    return invalid_request("--route must be completions or chat, not '" + flags.route + "'");
  for (const char c : flags.api_key)
    if (c <= ' ' || c >= 0x7F) return invalid_request("--api-key has characters that do not belong into a header");
  load::Workload& work = out.workload;
  work.route = flags.route == "chat" ? load::CompletionRoute::chat : load::CompletionRoute::completions;
  MSTAR_TRY_ASSIGN(work.input_tokens, range_of("--input", flags.input, 1, kMaxTokens));
  MSTAR_TRY_ASSIGN(work.output_tokens, range_of("--output", flags.output, 1, kMaxTokens));
  MSTAR_TRY_ASSIGN(work.token_ids, range_of("--vocab", flags.vocab, 0, kMaxId));
  work.ignore_eos = flags.ignore_eos;
  work.temperature = flags.temperature;
  work.seed = flags.seed;
  out.api_key = flags.api_key;
  out.num_requests = flags.num_requests;
  out.num_threads = flags.client_threads;
  out.kernel_times = flags.kernel_times;
  out.timeout_s = flags.timeout_s;
  return out;
}

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size(); at += out.back().size() + 1) out.emplace_back(text.c_str() + at);
  return without_api_key(std::move(out));
}

// Requests before those that count, with prompts of their own.
Status warm_up(const load::LoadConfig& config, int num_requests) {
  if (num_requests == 0) return ok_status();
  load::LoadConfig warm = config;
  warm.first_index = 1ull << 61;
  warm.num_requests = num_requests;
  warm.mode = LoadMode::closed;
  if (config.mode != LoadMode::closed) warm.concurrency = num_requests;
  MSTAR_TRY_ASSIGN(const auto run, load::LoadRun::make(warm));
  run->run();
  return ok_status();
}

void warn_of_open_files(const load::LoadConfig& config) {
  const int num_open = config.mode == LoadMode::closed ? config.concurrency : config.num_requests;
  const auto wanted = static_cast<std::size_t>(std::min(num_open, config.num_requests));
  const std::size_t fitting = raise_open_files(wanted);
  if (fitting < wanted)
    std::fprintf(stderr, "mstar: %zu requests may be open, but only %zu connections fit (ulimit -n)\n", wanted,
                 fitting);
}

Status write_json(const std::string& path, const BenchReport& report) {
  if (path.empty()) return ok_status();
  std::ofstream file(path, std::ios::trunc);
  file << bench_json(report);
  file.close();
  if (!file) return unavailable("cannot write " + path);
  return ok_status();
}

// The CPU seconds that the server has used meanwhile are in the report where its process is known.
Status measure(const BenchFlags& flags, Stopper& stopper, BenchReport& report) {
  MSTAR_TRY_ASSIGN(const auto run, load::LoadRun::make(report.config));
  std::int64_t cpu_us = 0;
  if (flags.server_pid) {
    MSTAR_TRY_ASSIGN(cpu_us, cpu_time_us(*flags.server_pid));
  }
  std::vector<load::RequestRecord> records;
  {
    const ProgressLine line(*run, report.config.num_requests);
    stopper.watch(run.get());
    records = run->run();
    stopper.watch(nullptr);
  }
  if (flags.server_pid) {
    auto after = cpu_time_us(*flags.server_pid);
    if (after) report.server_cpu_s = static_cast<double>(*after - cpu_us) / 1e6;
  }
  report.summary = load::summarise(records, run->duration_us());
  return ok_status();
}

}  // namespace

void add_bench_flags(CLI::App& command, BenchFlags& flags) {
  command.add_option("--url", flags.url, "the server")->capture_default_str();
  command.add_option("--model", flags.model, "model to ask for (default: the only one that the server has)");
  command.add_option("--api-key", flags.api_key, "sent as a bearer token")->envname("OPENAI_API_KEY");
  command.add_option("--route", flags.route, "completions (prompts of token ids) or chat (prompts of words)")
      ->capture_default_str();
  command.add_option("--concurrency", flags.concurrency, "closed loop: clients with one request after the other (1)");
  command.add_option("--rate", flags.rate, "open loop: requests a second, at random times (Poisson)");
  command.add_flag("--offline", flags.offline, "all requests at once");
  command.add_option("--requests", flags.num_requests, "how many requests")->capture_default_str();
  command.add_option("--warmup", flags.num_warmup, "requests before those that count")->capture_default_str();
  command.add_option("--input", flags.input, "tokens of a prompt: a number, or a range to draw from such as 16-512")
      ->capture_default_str();
  command.add_option("--output", flags.output, "tokens of an answer, at most: a number or a range")
      ->capture_default_str();
  command.add_option("--vocab", flags.vocab, "token ids that prompts are drawn from")->capture_default_str();
  command.add_flag("--ignore-eos", flags.ignore_eos, "answers go on to their full length");
  command.add_option("--temperature", flags.temperature, "of sampling; 0 is greedy")->capture_default_str();
  command.add_option("--seed", flags.seed, "of lengths, prompts and times")->capture_default_str();
  command.add_option("--timeout", flags.timeout_s, "seconds that one request may take")->capture_default_str();
  command.add_option("--client-threads", flags.client_threads, "threads of this client")->capture_default_str();
  command.add_flag("--kernel-times", flags.kernel_times,
                   "take the kernel's word for when pieces arrive, so that delays of this client do not count");
  command.add_option("--server-pid", flags.server_pid, "process whose CPU time is measured meanwhile");
  command.add_option("--json", flags.json, "file for all figures");
}

int run_bench(const BenchFlags& flags) {
  Stopper stopper;
  const SignalWatch signals([&](int signal, int count) { stopper.on_signal(signal, count); });
  std::signal(SIGPIPE, SIG_IGN);

  auto config = read_flags(flags);
  if (!config) return complain(config.error());
  if (flags.server_pid)
    if (const auto cpu = cpu_time_us(*flags.server_pid); !cpu) return complain(Error(cpu.error()).in("--server-pid"));
  auto server = look_at_server(config->url, config->api_key, flags.model);
  if (!server) return complain(server.error());
  config->workload.model = server->model;
  warn_of_open_files(*config);
  if (const Status probed = probe_server(*config, *server); !probed) return complain(probed.error());
  if (const Status warm = warm_up(*config, flags.num_warmup); !warm) return complain(warm.error());

  BenchReport report{.config = *config, .server = server->software, .command = own_command()};
  if (const Status done = measure(flags, stopper, report); !done) return complain(done.error());
  const int signal = stopper.signal();
  report.stopped = signal != 0;
  std::fputs(bench_table(report).c_str(), stdout);
  if (const Status written = write_json(flags.json, report); !written) return complain(written.error());
  if (signal != 0) return exit_status_of(signal);
  return report.summary.num_failed > 0 || report.summary.num_requests == 0 ? 1 : 0;
}

}  // namespace mstar::apps
