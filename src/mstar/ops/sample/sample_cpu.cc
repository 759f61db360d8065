#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "mstar/ops/sample/row_scan.h"
#include "mstar/ops/sample/sample_kernels.h"

namespace mstar {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
using Logits = std::span<float>;

struct Candidate {
  float logit;
  std::int32_t id;
};
// Likelier first, ties to the lower id.
bool likelier(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

std::size_t clamp_id(std::int64_t id, std::size_t vocabulary) {
  return static_cast<std::size_t>(std::clamp<std::int64_t>(id, 0, static_cast<std::int64_t>(vocabulary)));
}

void mask(Logits logits, std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids)
    if (id >= 0 && static_cast<std::size_t>(id) < logits.size()) logits[static_cast<std::size_t>(id)] = kMasked;
}

void penalise(Logits logits, const SampleRow& row) {
  if (row.repetition_penalty == 1.0f) return;
  for (const std::int32_t id : row.seen) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  }
}

void add_biases(Logits logits, std::span<const TokenBias> biases) {
  for (const TokenBias& each : biases)
    if (each.id >= 0 && static_cast<std::size_t>(each.id) < logits.size())
      logits[static_cast<std::size_t>(each.id)] += each.value;
}

void prefer_tail(Logits logits, std::int32_t tail_begin) {
  if (tail_begin < 0) return;
  const std::size_t begin = clamp_id(tail_begin, logits.size());
  const auto head = logits.first(begin), tail = logits.subspan(begin);
  if (head.empty() || tail.empty()) return;
  const float head_largest = head[largest_index(head)], tail_largest = tail[largest_index(tail)];
  if (tail_largest == kMasked) return;
  const double tail_log = tail_largest + std::log(sum_of_exp(tail, tail_largest));
  if (tail_log > head_largest) std::fill(head.begin(), head.end(), kMasked);
}

double uniform(const SampleRow& row) { return philox_uniform(row.seed, row.offset); }

// The token where the running sum of weights, in order of ids, passes `target`.
std::int32_t token_at(std::span<const float> logits, float largest, float inverse_temperature, double target) {
  double reached = 0;
  std::int32_t last = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kScanBlock) {
    const auto block = logits.subspan(begin, std::min(kScanBlock, logits.size() - begin));
    const double sum = sum_of_exp(block, largest, inverse_temperature);
    if (reached + sum <= target) {
      reached += sum;
      continue;
    }
    for (std::size_t i = 0; i < block.size(); ++i) {
      const double weight = sum_of_exp(block.subspan(i, 1), largest, inverse_temperature);
      if (weight > 0) last = static_cast<std::int32_t>(begin + i);
      if ((reached += weight) > target) return last;
    }
  }
  return last;  // rounding: the target lies a hair beyond the sum
}

// Likeliest candidates first, as many as top_k and top_p ask for; `total` is the weight of all. Sorts no more than
// needed.
std::span<const Candidate> nucleus(std::span<Candidate> candidates, const SampleRow& row, float largest, double total,
                                   double* kept_total) {
  const std::size_t limit =
      row.top_k > 0 ? std::min(candidates.size(), static_cast<std::size_t>(row.top_k)) : candidates.size();
  const auto weight = [&](const Candidate& c) {
    return std::exp(static_cast<double>(c.logit - largest) / row.temperature);
  };
  std::size_t sorted = 0, kept = 0;
  const auto sort_up_to = [&](std::size_t count) {
    const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(sorted),
               end = candidates.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(begin, end, candidates.end(), likelier);
    sorted = count;
  };
  if (row.top_k > 0) {  // top_p counts within the top k
    sort_up_to(limit);
    total = 0;
    for (std::size_t i = 0; i < limit; ++i) total += weight(candidates[i]);
  }
  double reached = 0;
  while (kept < limit && (kept == 0 || row.top_p >= 1.0f || reached < row.top_p * total)) {
    if (kept == sorted) sort_up_to(std::min(limit, std::max<std::size_t>(64, 2 * sorted)));
    reached += weight(candidates[kept++]);
  }
  *kept_total = reached;
  return candidates.first(kept);
}

// Draws among the tokens that top_k, top_p and min_p leave; `scratch` holds a vocabulary.
std::int32_t draw(std::span<const float> logits, float largest, const SampleRow& row, std::span<Candidate> scratch) {
  const float inverse_temperature = 1.0f / row.temperature;
  const bool truncates = row.top_k > 0 || row.top_p < 1.0f || row.min_p > 0;
  if (!truncates)
    return token_at(logits, largest, inverse_temperature,
                    uniform(row) * sum_of_exp(logits, largest, inverse_temperature));

  std::size_t count = 0;
  const float floor =
      row.min_p > 0 ? largest + row.temperature * std::log(row.min_p) : std::numeric_limits<float>::lowest();
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] >= floor) scratch[count++] = {logits[i], static_cast<std::int32_t>(i)};
  if (row.min_p > 0) {
    for (const Candidate& c : scratch.first(count))
      total += std::exp(static_cast<double>(c.logit - largest) / row.temperature);
  } else {
    total = sum_of_exp(logits, largest, inverse_temperature);
  }
  const auto kept = nucleus(scratch.first(count), row, largest, total, &total);
  const double target = uniform(row) * total;
  double reached = 0;
  for (const Candidate& c : kept)
    if ((reached += std::exp(static_cast<double>(c.logit - largest) / row.temperature)) > target) return c.id;
  return kept.back().id;
}

}  // namespace

Status sample_cpu(OpContext& context, const SampleArgs& args) {
  const auto vocabulary = static_cast<std::size_t>(args.logits.dim(1));
  const std::size_t mark = context.arena.mark();
  std::size_t num_draws = 0;
  for (const SampleRow& row : args.rows) num_draws += row.temperature > 0;
  auto* scratch = num_draws ? static_cast<Candidate*>(context.arena.take(
                                  static_cast<std::size_t>(context.num_threads()) * vocabulary * sizeof(Candidate)))
                            : nullptr;
  context.parallel_for(args.logits.dim(0), [&](std::int64_t r, int thread) {
    const SampleRow& row = args.rows[static_cast<std::size_t>(r)];
    const Logits logits(args.logits.data<float>() + r * args.logits.stride(0), vocabulary);
    penalise(logits, row);
    add_biases(logits, row.biases);
    mask(logits, row.suppress);
    mask(logits, row.more_suppress);
    for (const TokenRange& range : row.suppress_ranges)
      for (std::size_t i = clamp_id(range.begin, vocabulary); i < clamp_id(range.end, vocabulary); ++i)
        logits[i] = kMasked;
    prefer_tail(logits, row.tail_begin);

    std::size_t token = largest_index(logits);
    const float largest = logits[token];
    float log_prob = kMasked;
    if (largest != kMasked) {
      if (row.temperature > 0)
        token = static_cast<std::size_t>(
            draw(logits, largest, row, {scratch + static_cast<std::size_t>(thread) * vocabulary, vocabulary}));
      log_prob =
          static_cast<float>(static_cast<double>(logits[token] - largest) - std::log(sum_of_exp(logits, largest)));
    }
    args.tokens.data<std::int32_t>()[r] = static_cast<std::int32_t>(token);
    args.log_probs.data<float>()[r] = log_prob;
  });
  context.arena.rewind(mark);
  return {};
}

std::size_t sample_workspace_bytes(std::int64_t vocabulary, int num_threads) {
  return static_cast<std::size_t>(num_threads) * static_cast<std::size_t>(vocabulary) * sizeof(Candidate) +
         (std::size_t{64} << 10);
}

Status token_probabilities_cpu(OpContext& context, const TokenProbabilityArgs& args) {
  const auto vocabulary = static_cast<std::size_t>(args.logits.dim(1));
  context.parallel_for(args.logits.dim(0), [&](std::int64_t r, int) {
    const std::span<const float> logits(args.logits.data<float>() + r * args.logits.stride(0), vocabulary);
    float* out = args.out.data<float>() + r * args.out.stride(0);
    float largest = kMasked;
    double sum = 0;
    if (args.among_ids) {
      for (const std::int32_t id : args.ids) largest = std::max(largest, logits[static_cast<std::size_t>(id)]);
      for (const std::int32_t id : args.ids) sum += std::exp(logits[static_cast<std::size_t>(id)] - largest);
    } else {
      largest = logits[largest_index(logits)];
      sum = sum_of_exp(logits, largest);
    }
    for (std::size_t i = 0; i < args.ids.size(); ++i)
      out[i] = static_cast<float>(std::exp(logits[static_cast<std::size_t>(args.ids[i])] - largest) / sum);
  });
  return {};
}

Status log_probabilities_cpu(OpContext&, const LogProbArgs& args) {
  const std::span<const float> logits(args.logits.data<float>(), static_cast<std::size_t>(args.logits.dim(0)));
  const float largest = logits[largest_index(logits)];
  const double log_sum = largest == kMasked ? 0 : largest + std::log(sum_of_exp(logits, largest));
  const auto write = [&](std::int64_t row, std::int32_t id) {
    float* const pair = args.out.data<float>() + 2 * row;
    pair[0] = static_cast<float>(id);
    pair[1] = static_cast<float>(logits[static_cast<std::size_t>(id)] - log_sum);
  };
  write(0, args.token);
  const std::int64_t num_top = std::min<std::int64_t>(args.out.dim(0) - 1, args.logits.dim(0));
  if (num_top == 0) return {};
  std::vector<Candidate> all(logits.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {logits[i], static_cast<std::int32_t>(i)};
  std::partial_sort(all.begin(), all.begin() + num_top, all.end(), likelier);
  for (std::int64_t i = 0; i < num_top; ++i) write(i + 1, all[static_cast<std::size_t>(i)].id);
  return {};
}

}  // namespace mstar
