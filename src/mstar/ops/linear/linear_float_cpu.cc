#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/linear/linear_float_cpu.cc"
#include <utility>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

constexpr int kPanel = LinearWeight::kPanel;
constexpr int kPanelVectors = kPanel / kLanes;
// What fits in registers at once: 24 accumulators with 32 registers, 12 with 16.
constexpr int kMicroRows = kLanes == 16 ? 12 : 6;
constexpr int kMicroVectors = kLanes == 4 ? 4 : 2;

// kRows x kVectors registers of c from each of kPanels panels. Each output is one chain of multiply-adds over k.
template <int kRows, int kPanels, int kVectors, class W>
HWY_INLINE void multiply(const float* HWY_RESTRICT a, std::ptrdiff_t lda, const W* HWY_RESTRICT b,
                         std::ptrdiff_t panel_stride, std::int64_t steps, float* HWY_RESTRICT c,
                         std::ptrdiff_t c_panel_stride, bool first) {
  constexpr int kAcross = kPanels * kVectors;
  V sums[kRows][kAcross];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j)
      sums[r][j] = first ? hn::Zero(kF)
                         : hn::LoadU(kF, c + (j / kVectors) * c_panel_stride + r * kPanel + (j % kVectors) * kLanes);
  }
  // Three rows share a pointer, so that the addresses fit in registers too.
  const float* rows[(kRows + 2) / 3];
#pragma GCC unroll 16
  for (int g = 0; g < (kRows + 2) / 3; ++g) rows[g] = a + 3 * g * lda;
  for (std::int64_t k = 0; k < steps; ++k) {
    V w[kAcross];
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j) w[j] = load_wide(b + (j / kVectors) * panel_stride + (j % kVectors) * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V x = hn::Set(kF, rows[r / 3][(r % 3) * lda]);
#pragma GCC unroll 16
      for (int j = 0; j < kAcross; ++j) sums[r][j] = hn::MulAdd(x, w[j], sums[r][j]);
    }
#pragma GCC unroll 16
    for (int g = 0; g < (kRows + 2) / 3; ++g) ++rows[g];
    b += kPanel;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j)
      hn::StoreU(sums[r][j], kF, c + (j / kVectors) * c_panel_stride + r * kPanel + (j % kVectors) * kLanes);
  }
}

template <int kRows, class W>
void tile_of(const void* a, std::ptrdiff_t lda, const void* b, std::int64_t steps, void* c, bool first) {
  for (int j = 0; j < kPanelVectors; j += kMicroVectors)
    multiply<kRows, 1, kMicroVectors>(static_cast<const float*>(a), lda, static_cast<const W*>(b) + j * kLanes, 0,
                                      steps, static_cast<float*>(c) + j * kLanes, 0, first);
}

template <class W, int... kRows>
void micro_tile(std::integer_sequence<int, kRows...>, const void* a, std::ptrdiff_t lda, int rows, const void* b,
                std::int64_t steps, void* c, bool first) {
  using Tile = void (*)(const void*, std::ptrdiff_t, const void*, std::int64_t, void*, bool);
  static constexpr Tile kTiles[] = {tile_of<kRows + 1, W>...};
  kTiles[rows - 1](a, lda, b, steps, c, first);
}

template <class W>
void tile(const void* a, std::ptrdiff_t lda, int rows, const void* b, std::int64_t steps, void* c, bool first) {
  constexpr std::make_integer_sequence<int, kMicroRows> kEach;
  const int upper = HWY_MIN(rows, kMicroRows);
  micro_tile<W>(kEach, a, lda, upper, b, steps, c, first);
  if (rows > upper)
    micro_tile<W>(kEach, static_cast<const float*>(a) + upper * lda, lda, rows - upper, b, steps,
                  static_cast<float*>(c) + upper * kPanel, first);
}

// Few rows: enough registers in flight to hide the latency of the chains, over several panels if need be.
template <int kRows, class W>
HWY_INLINE void few_of(const float* a, std::ptrdiff_t lda, const W* panels, std::ptrdiff_t panel_stride, int num_panels,
                       std::int64_t steps, float* c) {
  constexpr int kWant = kLanes == 16 ? (kRows == 1 ? 4 : kRows <= 4 ? 2 : 1) : (kRows == 1 ? 2 : 1);
  constexpr int kVectors = kLanes == 16 ? 2 : kRows <= 3 ? 4 : 2;
  const std::ptrdiff_t c_stride = kRows * kPanel;
  int panel = 0;
  const auto across = [&](auto count) HWY_ATTR {
    constexpr int kPanels = decltype(count)::value;
    for (; panel + kPanels <= num_panels; panel += kPanels)
      for (int j = 0; j < kPanelVectors; j += kVectors)
        multiply<kRows, kPanels, kVectors>(a, lda, panels + panel * panel_stride + j * kLanes, panel_stride, steps,
                                           c + panel * c_stride + j * kLanes, c_stride, true);
  };
  across(std::integral_constant<int, kWant>());
  if constexpr (kWant > 1) across(std::integral_constant<int, 1>());
}

template <class W>
void few_rows(const void* a, std::ptrdiff_t lda, int rows, const void* panels, std::size_t panel_bytes, int num_panels,
              std::int64_t steps, void* c) {
  const auto* x = static_cast<const float*>(a);
  const auto* w = static_cast<const W*>(panels);
  const auto stride = static_cast<std::ptrdiff_t>(panel_bytes / sizeof(W));
  auto* out = static_cast<float*>(c);
  switch (rows) {
    case 1:
      return few_of<1>(x, lda, w, stride, num_panels, steps, out);
    case 2:
      return few_of<2>(x, lda, w, stride, num_panels, steps, out);
    case 3:
      return few_of<3>(x, lda, w, stride, num_panels, steps, out);
    case 4:
      return few_of<4>(x, lda, w, stride, num_panels, steps, out);
    case 5:
      return few_of<5>(x, lda, w, stride, num_panels, steps, out);
    case 6:
      return few_of<6>(x, lda, w, stride, num_panels, steps, out);
    default:
      break;
  }
  if constexpr (kLanes == 16) {
    if (rows == 7) return few_of<7>(x, lda, w, stride, num_panels, steps, out);
    return few_of<8>(x, lda, w, stride, num_panels, steps, out);
  } else {
    // Sixteen registers hold four rows: each panel is read twice, the second time from cache.
    for (int panel = 0; panel < num_panels; ++panel) {
      few_of<4>(x, lda, w + panel * stride, stride, 1, steps, out + panel * rows * kPanel);
      float* rest = out + (panel * rows + 4) * kPanel;
      if (rows == 7) few_of<3>(x + 4 * lda, lda, w + panel * stride, stride, 1, steps, rest);
      if (rows == 8) few_of<4>(x + 4 * lda, lda, w + panel * stride, stride, 1, steps, rest);
    }
  }
}

template <class W>
void widen(const void* from, std::int64_t steps, void* to) {
  for (std::int64_t i = 0; i < steps * kPanel; i += kLanes)
    hn::StoreU(load_wide(static_cast<const W*>(from) + i), kF, static_cast<float*>(to) + i);
}

template <class W>
constexpr LinearTiles tiles_of() {
  return {tile<W>, few_rows<W>, sizeof(W) < 4 ? widen<W> : nullptr, kPanel * sizeof(W)};
}

const LinearTiles& choose_float_tiles(DType storage) {
  static constexpr LinearTiles kF32 = tiles_of<float>(), kF16 = tiles_of<Half>(), kBf16 = tiles_of<BFloat16>();
  return storage == DType::f32 ? kF32 : storage == DType::f16 ? kF16 : kBf16;
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(choose_float_tiles);
const LinearTiles& float_tiles(DType storage) { return HWY_DYNAMIC_DISPATCH(choose_float_tiles)(storage); }
}  // namespace mstar
#endif
