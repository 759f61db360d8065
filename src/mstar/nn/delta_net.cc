#include "mstar/nn/delta_net.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "mstar/ops/delta_mix/delta_mix.h"

namespace mstar::nn {
namespace {

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float) + 256; }

Result<Tensor> to_device(Device& device, const Shape& shape, const std::vector<float>& values) {
  MSTAR_TRY_ASSIGN(Tensor out, Tensor::allocate(device, DType::f32, shape));
  device.copy_to_device(out.view().pointer, values.data(), out.bytes(), device.default_stream());
  device.synchronize(device.default_stream());
  return out;
}

}  // namespace

// The op reads taps outermost.
Status DeltaNet::load_conv(const LoadContext& context, const std::string& home) {
  const std::int64_t width = dims_.conv_width(), taps = dims_.taps;
  const std::optional<Shape> stored = context.weights.shape_of(home);
  const Shape expected = stored && stored->rank() == 2 ? Shape{width, taps} : Shape{width, 1, taps};
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded, context.weights.take(home, expected));
  const std::vector<float> by_channel = loaded.to_f32();
  context.weights.release_pages(loaded);
  std::vector<float> by_tap(by_channel.size());
  for (std::int64_t c = 0; c < width; ++c)
    for (std::int64_t j = 0; j < taps; ++j)
      by_tap[static_cast<std::size_t>(j * width + c)] = by_channel[static_cast<std::size_t>(c * taps + j)];
  MSTAR_TRY_ASSIGN(conv_, to_device(context.device, {taps, width}, by_tap));
  return ok_status();
}

Status DeltaNet::load_rate(const LoadContext& context, const std::string& name) {
  const bool negated = context.weights.has(name + ".minus_rate");
  const std::string home = name + (negated ? ".minus_rate" : ".log_rate");
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded, context.weights.take(home, {dims_.heads}));
  std::vector<float> rate = loaded.to_f32();
  for (float& each : rate) {
    each = negated ? -each : std::exp(each);
    if (!(each >= 0) || std::isinf(each)) return bad_model("'" + home + "' holds a decay that grows");
  }
  MSTAR_TRY_ASSIGN(rate_, to_device(context.device, {dims_.heads}, rate));
  return ok_status();
}

Result<DeltaNet> DeltaNet::load(const LoadContext& context, const std::string& name, const Dims& dims) {
  DeltaNet out;
  out.dims_ = dims;
  out.backend_ = context.device.id().backend;
  out.batch_invariant_ = context.batch_invariant;
  MSTAR_TRY_ASSIGN(out.in_, Linear::load(context, name + ".in", dims.in_width(), dims.dim, false));
  MSTAR_TRY(out.load_conv(context, name + ".conv.weight"));
  MSTAR_TRY(out.load_rate(context, name));
  MSTAR_TRY_ASSIGN(out.dt_bias_, load_f32(context, name + ".dt_bias", {dims.heads}));
  MSTAR_TRY_ASSIGN(out.norm_, RmsNorm::load(context, name + ".norm", dims.value_dim, dims.norm_epsilon));
  MSTAR_TRY_ASSIGN(out.out_, Linear::load(context, name + ".out", dims.dim, dims.values_width(), false));
  return out;
}

Status DeltaNet::run(OpContext& ops, Residual& x, TensorView positions, RaggedView rows, const DeltaNetState& state,
                     const Residual::Reader& next) const {
  const auto mark = ops.arena.mark();
  const Dims& d = dims_;
  const std::int64_t tokens = x.tokens();
  const TensorView in = ops.temporary(ops.activations, {tokens, d.in_width()});
  const TensorView mixed = ops.temporary(ops.activations, {tokens, d.heads, d.value_dim});
  MSTAR_TRY(in_.run(ops, x.normed(), in));
  MSTAR_TRY(delta_mix(ops, {.in = in,
                            .rows = rows,
                            .positions = positions.data<std::int32_t>(),
                            .conv_weight = conv_.view(),
                            .rate = rate_.view(),
                            .dt_bias = dt_bias_.view(),
                            .norm_weight = norm_.weight(),
                            .norm_epsilon = norm_.epsilon(),
                            .key_heads = d.key_heads,
                            .interleaved_heads = d.interleaved_heads,
                            .conv_state = state.conv,
                            .rule_state = state.rule,
                            .slots = state.slots,
                            .read_slots = state.read_slots,
                            .kept = state.kept,
                            .in_turn = batch_invariant_,
                            .out = mixed}));
  MSTAR_TRY(x.add(ops, out_, mixed.reshaped({tokens, d.values_width()}), next));
  ops.arena.rewind(mark);
  return ok_status();
}

std::size_t DeltaNet::workspace_bytes(int tokens, int num_threads) const {
  const std::int64_t t = tokens;
  return floats(t * dims_.in_width()) + floats(t * dims_.values_width()) +
         std::max({delta_mix_workspace_bytes({.backend = backend_,
                                              .tokens = t,
                                              .heads = dims_.heads,
                                              .conv_width = dims_.conv_width(),
                                              .key_dim = dims_.key_dim,
                                              .num_threads = num_threads}),
                   in_.workspace_bytes(tokens, num_threads), out_.workspace_bytes(tokens, num_threads)});
}

std::size_t DeltaNet::bytes() const {
  return in_.bytes() + out_.bytes() + conv_.bytes() + rate_.bytes() + dt_bias_.bytes() + norm_.bytes();
}

}  // namespace mstar::nn
