#include "bench_report.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace mstar::apps {
namespace {

using load::Distribution;
using load::LoadMode;
using load::Range;
using load::Summary;
using Json = nlohmann::ordered_json;

std::string text_of(const Range& range) {
  return range.least == range.most ? std::to_string(range.least)
                                   : std::to_string(range.least) + "-" + std::to_string(range.most);
}

std::string_view mode_name(LoadMode mode) {
  switch (mode) {
    case LoadMode::closed:
      return "closed";
    case LoadMode::open:
      return "open";
    case LoadMode::offline:
      return "offline";
  }
  return "";
}

std::string mode_text(const load::LoadConfig& config) {
  switch (config.mode) {
    case LoadMode::closed:
      return fmt::format("closed loop of {} client{}", config.concurrency, config.concurrency == 1 ? "" : "s");
    case LoadMode::open:
      return fmt::format("open loop of {} requests/s", config.rate_per_s);
    case LoadMode::offline:
      return "all at once";
  }
  return "";
}

std::string_view route_path(const load::Workload& workload) {
  return workload.route == load::CompletionRoute::chat ? "/v1/chat/completions" : "/v1/completions";
}

std::string times_row(std::string_view name, const Distribution& d) {
  return fmt::format("{:<18}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name, d.mean, d.p50, d.p95, d.p99, d.max);
}

std::string times_table(const BenchReport& report) {
  const Summary& s = report.summary;
  std::string out =
      fmt::format("{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "mean", "p50", "p95", "p99", "max");
  out += times_row("first text (TTFT)", s.ttft_ms);
  if (s.gap_ms.num > 0) {
    out += times_row("between (ITL)", s.gap_ms);
    out += times_row("  |gap - median|", s.jitter_ms);
  }
  out += times_row("to the end (E2E)", s.e2e_ms);
  if (report.config.mode == LoadMode::open) out += times_row("begun late", s.late_ms);
  return out;
}

std::string tokens_text(const Summary& s) {
  std::string out = fmt::format("{:<18}{:.1f} tokens/s: {} in {:.2f} s\n", "output", s.output_tokens_per_s,
                                s.output_tokens, s.duration_s);
  if (!s.counted_by_usage) {
    out += fmt::format("{:<18}counted as pieces of text: {} answer{} had no usage\n", "", s.num_without_usage,
                       s.num_without_usage == 1 ? "" : "s");
  } else if (s.num_differing > 0) {
    out += fmt::format("{:<18}{} tokens by the server's usage, {} pieces of text; they differ in {} request{}\n", "",
                       s.usage_tokens, s.num_pieces, s.num_differing, s.num_differing == 1 ? "" : "s");
  }
  if (s.num_short > 0)
    out += fmt::format("{:<18}{} answer{} ended before the tokens asked for\n", "", s.num_short,
                       s.num_short == 1 ? "" : "s");
  if (s.prompt_tokens > 0)
    out += fmt::format("{:<18}{:.1f} tokens/s: {}, {} of them cached\n", "prompts", s.prompt_tokens_per_s,
                       s.prompt_tokens, s.cached_tokens);
  return out;
}

Json distribution_json(const Distribution& d) {
  return {{"num", d.num}, {"mean", d.mean}, {"p50", d.p50}, {"p95", d.p95}, {"p99", d.p99}, {"max", d.max}};
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  return "";
}

Json machine_json() {
  Json out{{"cpu", cpu_model()}, {"cores", std::thread::hardware_concurrency()}};
  utsname system{};
  if (::uname(&system) == 0) out["system"] = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  double load[1];
  if (::getloadavg(load, 1) == 1) out["load_average"] = load[0];
  return out;
}

Json config_json(const load::LoadConfig& config) {
  const load::Workload& w = config.workload;
  Json out{{"url", config.url.text()},
           {"route", route_path(w)},
           {"model", w.model},
           {"mode", mode_name(config.mode)},
           {"requests", config.num_requests},
           {"input", text_of(w.input_tokens)},
           {"output", text_of(w.output_tokens)},
           {"ignore_eos", w.ignore_eos},
           {"temperature", w.temperature},
           {"client_threads", config.num_threads},
           {"kernel_times", config.kernel_times}};
  if (w.route == load::CompletionRoute::completions) out["vocab"] = text_of(w.token_ids);
  if (config.mode == LoadMode::closed) out["concurrency"] = config.concurrency;
  if (config.mode == LoadMode::open) out["rate"] = config.rate_per_s;
  return out;
}

Json figures_json(const BenchReport& report) {
  const Summary& s = report.summary;
  Json out{{"duration_s", s.duration_s},
           {"requests", s.num_requests},
           {"failed", s.num_failed},
           {"interrupted", s.num_interrupted},
           {"failures", s.failures},
           {"failure_messages", s.messages},
           {"max_open", s.max_open},
           {"output_tokens", s.output_tokens},
           {"output_tokens_per_s", s.output_tokens_per_s},
           {"usage_tokens", s.usage_tokens},
           {"pieces", s.num_pieces},
           {"pieces_per_s", s.pieces_per_s},
           {"without_usage", s.num_without_usage},
           {"counts_differ", s.num_differing},
           {"short", s.num_short},
           {"prompt_tokens", s.prompt_tokens},
           {"prompt_tokens_per_s", s.prompt_tokens_per_s},
           {"cached_tokens", s.cached_tokens},
           {"requests_per_s", s.requests_per_s},
           {"ttft_ms", distribution_json(s.ttft_ms)},
           {"itl_ms", distribution_json(s.gap_ms)},
           {"gap_jitter_ms", distribution_json(s.jitter_ms)},
           {"e2e_ms", distribution_json(s.e2e_ms)}};
  if (report.config.mode == LoadMode::open) out["late_ms"] = distribution_json(s.late_ms);
  if (report.server_cpu_s) {
    out["server_cpu_s"] = *report.server_cpu_s;
    if (s.num_pieces > 0)
      out["server_cpu_us_per_piece"] = *report.server_cpu_s * 1e6 / static_cast<double>(s.num_pieces);
  }
  return out;
}

}  // namespace

std::string bench_table(const BenchReport& report) {
  const Summary& s = report.summary;
  const load::Workload& w = report.config.workload;
  std::string out = fmt::format("{}{}, model {}, {}\n", report.config.url.text(), route_path(w), w.model,
                                report.server.empty() ? "unnamed server" : report.server);
  out +=
      fmt::format("{}, prompts of {} {}, answers of {}, seed {}\n\n", mode_text(report.config), text_of(w.input_tokens),
                  w.route == load::CompletionRoute::chat ? "words" : "tokens", text_of(w.output_tokens), w.seed);
  if (report.stopped) out += "Stopped before the end; these are the requests that had ended.\n";
  out += fmt::format("{:<18}{:.2f} requests/s: {} went well, {} failed{}, {} open at most\n", "requests",
                     s.requests_per_s, s.num_requests, s.num_failed,
                     s.num_interrupted ? fmt::format(", {} given up", s.num_interrupted) : "", s.max_open);
  for (const auto& [kind, num] : s.failures)
    out += fmt::format("  {:<16}{} x {}{}\n", "", num, kind,
                       s.messages.at(kind).empty() ? "" : ": " + s.messages.at(kind));
  if (s.num_requests > 0) out += tokens_text(s) + "\n" + times_table(report);
  if (report.server_cpu_s && s.num_pieces > 0)
    out += fmt::format("\n{:<18}{:.2f} s: {:.2f} us a piece of text\n", "server's CPU", *report.server_cpu_s,
                       *report.server_cpu_s * 1e6 / static_cast<double>(s.num_pieces));
  return out;
}

std::string bench_json(const BenchReport& report) {
  const Json out{{"command", report.command},
                 {"seed", report.config.workload.seed},
                 {"version", MSTAR_VERSION},
                 {"build", MSTAR_BUILD_TYPE},
                 {"server", report.server},
                 {"machine", machine_json()},
                 {"config", config_json(report.config)},
                 {"stopped", report.stopped},
                 {"figures", figures_json(report)}};
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string bench_progress(const load::LoadProgress& progress, int num_requests, double elapsed_s) {
  std::string out =
      fmt::format("{} of {} requests, {} open, {:.0f} pieces of text/s", progress.num_ended, num_requests,
                  progress.num_open, elapsed_s > 0 ? static_cast<double>(progress.num_pieces) / elapsed_s : 0.0);
  if (progress.num_failed > 0) out += fmt::format(", {} failed", progress.num_failed);
  return out;
}

std::vector<std::string> without_api_key(std::vector<std::string> arguments) {
  constexpr std::string_view kFlag = "--api-key";
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == kFlag && i + 1 < arguments.size()) arguments[i + 1] = "***";
    if (arguments[i].starts_with(std::string(kFlag) + "=")) arguments[i] = std::string(kFlag) + "=***";
  }
  return arguments;
}

}  // namespace mstar::apps
