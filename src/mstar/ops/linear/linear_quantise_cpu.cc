#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/linear/linear_quantise_cpu.cc"
#include <bit>
#include <limits>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/linear/linear_blocks.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

constexpr int kGroupVectors = kGroupInputs / kLanes;

void quantise_groups_of(const TensorView& x, std::int64_t first_row, std::int64_t num_rows, BlockFormat format,
                        std::uint32_t* words) {
  const BlockLayout layout = block_layout(format);
  const std::int64_t groups = x.dim(1) / kGroupInputs;
  const hn::Rebind<std::int8_t, F> bytes;
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const float* row = x.data<float>() + (first_row + i) * x.stride(0);
    for (std::int64_t group = 0; group < groups; ++group, row += kGroupInputs, words += layout.group_words()) {
      // As whole numbers the bits of magnitudes are in the order of the values, with infinities and NaNs on top.
      auto largest = hn::Zero(kI);
      for (int j = 0; j < kGroupVectors; ++j)
        largest = hn::Max(largest, hn::BitCast(kI, hn::Abs(hn::LoadU(kF, row + j * kLanes))));
      const auto bits = hn::GetLane(hn::MaxOfLanes(kI, largest));
      const float amax = std::bit_cast<float>(bits);
      const bool is_number = bits < 0x7f800000;
      const bool rounds = is_number && amax > 1e-30f;  // below, 127 / amax would overflow
      const V inverse = hn::Set(kF, rounds ? 127.0f / amax : 0.0f);
      const float scale = rounds ? amax / 127.0f : is_number ? 1.0f : std::numeric_limits<float>::quiet_NaN();
      auto* codes = reinterpret_cast<std::int8_t*>(words);
      std::int32_t sums[2] = {0, 0};
      for (int half = 0; half < 2; ++half) {
        auto sum = hn::Zero(kI);
        for (int j = 0; j < kSixteen && is_number; ++j) {
          const int at = half * 16 + j * kLanes;
          const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(kF, row + at), inverse));
          sum = hn::Add(sum, rounded);
          hn::StoreU(hn::DemoteTo(bytes, rounded), bytes, codes + at);
        }
        sums[half] = hn::GetLane(hn::SumOfLanes(kI, sum));
      }
      if (!is_number) std::fill(codes, codes + kGroupInputs, std::int8_t{0});
      words[kGroupScaleWord] = std::bit_cast<std::uint32_t>(scale);
      if (layout.has_min) {
        words[kGroupExcessWord] = std::bit_cast<std::uint32_t>(-scale * static_cast<float>(sums[0] + sums[1]));
      } else if (layout.halves) {
        words[kGroupExcessWord] = static_cast<std::uint32_t>(-layout.offset * sums[0]);
        words[kGroupExcessWord + 1] = static_cast<std::uint32_t>(-layout.offset * sums[1]);
      } else {
        words[kGroupExcessWord] = static_cast<std::uint32_t>(-layout.offset * (sums[0] + sums[1]));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(quantise_groups_of);
void quantise_groups(const TensorView& x, std::int64_t first_row, std::int64_t num_rows, BlockFormat format,
                     std::uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(quantise_groups_of)(x, first_row, num_rows, format, words);
}
}  // namespace mstar
#endif
