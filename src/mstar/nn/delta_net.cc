#include "mstar/nn/delta_net.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "mstar/nn/shards.h"
#include "mstar/ops/delta_mix/delta_mix.h"
#include "mstar/ops/pick_columns/pick_columns.h"

namespace mstar::nn {
namespace {

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float) + 256; }

Result<Tensor> to_device(Device& device, const Shape& shape, const std::vector<float>& values) {
  MSTAR_TRY_ASSIGN(Tensor out, Tensor::allocate(device, DType::f32, shape));
  device.copy_to_device(out.view().pointer, values.data(), out.bytes(), device.default_stream());
  device.synchronize(device.default_stream());
  return out;
}

// Elements of `unit` numbers in the ranges.
std::vector<float> picked(const std::vector<float>& values, const std::vector<AxisRange>& ranges, std::int64_t unit) {
  std::vector<float> out;
  for (const AxisRange& each : ranges)
    out.insert(out.end(), values.begin() + each.begin * unit, values.begin() + each.end * unit);
  return out;
}

void append(std::vector<AxisRange>& to, const std::vector<AxisRange>& ranges, std::int64_t unit, std::int64_t offset) {
  for (const AxisRange& each : ranges) to.push_back(each.scaled(unit).shifted(offset));
}

}  // namespace

// The heads of a rank. Value heads lie beside those that read the same key head, or come in runs that each read all key
// heads once.
struct DeltaNet::Shard {
  Ranks ranks;
  Dims whole;
  AxisRange key_heads;
  std::vector<AxisRange> value_heads;

  static Result<Shard> of(const Dims& dims, Ranks ranks) {
    Shard out{.ranks = ranks, .whole = dims, .key_heads = {}, .value_heads = {}};
    MSTAR_TRY_ASSIGN(out.key_heads, own_share("key heads of a delta net", dims.key_heads, ranks));
    const int readers = dims.heads / dims.key_heads;
    if (!dims.interleaved_heads) {
      out.value_heads = {out.key_heads.scaled(readers)};
    } else {
      for (int run = 0; run < readers; ++run) out.value_heads.push_back(out.key_heads.shifted(run * dims.key_heads));
    }
    return out;
  }
  Dims own() const {
    Dims out = whole;
    out.key_heads = static_cast<int>(key_heads.count());
    out.heads = whole.heads / ranks.size;
    return out;
  }
  std::vector<AxisRange> conv_channels() const {
    std::vector<AxisRange> out = {key_heads.scaled(whole.key_dim)};
    out.push_back(out[0].shifted(whole.keys_width()));
    append(out, value_heads, whole.value_dim, 2 * whole.keys_width());
    return out;
  }
  std::vector<AxisRange> in_columns() const {
    std::vector<AxisRange> out = conv_channels();
    append(out, value_heads, whole.value_dim, whole.conv_width());
    append(out, value_heads, 1, whole.conv_width() + whole.values_width());
    append(out, value_heads, 1, whole.conv_width() + whole.values_width() + whole.heads);
    return out;
  }
  weights::Cut in() const { return rows_cut(ranks, in_columns()); }
  weights::Cut conv() const { return rows_cut(ranks, conv_channels()); }
  weights::Cut by_value_head() const { return rows_cut(ranks, value_heads); }
  std::vector<AxisRange> out_columns() const {
    std::vector<AxisRange> out;
    append(out, value_heads, whole.value_dim, 0);
    return out;
  }
  weights::Cut out() const { return columns_cut(ranks, out_columns()); }
};

Result<HeadSwap> DeltaNet::swap_of(const Dims& dims, Ranks sequence) {
  if (sequence.alone()) return HeadSwap();
  std::vector<std::vector<AxisRange>> in, out;
  for (int rank = 0; rank < sequence.size; ++rank) {
    MSTAR_TRY_ASSIGN(const Shard shard, Shard::of(dims, {rank, sequence.size}));
    in.push_back(shard.in_columns());
    out.push_back(shard.out_columns());
  }
  if (in[0].size() > kMostPickedRanges)
    return bad_model("a delta net with " + std::to_string(dims.heads / dims.key_heads) +
                     " interleaved heads for each key head cannot split sequences");
  return HeadSwap(sequence, std::move(in), std::move(out));
}

// The op reads taps outermost.
Status DeltaNet::load_conv(const LoadContext& context, const std::string& home, const Shard& shard,
                           const Shard& mixed) {
  const Dims& whole = shard.whole;
  const std::int64_t width = mix_.conv_width(), taps = mix_.taps;
  const std::optional<Shape> stored = context.weights.shape_of(home);
  const Shape expected =
      stored && stored->rank() == 2 ? Shape{whole.conv_width(), taps} : Shape{whole.conv_width(), 1, taps};
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded, context.weights.take(home, expected, shard.conv()));
  const std::vector<float> by_channel = picked(loaded.to_f32(), mixed.conv_channels(), taps);
  context.weights.release_pages(loaded);
  std::vector<float> by_tap(by_channel.size());
  for (std::int64_t c = 0; c < width; ++c)
    for (std::int64_t j = 0; j < taps; ++j)
      by_tap[static_cast<std::size_t>(j * width + c)] = by_channel[static_cast<std::size_t>(c * taps + j)];
  MSTAR_TRY_ASSIGN(conv_, to_device(context.device, {taps, width}, by_tap));
  return ok_status();
}

Status DeltaNet::load_rate(const LoadContext& context, const std::string& name, const Shard& shard,
                           const Shard& mixed) {
  const bool negated = context.weights.has(name + ".minus_rate");
  const std::string home = name + (negated ? ".minus_rate" : ".log_rate");
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded,
                   context.weights.take(home, {shard.whole.heads}, shard.by_value_head()));
  std::vector<float> rate = picked(loaded.to_f32(), mixed.value_heads, 1);
  for (float& each : rate) {
    each = negated ? -each : std::exp(each);
    if (!(each >= 0) || std::isinf(each)) return bad_model("'" + home + "' holds a decay that grows");
  }
  MSTAR_TRY_ASSIGN(rate_, to_device(context.device, {mix_.heads}, rate));
  return ok_status();
}

Status DeltaNet::load_dt_bias(const LoadContext& context, const std::string& home, const Shard& shard,
                              const Shard& mixed) {
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded,
                   context.weights.take(home, {shard.whole.heads}, shard.by_value_head()));
  const std::vector<float> bias = picked(loaded.to_f32(), mixed.value_heads, 1);
  context.weights.release_pages(loaded);
  MSTAR_TRY_ASSIGN(dt_bias_, to_device(context.device, {mix_.heads}, bias));
  return ok_status();
}

Result<DeltaNet> DeltaNet::load(const LoadContext& context, const std::string& name, const Dims& dims) {
  MSTAR_TRY_ASSIGN(const Shard shard, Shard::of(dims, context.ranks));
  DeltaNet out;
  out.dims_ = shard.own();
  MSTAR_TRY_ASSIGN(const Shard mixed, Shard::of(out.dims_, context.sequence));
  out.mix_ = mixed.own();
  MSTAR_TRY_ASSIGN(out.swap_, swap_of(out.dims_, context.sequence));
  out.backend_ = context.device.id().backend;
  out.batch_invariant_ = context.batch_invariant;
  MSTAR_TRY_ASSIGN(out.in_, Linear::load(context, name + ".in", dims.in_width(), dims.dim, false, shard.in()));
  MSTAR_TRY(out.load_conv(context, name + ".conv.weight", shard, mixed));
  MSTAR_TRY(out.load_rate(context, name, shard, mixed));
  MSTAR_TRY(out.load_dt_bias(context, name + ".dt_bias", shard, mixed));
  MSTAR_TRY_ASSIGN(out.norm_, RmsNorm::load(context, name + ".norm", dims.value_dim, dims.norm_epsilon));
  MSTAR_TRY_ASSIGN(out.out_, Linear::load(context, name + ".out", dims.dim, dims.values_width(), false, shard.out()));
  return out;
}

Status DeltaNet::run(OpContext& ops, Residual& x, TensorView positions, RaggedView rows, const DeltaNetState& state,
                     const Residual::Reader& next) const {
  const auto mark = ops.arena.mark();
  const Dims& d = mix_;
  const std::int64_t tokens = positions.dim(0), values_width = dims_.values_width();
  const TensorView projected = ops.temporary(ops.activations, {x.tokens(), dims_.in_width()});
  TensorView mixed = swap_.room(ops, tokens, values_width);
  MSTAR_TRY(in_.run(ops, x.normed(), projected));
  MSTAR_TRY_ASSIGN(const TensorView in, swap_.to_heads(ops, projected, tokens));
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
                            .out = mixed.reshaped({tokens, d.heads, d.value_dim})}));
  MSTAR_TRY_ASSIGN(mixed, swap_.to_rows(ops, mixed, values_width));
  MSTAR_TRY(x.add(ops, out_, mixed, next));
  ops.arena.rewind(mark);
  return ok_status();
}

std::size_t DeltaNet::workspace_bytes(int tokens, int num_threads) const {
  const std::int64_t t = tokens;
  return floats(t * dims_.in_width()) + floats(t * dims_.values_width()) +
         swap_.workspace_bytes(t, dims_.values_width()) +
         std::max({delta_mix_workspace_bytes({.backend = backend_,
                                              .tokens = t,
                                              .heads = mix_.heads,
                                              .conv_width = mix_.conv_width(),
                                              .key_dim = dims_.key_dim,
                                              .num_threads = num_threads}),
                   in_.workspace_bytes(tokens, num_threads), out_.workspace_bytes(tokens, num_threads)});
}

std::size_t DeltaNet::bytes() const {
  return in_.bytes() + out_.bytes() + conv_.bytes() + rate_.bytes() + dt_bias_.bytes() + norm_.bytes();
}

}  // namespace mstar::nn
