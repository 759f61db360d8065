#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/linear/linear_convert_cpu.cc"
#include <cstring>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

// The last few elements go one by one: a vector of narrow elements may not read past its row. A row of a mapped file
// may lie at any address.
template <class W>
void widen_as(const void* from, std::int64_t count, float* to) {
  const W* narrow = static_cast<const W*>(from);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(load_wide(narrow + i), kF, to + i);
  for (; i < count; ++i) {
    W last;
    std::memcpy(&last, static_cast<const char*>(from) + static_cast<std::size_t>(i) * sizeof(W), sizeof(W));
    to[i] = to_float(last);
  }
}

template <class W, class Narrow>
HWY_INLINE void narrow_as(const float* from, std::int64_t count, void* to, Narrow one) {
  W* narrow = static_cast<W*>(to);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_narrow(hn::LoadU(kF, from + i), narrow + i);
  for (; i < count; ++i) narrow[i] = one(from[i]);
}

void widen(DType dtype, const void* from, std::int64_t count, float* to) {
  switch (dtype) {
    case DType::f16:
      return widen_as<Half>(from, count, to);
    case DType::bf16:
      return widen_as<BFloat16>(from, count, to);
    case DType::i8:
      for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<const std::int8_t*>(from)[i]);
      return;
    default:
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  }
}

void narrow(DType dtype, const float* from, std::int64_t count, void* to) {
  switch (dtype) {
    case DType::f16:
      return narrow_as<Half>(from, count, to, to_half);
    case DType::bf16:
      return narrow_as<BFloat16>(from, count, to, to_bfloat16);
    default:
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(widen);
HWY_EXPORT(narrow);
void widen_elements(DType dtype, const void* from, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(widen)(dtype, from, count, to);
}
void narrow_elements(DType dtype, const float* from, std::int64_t count, void* to) {
  HWY_DYNAMIC_DISPATCH(narrow)(dtype, from, count, to);
}
}  // namespace mstar
#endif
