#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/rms_norm/rms_norm_cpu.cc"
#include <cmath>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/head_rows.h"
#include "mstar/ops/rms_norm/rms_norm_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

void scale_row(const RmsNormArgs& args, std::int64_t row) {
  const std::int64_t d = args.weight.dim(0);
  const float* x = args.x.data<float>() + head_row_offset(args.x, row);
  float* out = args.out.data<float>() + head_row_offset(args.out, row);
  const float* weight = args.weight.data<float>();
  const float squares = row_sum(d, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V value = load_up_to(x + i, lanes);
    return hn::Mul(value, value);
  });
  const V scale = hn::Set(kF, 1.0f / std::sqrt(squares / static_cast<float>(d) + args.epsilon));
  const V offset = hn::Set(kF, args.weight_offset);
  const float* gate = args.gate.pointer ? args.gate.data<float>() + head_row_offset(args.gate, row) : nullptr;
  for_lanes(d, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V gain = hn::Add(load_up_to(weight + i, lanes), offset);
    V value = hn::Mul(hn::Mul(load_up_to(x + i, lanes), scale), gain);
    if (gate) value = hn::Mul(activated(Activation::silu, load_up_to(gate + i, lanes)), value);
    store_up_to(value, out + i, lanes);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(scale_row);

Status rms_norm_cpu(OpContext& context, const RmsNormArgs& args) {
  context.parallel_for_rows(num_head_rows(args.x), args.weight.dim(0), [&](std::int64_t row) {
    HWY_DYNAMIC_DISPATCH(scale_row)(args, row);
  });
  return {};
}

}  // namespace mstar
#endif
