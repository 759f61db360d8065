#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

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
  for (std::size_t i = 0; i < row.seen.size(); ++i) {
    const std::int32_t id = row.seen[i];
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    const auto before = row.seen.first(i);
    if (std::find(before.begin(), before.end(), id) != before.end()) continue;  // once per id
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  }
}

// Fixed order over eight partial sums, so that the compiler may use vectors without changing the bits by target.
double sum_of_exp(std::span<const float> logits, float largest) {
  double parts[8] = {};
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] != kMasked) parts[i % 8] += std::exp(logits[i] - largest);
  return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

std::size_t largest_index(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
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

double uniform(const SampleRow& row) {
  const PhiloxWords words = philox(row.seed, row.offset);
  const std::uint64_t bits = (static_cast<std::uint64_t>(words.word[1]) << 32) | words.word[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Draws among the candidates that top_k, top_p and min_p leave; `scratch` holds a vocabulary.
std::int32_t draw(std::span<const float> logits, float largest, const SampleRow& row, std::span<Candidate> scratch) {
  std::size_t count = 0;
  const float floor = row.min_p > 0 ? largest + row.temperature * std::log(row.min_p) : kMasked;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] != kMasked && logits[i] >= floor) scratch[count++] = {logits[i], static_cast<std::int32_t>(i)};
  auto kept = scratch.first(count);
  const bool truncates = (row.top_k > 0 && static_cast<std::size_t>(row.top_k) < count) || row.top_p < 1.0f;
  if (truncates) std::sort(kept.begin(), kept.end(), likelier);
  if (row.top_k > 0) kept = kept.first(std::min(count, static_cast<std::size_t>(row.top_k)));
  const auto weight = [&](const Candidate& c) {
    return std::exp(static_cast<double>(c.logit - largest) / row.temperature);
  };
  double total = 0;
  for (const Candidate& c : kept) total += weight(c);
  if (row.top_p < 1.0f) {
    double reached = 0;
    std::size_t n = 0;
    while (n < kept.size() && (n == 0 || reached < row.top_p * total)) reached += weight(kept[n++]);
    kept = kept.first(n);
    total = reached;
  }
  const double target = uniform(row) * total;
  double reached = 0;
  for (const Candidate& c : kept)
    if ((reached += weight(c)) > target) return c.id;
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
  return static_cast<std::size_t>(num_threads) * static_cast<std::size_t>(vocabulary) * sizeof(Candidate) + 256;
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

}  // namespace mstar
