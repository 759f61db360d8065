#include <algorithm>
#include <cmath>

#include "mstar/ops/activation_scalar.h"
#include "mstar/ops/linear/linear_kernels.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#endif

namespace mstar {
namespace {

constexpr int kPanel = LinearWeight::kPanel;

void finish(const LinearArgs& args, std::int64_t row, std::int64_t first, const float* sums) {
  const std::int64_t last = std::min(first + kPanel, args.weight->num_outputs());
  float* out = args.out.data<float>() + row * args.out.stride(0);
  for (std::int64_t n = first; n < last; ++n) {
    float value = sums[n - first];
    if (args.bias.pointer) value += args.bias.data<float>()[n];
    value = activate_scalar(args.activation, value);
    if (args.residual.pointer) value += args.residual.data<float>()[row * args.residual.stride(0) + n];
    out[n] = value;
  }
}

template <class Element, class Widen>
void panel_rows(const LinearArgs& args, std::int64_t panel, Widen widen) {
  const auto* w = static_cast<const Element*>(args.weight->panel(panel));
  for (std::int64_t row = 0; row < args.x.dim(0); ++row) {
    const float* x = args.x.data<float>() + row * args.x.stride(0);
    float sums[kPanel] = {};
    for (std::int64_t k = 0; k < args.weight->num_inputs(); ++k)
      for (int n = 0; n < kPanel; ++n) sums[n] = std::fma(x[k], widen(w[k * kPanel + n]), sums[n]);
    finish(args, row, panel * kPanel, sums);
  }
}

}  // namespace

Status linear_cpu_float(OpContext& context, const LinearArgs& args) {
  context.parallel_for(args.weight->num_panels(), [&](std::int64_t panel, int) {
    switch (args.weight->storage()) {
      case DType::f32:
        return panel_rows<float>(args, panel, [](float v) { return v; });
      case DType::f16:
        return panel_rows<Half>(args, panel, [](Half v) { return to_float(v); });
      default:
        return panel_rows<BFloat16>(args, panel, [](BFloat16 v) { return to_float(v); });
    }
  });
  return {};
}

Status linear_cpu_i8(OpContext& context, const LinearArgs& args) {
  const std::int64_t num_rows = args.x.dim(0), k = args.weight->num_inputs(), padded = args.weight->padded_inputs();
  const std::size_t mark = context.arena.mark();
  auto* codes = static_cast<std::int8_t*>(context.arena.take(static_cast<std::size_t>(num_rows * padded)));
  auto* scales = static_cast<float*>(context.arena.take(static_cast<std::size_t>(num_rows) * 4));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const float* x = args.x.data<float>() + row * args.x.stride(0);
    float largest = 0;
    for (std::int64_t i = 0; i < k; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float inverse = largest > 0 ? 127.0f / largest : 1.0f;
    scales[row] = largest > 0 ? largest / 127.0f : 1.0f;
    for (std::int64_t i = 0; i < padded; ++i)
      codes[row * padded + i] = i < k ? static_cast<std::int8_t>(std::nearbyint(x[i] * inverse)) : std::int8_t{0};
  }
  context.parallel_for(args.weight->num_panels(), [&](std::int64_t panel, int) {
    const auto* w = static_cast<const std::int8_t*>(args.weight->panel(panel));
    for (std::int64_t row = 0; row < num_rows; ++row) {
      std::int32_t sums[kPanel] = {};
      for (std::int64_t i = 0; i < padded; ++i)
        for (int n = 0; n < kPanel; ++n) sums[n] += codes[row * padded + i] * w[(i / 4 * kPanel + n) * 4 + i % 4];
      float scaled[kPanel];
      for (int n = 0; n < kPanel; ++n)
        scaled[n] = static_cast<float>(sums[n]) * scales[row] * args.weight->column_scales()[panel * kPanel + n];
      finish(args, row, panel * kPanel, scaled);
    }
  });
  context.arena.rewind(mark);
  return {};
}

std::size_t linear_cpu_workspace_bytes(const LinearWeight& weight, std::int64_t num_rows, int) {
  return weight.storage() == DType::i8 ? static_cast<std::size_t>(num_rows * (weight.padded_inputs() + 4)) + 512 : 0;
}

}  // namespace mstar
