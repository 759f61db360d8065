#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "mstar/ops/alignment_scores/alignment_scores_kernels.h"
#include "mstar/ops/alignment_scores/median.h"
#include "mstar/ops/attention/kv_layout.h"

namespace mstar {
namespace {

// One row's one head.
struct HeadOfRow {
  const AlignmentScoresArgs& args;
  int row;
  int head;
  std::int64_t first, num_tokens, frames;

  float* weights(std::int64_t token) const { return args.weights.data<float>() + (first + token) * columns(); }
  float* scores(std::int64_t token) const { return args.scores.data<float>() + (first + token) * columns(); }
  std::int64_t columns() const { return args.scores.dim(1); }
};

template <class Element>
float widened(Element v) {
  return to_float(v);
}
template <>
float widened(float v) {
  return v;
}

// Products with the keys, 16 at a time as they lie.
template <class Element>
void multiply(const HeadOfRow& h, std::int64_t token) {
  const std::int64_t dim = h.args.q.dim(2);
  const float* const q = h.args.q.data<float>() + (h.first + token) * h.args.q.stride(0) + h.head * dim;
  float* const out = h.weights(token);
  const auto* const keys = h.args.kv.keys.data<Element>();
  for (std::int64_t unit = 0; unit < h.frames; unit += kKeyUnit) {
    const Element* const at = keys + place_in_slot(h.args.kv, h.row, h.head, unit).key;
    std::array<float, kKeyUnit> sums = {};
    for (std::int64_t d = 0; d < dim; ++d)
      for (int i = 0; i < kKeyUnit; ++i) sums[static_cast<std::size_t>(i)] += q[d] * widened(at[d * kKeyUnit + i]);
    const std::int64_t count = std::min<std::int64_t>(kKeyUnit, h.frames - unit);
    for (std::int64_t i = 0; i < count; ++i) out[unit + i] = sums[static_cast<std::size_t>(i)] * h.args.scale;
  }
}

void soften(float* values, std::int64_t count) {
  const float largest = *std::max_element(values, values + count);
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - largest);
  const float factor = static_cast<float>(1.0 / sum);
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

void weigh(const HeadOfRow& h, std::int64_t token) {
  switch (h.args.kv.keys.dtype) {
    case DType::f16:
      multiply<Half>(h, token);
      break;
    case DType::bf16:
      multiply<BFloat16>(h, token);
      break;
    default:
      multiply<float>(h, token);
  }
  soften(h.weights(token), h.frames);
}

// Over the tokens, at frames [begin, end).
void normalise(const HeadOfRow& h, std::int64_t begin, std::int64_t end) {
  const auto count = static_cast<double>(h.num_tokens);
  for (std::int64_t f = begin; f < end; ++f) {
    double sum = 0, squares = 0;
    for (std::int64_t t = 0; t < h.num_tokens; ++t) sum += h.weights(t)[f];
    const double mean = sum / count;
    for (std::int64_t t = 0; t < h.num_tokens; ++t) squares += (h.weights(t)[f] - mean) * (h.weights(t)[f] - mean);
    const double deviation = std::sqrt(squares / count);
    const double factor = deviation > 0 ? 1 / deviation : 0;
    for (std::int64_t t = 0; t < h.num_tokens; ++t)
      h.weights(t)[f] = static_cast<float>((h.weights(t)[f] - mean) * factor);
  }
}

// Values [-3, count + 3) around those of `values`, reflected at both ends.
struct Reflected {
  static constexpr std::int64_t kReach = kAlignmentMedian / 2;
  const float* values;
  std::int64_t count;
  float at(std::int64_t i) const {
    const std::int64_t from = std::abs(i);
    return values[from < count ? from : 2 * (count - 1) - from];
  }
  float median(std::int64_t i) const {
    return median_of_seven(at(i - 3), at(i - 2), at(i - 1), at(i), at(i + 1), at(i + 2), at(i + 3));
  }
};

void gather(const HeadOfRow& h, std::int64_t token, bool adds) {
  constexpr std::int64_t kReach = Reflected::kReach;
  const float* const v = h.weights(token);
  const Reflected ends{v, h.frames};
  float* const out = h.scores(token);
  if (!adds) std::fill(out, out + h.columns(), 0.0f);
  const float share = h.args.share;
  if (h.frames <= kReach) {
    for (std::int64_t f = 0; f < h.frames; ++f) out[f] += share * v[f];
    return;
  }
  const std::int64_t begin = std::min(kReach, h.frames), end = std::max(begin, h.frames - kReach);
  for (std::int64_t f = 0; f < begin; ++f) out[f] += share * ends.median(f);
  for (std::int64_t f = begin; f < end; ++f)
    out[f] += share * median_of_seven(v[f - 3], v[f - 2], v[f - 1], v[f], v[f + 1], v[f + 2], v[f + 3]);
  for (std::int64_t f = end; f < h.frames; ++f) out[f] += share * ends.median(f);
}

}  // namespace

Status alignment_scores_cpu(OpContext& context, const AlignmentScoresArgs& args) {
  constexpr std::int64_t kBlock = 64;  // frames that one thread normalises
  for (int row = 0; row < args.rows.num_rows; ++row) {
    const std::int64_t first = args.rows.offsets[row], count = args.rows.offsets[row + 1] - first;
    if (count == 0) continue;
    if (const std::int64_t slot = args.kv.slots[row]; slot < 0 || slot >= args.kv.keys.dim(0))
      return internal_error("alignment_scores: row " + std::to_string(row) + " has no slot");
    const std::int64_t frames =
        std::clamp<std::int64_t>(args.frames.data<std::int32_t>()[first], 1, args.scores.dim(1));
    bool adds = args.adds;
    for (const int head : args.heads) {
      const HeadOfRow h{args, row, head, first, count, frames};
      context.parallel_for(count, [&](std::int64_t token, int) { weigh(h, token); });
      context.parallel_for((frames + kBlock - 1) / kBlock, [&](std::int64_t block, int) {
        normalise(h, block * kBlock, std::min(frames, (block + 1) * kBlock));
      });
      context.parallel_for(count, [&](std::int64_t token, int) { gather(h, token, adds); });
      adds = true;
    }
  }
  return {};
}

}  // namespace mstar
