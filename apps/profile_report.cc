#include "profile_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "output_files.h"
#include "runtime.h"

namespace mstar::apps {
namespace {

double us(double ns) { return std::round(ns) / 1e3; }

template <class Number>
Spread spread_over(const StepSeries& series, Number&& number) {
  std::vector<std::int64_t> values;
  values.reserve(series.last.size());
  for (const StepRecord& record : series.last) values.push_back(number(record));
  return spread_of(std::move(values));
}

// What the report says of one phase of a series.
struct PhaseRow {
  Phase phase;
  std::int64_t count = 0;
  Spread time;
  double exposed_mean = 0;
};

std::vector<PhaseRow> phase_rows(const StepSeries& series) {
  std::vector<PhaseRow> out;
  for (std::size_t p = 0; p < kNumPhases; ++p) {
    PhaseRow row{.phase = static_cast<Phase>(p), .time = {}};
    std::int64_t total = 0;
    for (const StepRecord& record : series.last) {
      row.count += record.phases[p].count;
      total += record.phases[p].ns;
    }
    if (row.count == 0 && total == 0) continue;
    row.time = spread_over(series, [p](const StepRecord& record) { return record.phases[p].ns; });
    row.exposed_mean = spread_over(series, [p](const StepRecord& record) { return record.phases[p].exposed_ns; }).mean;
    out.push_back(row);
  }
  return out;
}

double mean_rows(const StepSeries& series) {
  return spread_over(series, [](const StepRecord& record) { return std::int64_t{record.rows}; }).mean;
}

std::string table_row(const char* name, const std::string& count, const Spread& time, const std::string& exposed) {
  return fmt::format("  {:<12}{:>8}{:>11.1f}{:>11.1f}{:>11.1f}{:>11}\n", name, count, us(time.mean), us(time.p50),
                     us(time.p95), exposed);
}

std::string table_of(const StepSeries& series) {
  std::string out =
      fmt::format("{}/{}: {}, {} rows ({:.1f}), {} steps, of which the last {} in us a step\n", series.model,
                  series.component, step_kind_name(series.kind), row_bucket_name(series.bucket), mean_rows(series),
                  series.num_steps, series.last.size());
  out += fmt::format("  {:<12}{:>8}{:>11}{:>11}{:>11}{:>11}\n", "phase", "count", "mean", "p50", "p95", "exposed");
  for (const PhaseRow& row : phase_rows(series))
    if (row.phase != Phase::idle)
      out += table_row(phase_name(row.phase), std::to_string(row.count), row.time,
                       fmt::format("{:.1f}", us(row.exposed_mean)));
  const auto sum = [&](const char* name, std::int64_t (StepRecord::*number)() const) {
    out += table_row(name, "", spread_over(series, [&](const StepRecord& record) { return (record.*number)(); }), "");
  };
  sum("= step", &StepRecord::step_ns);
  sum("= host work", &StepRecord::host_ns);
  sum("= exposed", &StepRecord::exposed_ns);
  return out;
}

nlohmann::json to_json(const Spread& spread) {
  return {{"mean", us(spread.mean)}, {"p50", us(spread.p50)}, {"p95", us(spread.p95)}};
}

nlohmann::json to_json(const StepSeries& series) {
  nlohmann::json phases = nlohmann::json::object();
  for (const PhaseRow& row : phase_rows(series))
    phases[phase_name(row.phase)] = {{"count", row.count},
                                     {"mean_us", us(row.time.mean)},
                                     {"p50_us", us(row.time.p50)},
                                     {"p95_us", us(row.time.p95)},
                                     {"exposed_mean_us", us(row.exposed_mean)}};
  const auto wait = [](const StepRecord& record) { return record.at(Phase::wait).ns; };
  return {{"model", series.model},
          {"component", series.component},
          {"kind", step_kind_name(series.kind)},
          {"rows", row_bucket_name(series.bucket)},
          {"num_steps", series.num_steps},
          {"num_kept", series.last.size()},
          {"mean_rows", mean_rows(series)},
          {"step_us", to_json(spread_over(series, [](const StepRecord& each) { return each.step_ns(); }))},
          {"wait_us", to_json(spread_over(series, wait))},
          {"host_us", to_json(spread_over(series, [](const StepRecord& each) { return each.host_ns(); }))},
          {"exposed_us", to_json(spread_over(series, [](const StepRecord& each) { return each.exposed_ns(); }))},
          {"phases", std::move(phases)}};
}

}  // namespace

Spread spread_of(std::vector<std::int64_t> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return static_cast<double>(values[std::max<std::size_t>(rank, 1) - 1]);
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.mean = sum / static_cast<double>(values.size()), .p50 = at(0.50), .p95 = at(0.95)};
}

std::string profile_table(const std::vector<const StepProfile*>& by_rank) {
  std::string out;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto all = by_rank[rank]->series();
    if (all.empty()) continue;
    out += fmt::format(
        "steps of rank {}: 'wait' is for the device, 'exposed' is the host's work that no step in flight hid\n", rank);
    for (const StepSeries& series : all) out += table_of(series);
  }
  return out;
}

std::string profile_json(const std::vector<const StepProfile*>& by_rank) {
  nlohmann::json workers = nlohmann::json::array();
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    nlohmann::json steps = nlohmann::json::array();
    for (const StepSeries& series : by_rank[rank]->series()) steps.push_back(to_json(series));
    workers.push_back({{"rank", rank}, {"steps", std::move(steps)}});
  }
  // A model's name may be any bytes of a path.
  return nlohmann::json({{"workers", std::move(workers)}})
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void report_profile(const Runtime& runtime) {
  const ProfileConfig& config = runtime.profile_config();
  if (config.phases) std::fputs(profile_table(runtime.profiles()).c_str(), stderr);
  if (config.trace_file.empty()) return;
  const Status written = write_atomically(config.trace_file, profile_trace(runtime.profiles()));
  std::fprintf(stderr, "mstar: %s\n",
               written ? ("wrote the timeline " + config.trace_file).c_str() : written.error().message.c_str());
}

}  // namespace mstar::apps
