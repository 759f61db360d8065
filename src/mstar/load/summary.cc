#include "mstar/load/summary.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mstar::load {
namespace {

double percentile(const std::vector<double>& sorted, double fraction) {
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
}

double to_ms(std::int64_t us) { return static_cast<double>(us) / 1000; }

int max_open(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<std::int64_t, int>> changes;
  for (const RequestRecord& each : records) {
    changes.emplace_back(each.begin_us, 1);
    changes.emplace_back(each.end_us, -1);
  }
  std::sort(changes.begin(), changes.end());
  int open = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, open += change);
  return most;
}

struct Times {
  std::vector<double> ttft, gaps, e2e, late;
};

void add_times(const RequestRecord& record, Times& out) {
  out.e2e.push_back(to_ms(record.end_us - record.due_us));
  out.late.push_back(to_ms(record.begin_us - record.due_us));
  if (!record.piece_us.empty()) out.ttft.push_back(to_ms(record.piece_us.front() - record.due_us));
  for (std::size_t i = 1; i < record.piece_us.size(); ++i)
    out.gaps.push_back(to_ms(record.piece_us[i] - record.piece_us[i - 1]));
}

void add_counts(const RequestRecord& record, Summary& out) {
  ++out.num_requests;
  const auto pieces = static_cast<std::int64_t>(record.piece_us.size());
  out.num_pieces += pieces;
  std::int64_t tokens = pieces;
  if (record.usage) {
    tokens = record.usage->completion_tokens;
    out.usage_tokens += tokens;
    out.prompt_tokens += record.usage->prompt_tokens;
    out.cached_tokens += record.usage->cached_tokens;
    out.num_differing += tokens != pieces;
  } else {
    ++out.num_without_usage;
  }
  out.num_short += tokens < record.output_tokens;
}

}  // namespace

Distribution distribution(std::vector<double> values) {
  Distribution out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  out.num = static_cast<std::int64_t>(values.size());
  for (const double each : values) out.mean += each / static_cast<double>(values.size());
  out.p50 = percentile(values, 0.50);
  out.p95 = percentile(values, 0.95);
  out.p99 = percentile(values, 0.99);
  out.max = values.back();
  return out;
}

Summary summarise(const std::vector<RequestRecord>& records, std::int64_t duration_us) {
  Summary out;
  Times times;
  for (const RequestRecord& each : records) {
    if (each.interrupted) {
      ++out.num_interrupted;
    } else if (!each.failure.empty()) {
      ++out.num_failed;
      ++out.failures[each.failure];
      out.messages.try_emplace(each.failure, each.message);
    } else {
      add_counts(each, out);
      add_times(each, times);
    }
  }
  out.max_open = max_open(records);
  out.counted_by_usage = out.num_requests > 0 && out.num_without_usage == 0;
  out.output_tokens = out.counted_by_usage ? out.usage_tokens : out.num_pieces;
  out.duration_s = static_cast<double>(duration_us) / 1e6;
  if (duration_us > 0) {
    out.output_tokens_per_s = static_cast<double>(out.output_tokens) / out.duration_s;
    out.pieces_per_s = static_cast<double>(out.num_pieces) / out.duration_s;
    out.prompt_tokens_per_s = static_cast<double>(out.prompt_tokens) / out.duration_s;
    out.requests_per_s = out.num_requests / out.duration_s;
  }
  out.gap_ms = distribution(times.gaps);
  std::vector<double>& jitter = times.gaps;
  for (double& each : jitter) each = std::abs(each - out.gap_ms.p50);
  out.jitter_ms = distribution(std::move(jitter));
  out.ttft_ms = distribution(std::move(times.ttft));
  out.e2e_ms = distribution(std::move(times.e2e));
  out.late_ms = distribution(std::move(times.late));
  return out;
}

}  // namespace mstar::load
