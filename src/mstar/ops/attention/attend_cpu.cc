#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/attention/attend_cpu.cc"
#include <algorithm>
#include <limits>
#include <utility>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/attention/attend.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

constexpr int kUnitVectors = kKeyUnit / kLanes;
constexpr int kScoreStride = kKeyBlock + 16;  // not a power of two: rows must not share cache sets
constexpr int kBlockUnits = kKeyBlock / kKeyUnit;
constexpr int kRowsAtOnce = kLanes == 16 ? 12 : 6;

struct Scratch {
  Scratch(float* base, std::int64_t head_dim, std::int64_t value_width)
      : q_stride(head_dim + 16),
        out_stride(value_width),
        scores(base),
        q(scores + kTilePairs * kScoreStride),
        out(q + kTilePairs * q_stride),
        largest(out + kTilePairs * out_stride),
        sum(largest + 16),
        correction(sum + 16) {}
  std::int64_t q_stride, out_stride;
  float *scores, *q, *out;            // [kTilePairs] rows each
  float *largest, *sum, *correction;  // [16]
};

// Scores of kRows queries against kUnits units of keys: chains over head_dim.
template <int kRows, int kUnits, class W>
HWY_INLINE void score_units(const float* HWY_RESTRICT q, std::int64_t q_stride, const W* const* units,
                            std::int64_t key_stride, std::int64_t head_dim, float* HWY_RESTRICT scores) {
  constexpr int kAcross = kUnits * kUnitVectors;
  V sums[kRows][kAcross];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j) sums[r][j] = hn::Zero(kF);
  }
  const float* rows[(kRows + 2) / 3];
#pragma GCC unroll 16
  for (int g = 0; g < (kRows + 2) / 3; ++g) rows[g] = q + 3 * g * q_stride;
  const W* keys[kUnits];
#pragma GCC unroll 16
  for (int u = 0; u < kUnits; ++u) keys[u] = units[u];
  for (std::int64_t i = 0; i < head_dim; ++i) {
    V k[kAcross];
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j) k[j] = load_wide(keys[j / kUnitVectors] + (j % kUnitVectors) * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V x = hn::Set(kF, rows[r / 3][(r % 3) * q_stride]);
#pragma GCC unroll 16
      for (int j = 0; j < kAcross; ++j) sums[r][j] = hn::MulAdd(x, k[j], sums[r][j]);
    }
#pragma GCC unroll 16
    for (int g = 0; g < (kRows + 2) / 3; ++g) ++rows[g];
#pragma GCC unroll 16
    for (int u = 0; u < kUnits; ++u) keys[u] += key_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j) hn::StoreU(sums[r][j], kF, scores + r * kScoreStride + j * kLanes);
  }
}

template <int kRows, class W>
void score_rows(const float* q, std::int64_t q_stride, const W* const* units, int num_units, std::int64_t key_stride,
                std::int64_t head_dim, float* scores) {
  // Enough chains in flight for few rows, enough work per load for many.
  constexpr int kUnits = kLanes == 16 ? (kRows == 1 ? 8 : kRows == 2 ? 4 : 2) : (kRows == 1 ? 4 : kRows <= 3 ? 2 : 1);
  int unit = 0;
  for (; unit + kUnits <= num_units; unit += kUnits)
    score_units<kRows, kUnits>(q, q_stride, units + unit, key_stride, head_dim, scores + unit * kKeyUnit);
  for (; unit < num_units; ++unit)
    score_units<kRows, 1>(q, q_stride, units + unit, key_stride, head_dim, scores + unit * kKeyUnit);
}

// out += weights * values for kVectors registers of a value row, key by key over the block's units; first out *=
// correction.
template <int kRows, int kVectors, class W>
HWY_INLINE void add_value_columns(const float* HWY_RESTRICT weights, const float* correction, const W* const* units,
                                  std::int64_t num_keys, std::int64_t value_width, std::int64_t column,
                                  float* HWY_RESTRICT out) {
  V sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(kF, correction[r]);
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j)
      sums[r][j] = hn::Mul(factor, hn::LoadU(kF, out + r * value_width + column + j * kLanes));
  }
  for (std::int64_t first = 0; first < num_keys; first += kKeyUnit) {
    const W* value = units[first / kKeyUnit] + column;
    const std::int64_t count = HWY_MIN(num_keys - first, std::int64_t{kKeyUnit});
    for (std::int64_t t = 0; t < count; ++t, value += value_width, ++weights) {
      V v[kVectors];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) v[j] = load_wide(value + j * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V weight = hn::Set(kF, weights[r * kScoreStride]);
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) sums[r][j] = hn::MulAdd(weight, v[j], sums[r][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) hn::StoreU(sums[r][j], kF, out + r * value_width + column + j * kLanes);
  }
}

template <int kRows, class W>
void add_values(const float* weights, const float* correction, const W* const* units, std::int64_t num_keys,
                std::int64_t value_width, float* out) {
  constexpr int kWide = kLanes == 16 ? (kRows <= 6 ? 4 : 2) : (kRows == 1 ? 8 : kRows <= 3 ? 4 : 2);
  constexpr int kNarrow = kUnitVectors;
  std::int64_t column = 0;
  for (; column + kWide * kLanes <= value_width; column += kWide * kLanes)
    add_value_columns<kRows, kWide>(weights, correction, units, num_keys, value_width, column, out);
  for (; column < value_width; column += kNarrow * kLanes)
    add_value_columns<kRows, kNarrow>(weights, correction, units, num_keys, value_width, column, out);
}

template <class W>
struct Rows {
  using Score = void (*)(const float*, std::int64_t, const W* const*, int, std::int64_t, std::int64_t, float*);
  using Add = void (*)(const float*, const float*, const W* const*, std::int64_t, std::int64_t, float*);
  template <int... kRows>
  static Score score_of(int rows, std::integer_sequence<int, kRows...>) {
    static constexpr Score kTable[] = {score_rows<kRows + 1, W>...};
    return kTable[rows - 1];
  }
  template <int... kRows>
  static Add add_of(int rows, std::integer_sequence<int, kRows...>) {
    static constexpr Add kTable[] = {add_values<kRows + 1, W>...};
    return kTable[rows - 1];
  }
};

// Scores of one pair to weights, masked, against the running maximum. Powers of two instead of e: `factor` is the scale
// times log2 e, and largest is in those units. A pair that sees no key of this block gets weights 0 and correction 1.
HWY_INLINE void weigh(float* scores, std::int64_t seen, float factor, float* largest, float* sum, float* correction) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  if (seen <= 0) {
    for (int i = 0; i < kKeyBlock; i += kLanes) hn::StoreU(hn::Zero(kF), kF, scores + i);
    *correction = 1.0f;
    return;
  }
  V top = hn::Set(kF, kNone);
  for_lanes(HWY_MIN(seen, std::int64_t{kKeyBlock}), [&](std::int64_t i, int lanes) HWY_ATTR {
    const V score = hn::LoadU(kF, scores + i);
    top = hn::Max(top, lanes == kLanes ? score
                                       : hn::IfThenElse(hn::FirstN(kF, static_cast<std::size_t>(lanes)), score,
                                                        hn::Set(kF, kNone)));
  });
  const float before = *largest;
  *largest = HWY_MAX(before, hn::GetLane(hn::MaxOfLanes(kF, top)) * factor);
  const V scale = hn::Set(kF, factor), now = hn::Set(kF, *largest);
  V parts[kSixteen];
  for (int j = 0; j < kSixteen; ++j) parts[j] = hn::Zero(kF);
  for (int i = 0; i < kKeyBlock; i += 16) {
    for (int j = 0; j < kSixteen; ++j) {
      const std::int64_t at = i + j * kLanes;
      V weight = hn::Zero(kF);
      if (at < seen) {
        weight = exp2_below_zero(hn::MulSub(hn::LoadU(kF, scores + at), scale, now));
        if (at + kLanes > seen)
          weight = hn::IfThenElseZero(hn::FirstN(kF, static_cast<std::size_t>(seen - at)), weight);
      }
      hn::StoreU(weight, kF, scores + at);
      parts[j] = hn::Add(parts[j], weight);
    }
  }
  HWY_ALIGN float lanes[16];
  for (int j = 0; j < kSixteen; ++j) hn::Store(parts[j], kF, lanes + j * kLanes);
  // Before the first block nothing was seen: exactly 0, so that nothing of the zeroed state remains.
  *correction = before == kNone ? 0.0f : hn::GetLane(exp2_below_zero(hn::Set(kF, before - *largest)));
  *sum = *sum * *correction + sum_of_sixteen(lanes);
}

template <class W>
void attend(const AttendTile& tile, float* base) {
  const KvUnits& kv = tile.kv;
  const std::int64_t d = tile.head_dim, width = kv.value_width;
  const int n = tile.num_pairs;
  const float factor = tile.scale * 1.44269504088896341f;
  Scratch s(base, d, width);
  std::int64_t num_keys = 0;
  for (int p = 0; p < n; ++p) {
    std::copy_n(tile.q[p], d, s.q + p * s.q_stride);
    s.largest[p] = -std::numeric_limits<float>::infinity();
    s.sum[p] = 0;
    num_keys = std::max(num_keys, tile.num_keys[p]);
  }
  std::fill_n(s.out, n * width, 0.0f);
  constexpr std::make_integer_sequence<int, kRowsAtOnce> kEach;
  for (std::int64_t begin = 0; begin < num_keys; begin += kKeyBlock) {
    const std::int64_t count = HWY_MIN(num_keys - begin, std::int64_t{kKeyBlock});
    const int num_units = static_cast<int>((count + kKeyUnit - 1) / kKeyUnit);
    const W *keys[kBlockUnits] = {}, *values[kBlockUnits] = {};
    for (int u = 0; u < num_units; ++u) {
      keys[u] = static_cast<const W*>(kv.keys) + kv.key_offset(begin / kKeyUnit + u, d);
      values[u] = static_cast<const W*>(kv.values) + kv.value_offset(begin / kKeyUnit + u);
    }
    for (int p = 0; p < n; p += kRowsAtOnce) {
      const int rows = HWY_MIN(n - p, kRowsAtOnce);
      float* scores = s.scores + p * kScoreStride;
      Rows<W>::score_of(rows, kEach)(s.q + p * s.q_stride, s.q_stride, keys, num_units, kv.key_stride, d, scores);
      for (int i = 0; i < rows; ++i)
        weigh(scores + i * kScoreStride, tile.num_keys[p + i] - begin, factor, s.largest + p + i, s.sum + p + i,
              s.correction + p + i);
      Rows<W>::add_of(rows, kEach)(scores, s.correction + p, values, count, width, s.out + p * width);
    }
  }
  for (int p = 0; p < n; ++p) {
    const V total = hn::Set(kF, s.sum[p] > 0 ? s.sum[p] : 1.0f);
    for_lanes(d, [&](std::int64_t i, int lanes) HWY_ATTR {
      store_up_to(hn::Div(hn::LoadU(kF, s.out + p * width + i), total), tile.out[p] + i, lanes);
    });
  }
}

void attend_any(const AttendTile& tile, float* scratch) {
  switch (tile.kv.dtype) {
    case DType::f16:
      return attend<Half>(tile, scratch);
    case DType::bf16:
      return attend<BFloat16>(tile, scratch);
    default:
      return attend<float>(tile, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(attend_any);

void attend_tile(const AttendTile& tile, float* scratch) { HWY_DYNAMIC_DISPATCH(attend_any)(tile, scratch); }

std::size_t attend_scratch_floats(std::int64_t head_dim) {
  const std::int64_t width = (head_dim + 15) / 16 * 16;
  return static_cast<std::size_t>(kTilePairs * (kKeyBlock + 16 + head_dim + 16 + width) + 3 * 16);
}

void pack_key_unit(const float* keys, std::int64_t stride, int count, std::int64_t head_dim, float* to) {
  for (std::int64_t i = 0; i < head_dim; ++i) {
    for (int t = 0; t < count; ++t) to[i * kKeyUnit + t] = keys[t * stride + i];
    for (int t = count; t < kKeyUnit; ++t) to[i * kKeyUnit + t] = 0;
  }
}

}  // namespace mstar
#endif
