#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/layer_norm/layer_norm_cpu.cc"
#include <cmath>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/layer_norm/layer_norm_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

void normalise(const LayerNormArgs& args, std::int64_t row) {
  const std::int64_t d = args.x.dim(1);
  const float* x = args.x.data<float>() + row * args.x.stride(0);
  float* out = args.out.data<float>() + row * args.out.stride(0);
  const float* weight = args.weight.data<float>();
  const float* bias = args.bias.pointer ? args.bias.data<float>() : nullptr;
  const float mean =
      row_sum(d, [&](std::int64_t i, int lanes) HWY_ATTR { return load_up_to(x + i, lanes); }) / static_cast<float>(d);
  const V middle = hn::Set(kF, mean);
  const float squares = row_sum(d, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V off = hn::Sub(load_up_to(x + i, lanes), middle);
    const V square = hn::Mul(off, off);
    return lanes == kLanes ? square : hn::IfThenElseZero(hn::FirstN(kF, static_cast<std::size_t>(lanes)), square);
  });
  const V scale = hn::Set(kF, 1.0f / std::sqrt(squares / static_cast<float>(d) + args.epsilon));
  for_lanes(d, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V y = hn::Mul(hn::Mul(hn::Sub(load_up_to(x + i, lanes), middle), scale), load_up_to(weight + i, lanes));
    store_up_to(bias ? hn::Add(y, load_up_to(bias + i, lanes)) : y, out + i, lanes);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(normalise);

Status layer_norm_cpu(OpContext& context, const LayerNormArgs& args) {
  context.parallel_for_rows(args.x.dim(0), args.x.dim(1), [&](std::int64_t row) {
    HWY_DYNAMIC_DISPATCH(normalise)(args, row);
  });
  return {};
}

}  // namespace mstar
#endif
