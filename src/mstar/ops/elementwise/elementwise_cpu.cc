#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/elementwise/elementwise_cpu.cc"
#include <limits>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/elementwise/elementwise_kernels.h"
#include "mstar/ops/head_rows.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

void add_row(const float* a, const float* b, std::int64_t count, float* out) {
  for_lanes(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    store_up_to(hn::Add(load_up_to(a + i, lanes), load_up_to(b + i, lanes)), out + i, lanes);
  });
}

void activate_row(Activation activation, const float* x, std::int64_t count, float* out) {
  for_lanes(count, [&](std::int64_t i, int lanes)
                       HWY_ATTR { store_up_to(activated(activation, load_up_to(x + i, lanes)), out + i, lanes); });
}

void silu_mul_row(const float* gate, const float* up, std::int64_t count, float* out) {
  for_lanes(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    store_up_to(hn::Mul(activated(Activation::silu, load_up_to(gate + i, lanes)), load_up_to(up + i, lanes)), out + i,
                lanes);
  });
}

void sigmoid_mul_row(const float* gate, const float* x, std::int64_t count, float* out) {
  for_lanes(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    store_up_to(times_sigmoid(load_up_to(x + i, lanes), load_up_to(gate + i, lanes)), out + i, lanes);
  });
}

void softmax_row(const float* x, std::int64_t count, float* out) {
  const V lowest = hn::Set(kF, -std::numeric_limits<float>::infinity());
  V top = lowest;
  for_lanes(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V value = load_up_to(x + i, lanes);
    top = hn::Max(
        top, lanes == kLanes ? value : hn::IfThenElse(hn::FirstN(kF, static_cast<std::size_t>(lanes)), value, lowest));
  });
  const V largest = hn::MaxOfLanes(kF, top);
  const float sum = row_sum(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V weight = exp_of(hn::Sub(load_up_to(x + i, lanes), largest));
    store_up_to(weight, out + i, lanes);
    return lanes == kLanes ? weight : hn::IfThenElseZero(hn::FirstN(kF, static_cast<std::size_t>(lanes)), weight);
  });
  const V total = hn::Set(kF, sum);
  for_lanes(count, [&](std::int64_t i, int lanes)
                       HWY_ATTR { store_up_to(hn::Div(load_up_to(out + i, lanes), total), out + i, lanes); });
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(add_row);
HWY_EXPORT(activate_row);
HWY_EXPORT(silu_mul_row);
HWY_EXPORT(sigmoid_mul_row);
HWY_EXPORT(softmax_row);

namespace {

const float* row_of(const TensorView& view, std::int64_t row) {
  return view.data<const float>() + head_row_offset(view, row);
}

template <class PerRow>
void for_rows(OpContext& context, const TensorView& out, PerRow per_row) {
  context.parallel_for_rows(num_head_rows(out), head_row_width(out),
                            [&](std::int64_t row) { per_row(row, out.data<float>() + head_row_offset(out, row)); });
}

}  // namespace

Status add_cpu(OpContext& context, const AddArgs& args) {
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    HWY_DYNAMIC_DISPATCH(add_row)
    (row_of(args.a, row), row_of(args.b, args.b.dim(0) == 1 ? 0 : row), args.out.dim(1), out);
  });
  return {};
}

Status activate_cpu(OpContext& context, const ActivateArgs& args) {
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    const float* from = row_of(args.x, row);
    if (args.bias.pointer) {
      HWY_DYNAMIC_DISPATCH(add_row)(from, args.bias.data<float>(), args.out.dim(1), out);
      from = out;
    }
    HWY_DYNAMIC_DISPATCH(activate_row)(args.activation, from, args.out.dim(1), out);
  });
  return {};
}

Status silu_mul_cpu(OpContext& context, const SiluMulArgs& args) {
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    HWY_DYNAMIC_DISPATCH(silu_mul_row)
    (row_of(args.gate, row), row_of(args.up, row), head_row_width(args.out), out);
  });
  return {};
}

Status sigmoid_mul_cpu(OpContext& context, const SigmoidMulArgs& args) {
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    HWY_DYNAMIC_DISPATCH(sigmoid_mul_row)
    (row_of(args.gate, row), row_of(args.x, row), head_row_width(args.out), out);
  });
  return {};
}

Status softmax_cpu(OpContext& context, const SoftmaxArgs& args) {
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    HWY_DYNAMIC_DISPATCH(softmax_row)(row_of(args.x, row), args.out.dim(1), out);
  });
  return {};
}

}  // namespace mstar
#endif
