#include <algorithm>
#include <cmath>
#include <limits>

#include "mstar/ops/activation_scalar.h"
#include "mstar/ops/elementwise/elementwise_kernels.h"

namespace mstar {
namespace {

const float* row_of(const TensorView& view, std::int64_t row) {
  return view.data<const float>() + row * view.stride(0);
}

template <class PerRow>
void for_rows(OpContext& context, const TensorView& out, PerRow per_row) {
  context.parallel_for(out.dim(0),
                       [&](std::int64_t row, int) { per_row(row, out.data<float>() + row * out.stride(0)); });
}

}  // namespace

Status add_cpu(OpContext& context, const AddArgs& args) {
  const std::int64_t n = args.out.dim(1);
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    const float* a = row_of(args.a, row);
    const float* b = row_of(args.b, args.b.dim(0) == 1 ? 0 : row);
    for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
  });
  return {};
}

Status activate_cpu(OpContext& context, const ActivateArgs& args) {
  const std::int64_t n = args.out.dim(1);
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    const float* x = row_of(args.x, row);
    for (std::int64_t i = 0; i < n; ++i) out[i] = activate_scalar(args.activation, x[i]);
  });
  return {};
}

Status silu_mul_cpu(OpContext& context, const SiluMulArgs& args) {
  const std::int64_t n = args.out.dim(1);
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    const float* gate = row_of(args.gate, row);
    const float* up = row_of(args.up, row);
    for (std::int64_t i = 0; i < n; ++i) out[i] = activate_scalar(Activation::silu, gate[i]) * up[i];
  });
  return {};
}

Status softmax_cpu(OpContext& context, const SoftmaxArgs& args) {
  const std::int64_t n = args.out.dim(1);
  for_rows(context, args.out, [&](std::int64_t row, float* out) {
    const float* x = row_of(args.x, row);
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += out[i] = std::exp(x[i] - largest);
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(out[i] / sum);
  });
  return {};
}

}  // namespace mstar
