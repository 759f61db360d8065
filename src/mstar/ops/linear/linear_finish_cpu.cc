#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/linear/linear_finish_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

// sums(i, row, column) -> the product as floats, `lanes` of it in use.
template <class Sums>
HWY_INLINE void finish_panel(const LinearArgs& args, std::int64_t first_row, int num_rows, std::int64_t panel,
                             Sums sums) {
  const std::int64_t first = panel * LinearWeight::kPanel;
  const std::int64_t count = HWY_MIN(args.weight->num_outputs() - first, std::int64_t{LinearWeight::kPanel});
  const float* bias = args.bias.pointer ? args.bias.data<float>() + first : nullptr;
  for (int i = 0; i < num_rows; ++i) {
    const std::int64_t row = first_row + i;
    float* out = args.out.data<float>() + row * args.out.stride(0) + first;
    const float* residual =
        args.residual.pointer ? args.residual.data<float>() + row * args.residual.stride(0) + first : nullptr;
    for_lanes(count, [&](std::int64_t column, int lanes) HWY_ATTR {
      V value = sums(i, column);
      if (bias) value = hn::Add(value, load_up_to(bias + column, lanes));
      value = activated(args.activation, value);
      if (residual) value = hn::Add(value, load_up_to(residual + column, lanes));
      store_up_to(value, out + column, lanes);
    });
  }
}

void finish_float(const LinearArgs& args, std::int64_t first_row, int num_rows, std::int64_t panel, const float* sums) {
  finish_panel(args, first_row, num_rows, panel, [&](int i, std::int64_t column) HWY_ATTR {
    return hn::LoadU(kF, sums + i * LinearWeight::kPanel + column);
  });
}

void finish_i8(const LinearArgs& args, std::int64_t first_row, int num_rows, std::int64_t panel,
               const std::int32_t* sums, const float* row_scales, bool biased) {
  const float* scales = args.weight->column_scales() + panel * LinearWeight::kPanel;
  const std::int32_t* excess = args.weight->column_sums() + panel * LinearWeight::kPanel;
  finish_panel(args, first_row, num_rows, panel, [&](int i, std::int64_t column) HWY_ATTR {
    auto sum = hn::LoadU(kI, sums + i * LinearWeight::kPanel + column);
    if (biased) sum = hn::Sub(sum, hn::ShiftLeft<7>(hn::LoadU(kI, excess + column)));
    return hn::Mul(hn::Mul(hn::ConvertTo(kF, sum), hn::Set(kF, row_scales[i])), hn::LoadU(kF, scales + column));
  });
}

void quantise(const TensorView& x, std::int64_t first_row, std::int64_t num_rows, std::int64_t num_words, bool biased,
              std::uint32_t* words, float* scales) {
  const std::int64_t k = x.dim(1);
  const hn::Rebind<std::int8_t, F> bytes;
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const float* row = x.data<float>() + (first_row + i) * x.stride(0);
    V largest = hn::Zero(kF);
    for_lanes(k, [&](std::int64_t at, int lanes)
                     HWY_ATTR { largest = hn::Max(largest, hn::Abs(load_up_to(row + at, lanes))); });
    const float amax = hn::GetLane(hn::MaxOfLanes(kF, largest));
    const bool rounds = amax > 1e-30f;  // below, 127 / amax would overflow
    const float inverse = rounds ? 127.0f / amax : 1.0f;
    scales[i] = rounds ? amax / 127.0f : 1.0f;
    auto* codes = reinterpret_cast<std::int8_t*>(words + i * num_words);
    for (std::int64_t at = k; at < num_words * 4; ++at) codes[at] = static_cast<std::int8_t>(biased ? 128 : 0);
    for_lanes(k, [&](std::int64_t at, int lanes) HWY_ATTR {
      const auto rounded = hn::NearestInt(hn::Mul(load_up_to(row + at, lanes), hn::Set(kF, inverse)));
      const auto narrow = hn::DemoteTo(bytes, rounded);
      // Adding 128 modulo 256 turns the i8 into the u8 code.
      const auto code = biased ? hn::Xor(narrow, hn::Set(bytes, std::int8_t{-128})) : narrow;
      if (lanes == kLanes) {
        hn::StoreU(code, bytes, codes + at);
      } else {
        HWY_ALIGN std::int8_t last[kLanes];
        hn::StoreU(code, bytes, last);
        for (int j = 0; j < lanes; ++j) codes[at + j] = last[j];
      }
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(finish_float);
HWY_EXPORT(finish_i8);
HWY_EXPORT(quantise);
void finish_float_panel(const LinearArgs& args, std::int64_t first_row, int num_rows, std::int64_t panel,
                        const float* sums) {
  HWY_DYNAMIC_DISPATCH(finish_float)(args, first_row, num_rows, panel, sums);
}
void finish_i8_panel(const LinearArgs& args, std::int64_t first_row, int num_rows, std::int64_t panel,
                     const std::int32_t* sums, const float* row_scales, bool biased) {
  HWY_DYNAMIC_DISPATCH(finish_i8)(args, first_row, num_rows, panel, sums, row_scales, biased);
}
void quantise_rows(const TensorView& x, std::int64_t first_row, std::int64_t num_rows, std::int64_t num_words,
                   bool biased, std::uint32_t* words, float* scales) {
  HWY_DYNAMIC_DISPATCH(quantise)(x, first_row, num_rows, num_words, biased, words, scales);
}
}  // namespace mstar
#endif
