#include <algorithm>
#include <cmath>

#include "mstar/base/check.h"
#include "mstar/engine/component_body.h"
#include "mstar/models/whisper/whisper_blocks.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/nn/row_split.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/conv1d/conv1d.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/mel/mel.h"
#include "mstar/resource/cross_kv.h"

namespace mstar::models {
namespace {

using namespace whisper;
using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;

Result<Tensor> upload(Device& device, std::span<const std::int32_t> values) {
  MSTAR_TRY_ASSIGN(Tensor out, Tensor::allocate(device, DType::i32, {static_cast<std::int64_t>(values.size())}));
  const Stream stream = device.default_stream();
  device.copy_to_device(out.view().pointer, values.data(), values.size_bytes(), stream);
  device.synchronize(stream);
  return out;
}

// ---- mel features
// ------------------------------------------------------------------------------------------------------

class Features final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const WhisperRefs& refs, engine::BuildContext&) {
    auto out = std::unique_ptr<Features>(new Features(refs));
    MSTAR_TRY_ASSIGN(out->plan_, MelPlan::make(refs.config->num_mels));
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "pcm", .dtype = DType::pcm, .max_items = static_cast<int>(mel_samples(c_.window_frames() + 1))},
            {.name = "window", .dtype = DType::i32, .max_items = kWindowFields},
            {.name = "mel_max", .dtype = DType::f32, .max_items = 1}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "mel", .dtype = DType::f32, .item_dims = {c_.window_frames()}, .max_items = c_.num_mels}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    RowDemand demand;
    demand.sources = {{0, row.value(refs_.pcm)}, {1, row.value(refs_.window)}, {2, row.value(refs_.mel_max)}};
    demand.results = {{.slot = 0, .output = 0, .items = c_.num_mels}};
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override {
    return floats(static_cast<std::int64_t>(c_.num_mels) * (c_.window_frames() + 1)) + (1 << 16);
  }
  Status forward(Forward& step, int) override {
    MSTAR_CHECK(step.num_rows() == 1, "features takes one window a step");
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    const std::int32_t* window = step.input(1).data<std::int32_t>();
    const std::int64_t mel_frames = window[kWindowMelFrames];
    const std::int64_t segment = window[kWindowSegmentFrames];
    TensorView features = step.output(0);
    ops.device.fill_zero(features.pointer, features.bytes(),
                         ops.stream);  // frames past the content are 0 after normalisation
    TensorView raw = ops.temporary(DType::f32, {c_.num_mels, mel_frames});
    TensorView pcm = step.input(0);
    pcm.dtype = DType::f32;
    MSTAR_TRY(log_mel(ops, {.plan = &plan_, .pcm = pcm, .out = raw}));
    float maximum = step.input(2).data<float>()[0];
    if (std::isnan(maximum)) maximum = mel_maximum(raw);
    raw.shape[1] = features.shape[1] = segment;
    MSTAR_TRY(mel_normalise(ops, {.x = raw, .maximum = maximum, .out = features}));
    ops.arena.rewind(mark);
    return ok_status();
  }

 private:
  explicit Features(const WhisperRefs& refs) : refs_(refs), c_(*refs.config) {}
  WhisperRefs refs_;
  const WhisperConfig& c_;
  MelPlan plan_;
};

// ---- encoder
// -----------------------------------------------------------------------------------------------------------

class Encoder final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const WhisperRefs& refs, engine::BuildContext& build) {
    auto out = std::unique_ptr<Encoder>(new Encoder(refs));
    const WhisperConfig& c = *refs.config;
    const nn::LoadContext context = load_context(build, c);
    MSTAR_TRY_ASSIGN(out->part_, Part::of(c, context.ranks));
    MSTAR_TRY(out->share_rows(context.sequence));
    out->num_threads_ = build.pool ? build.pool->num_threads() : 1;
    out->max_rows_ = build.limits.max_rows;
    MSTAR_TRY_ASSIGN(out->conv1_, load_conv(context, "encoder.conv1.weight", {c.dim, c.num_mels, 3}, c));
    MSTAR_TRY_ASSIGN(out->conv2_, load_conv(context, "encoder.conv2.weight", {c.dim, c.dim, 3}, c));
    MSTAR_TRY_ASSIGN(out->conv1_bias_, nn::load_f32(context, "encoder.conv1.bias", {c.dim}));
    MSTAR_TRY_ASSIGN(out->conv2_bias_, nn::load_f32(context, "encoder.conv2.bias", {c.dim}));
    MSTAR_TRY_ASSIGN(out->positions_, nn::load_f32(context, "encoder.positions", {c.audio_positions, c.dim}));
    for (int layer = 0; layer < c.encoder_layers; ++layer) {
      const std::string name = "encoder.layer." + std::to_string(layer);
      MSTAR_TRY_ASSIGN(Attention attention, Attention::load(context, name + ".self", "qkv", 3, c, out->part_));
      MSTAR_TRY_ASSIGN(FeedForward ffn, FeedForward::load(context, name + ".ffn", c, out->part_));
      out->layers_.push_back({std::move(attention), std::move(ffn)});
    }
    MSTAR_TRY_ASSIGN(out->norm_, nn::LayerNorm::load(context, "encoder.norm", c.dim));
    std::vector<std::int32_t> offsets;
    for (int row = 0; row <= out->max_rows_; ++row) offsets.push_back(row * c.audio_positions);
    MSTAR_TRY_ASSIGN(out->row_offsets_, upload(build.device, offsets));
    if (c.on_cuda()) out->any_mel_ = zeros(c.mels(), {c.num_mels, c.window_frames()});
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }

  std::vector<engine::SlotSpec> input_slots() const override {
    return {
        {.name = "mel", .dtype = c_.mels(), .item_dims = {c_.window_frames()}, .max_items = max_rows_ * c_.num_mels}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "states",
             .dtype = c_.activations(),
             .item_dims = {c_.dim},
             .max_items = max_rows_ * c_.audio_positions}};
  }

  Result<RowDemand> declare(const RowInputs& row) override { return demand(row.value(refs_.mel)); }
  // On a GPU nothing depends on a window but its mels.
  std::vector<engine::CaptureSpec> captures() const override { return {{.row = demand(&any_mel_)}}; }

  std::size_t workspace_bytes(int rows, int) const override {
    const std::int64_t dim = c_.dim, tokens = static_cast<std::int64_t>(rows) * c_.audio_positions;
    const DType between = c_.activations();
    const std::size_t stem = elements(between, c_.window_frames() * dim);
    const std::size_t layer =
        elements(between, tokens * dim) + elements(between, tokens * std::max(3 * part_.width(), part_.num_units()));
    const std::size_t swapped = sequence_.alone()
                                    ? 0
                                    : swap_.workspace_bytes(tokens, part_.width()) +
                                          2 * floats(nn::RowSplit::most_padded_rows(tokens, sequence_) * dim);
    return (c_.on_cuda() ? floats(tokens * dim) : 0) + std::max(stem, layer) + swapped + scratch_bytes(rows);
  }
  DType activations() const override { return c_.activations(); }

  // On a CPU x is the output. A GPU works by itself, so there the forward is one slice, and x need not outlive it.
  int num_slices() const override { return c_.on_cuda() ? 1 : num_parts(); }

  Status forward(Forward& step, int slice) override {
    if (!c_.on_cuda()) return run_part(step, slice, step.output(0));
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    const TensorView x = ops.temporary(DType::f32, step.output(0).shape);
    for (int part = 0; part < num_parts(); ++part) MSTAR_TRY(run_part(step, part, x));
    ops.arena.rewind(mark);
    return ok_status();
  }

  std::size_t weight_bytes() const override {
    std::size_t bytes = conv1_.bytes() + conv2_.bytes() + positions_.bytes() + norm_.bytes();
    for (const Layer& layer : layers_) bytes += layer.attention.bytes() + layer.ffn.bytes();
    return bytes;
  }

 private:
  struct Layer {
    Attention attention;
    FeedForward ffn;
  };
  explicit Encoder(const WhisperRefs& refs) : refs_(refs), c_(*refs.config) {}
  RowDemand demand(const Value* mel) const {
    RowDemand out;
    out.sources = {{0, mel}};
    out.results = {{.slot = 0, .output = 0, .items = c_.audio_positions}};
    return out;
  }

  // Of ranks that split sequences each has some of the positions, and some of the heads in attention; the stem is whole
  // on each.
  Status share_rows(Ranks sequence) {
    sequence_ = sequence;
    MSTAR_TRY_ASSIGN(const nn::SharedHeads shared, nn::share_heads(part_.num_heads(), part_.num_heads(), sequence));
    heads_ = shared.num_heads;
    swap_ = nn::swap_of_heads(shared, {.unit = part_.head_dim, .kv_begin = part_.width(), .kv_width = part_.width()},
                              part_.head_dim, sequence);
    return ok_status();
  }

  // int8 is for the other matrices only, as in the reference.
  static Result<LinearWeight> load_conv(const nn::LoadContext& context, const std::string& home, const Shape& shape,
                                        const WhisperConfig& c) {
    MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded, context.weights.take(home, shape));
    std::vector<float> values = loaded.to_f32();
    context.weights.release_pages(loaded);
    return pack_conv1d(context.device, TensorView(values.data(), DType::f32, shape), c.activations());
  }

  // The stem, two parts a layer, the norm.
  int num_parts() const { return 2 + 2 * c_.encoder_layers; }

  // x [rows * positions, dim] f32: the residual stream.
  Status run_part(Forward& step, int part, TensorView x) {
    if (part == 0) return stem(step, x);
    const nn::RowSplit split(x.dim(0), sequence_);
    const TensorView own = x.slice(split.own().begin, split.own().end);
    if (part == num_parts() - 1) return finish(step, split, own);
    Layer& layer = layers_[static_cast<std::size_t>((part - 1) / 2)];
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    const TensorView normed = ops.temporary(ops.activations, {own.dim(0), c_.dim});
    Status ran;
    if ((part - 1) % 2 == 0) {
      ran = attend(step, layer.attention, split, own, normed);
    } else {
      TensorView hidden = ops.temporary(ops.activations, {own.dim(0), part_.num_units()});
      ran = layer.ffn.run(ops, own, normed, hidden);
    }
    ops.arena.rewind(mark);
    return ran;
  }

  // x has the own positions, normed is scratch for as many.
  Status attend(Forward& step, const Attention& layer, const nn::RowSplit& split, TensorView x, TensorView normed) {
    OpContext& ops = step.ops();
    const std::int64_t tokens = split.num_rows(), width = heads_ * part_.head_dim;
    MSTAR_TRY(layer.norm.run(ops, x, normed));
    const TensorView projected = ops.temporary(ops.activations, {x.dim(0), 3 * part_.width()});
    const bool late = c_.adds_biases_late() && swap_.alone();
    if (late) {
      MSTAR_TRY(layer.in.multiply(ops, normed, projected));
    } else {
      MSTAR_TRY(layer.in.run(ops, normed, projected));
    }
    MSTAR_TRY_ASSIGN(const TensorView qkv, swap_.to_heads(ops, projected, tokens));
    // The rows that went into the projection are needed no more.
    TensorView mixed = swap_.alone() ? TensorView(normed.pointer, normed.dtype, {tokens, part_.width()}, normed.device)
                                     : swap_.room(ops, tokens, part_.width());
    DenseAttentionArgs attention{
        .q = head_columns(qkv, 0, heads_, part_.head_dim),
        .k = head_columns(qkv, width, heads_, part_.head_dim),
        .v = head_columns(qkv, 2 * width, heads_, part_.head_dim),
        .rows = {row_offsets_.view().data<std::int32_t>(), step.num_rows(), static_cast<int>(tokens)},
        .scale = scale_of(c_),
        .out = mixed.reshaped({tokens, heads_, part_.head_dim})};
    if (late) {
      attention.q_bias = bias_of(layer.in.bias(), 0, part_);
      attention.v_bias = bias_of(layer.in.bias(), 2, part_);
    }
    MSTAR_TRY(attention_dense(ops, attention));
    MSTAR_TRY_ASSIGN(mixed, swap_.to_rows(ops, mixed, part_.width()));
    return layer.out.run(ops, mixed, x, Activation::none, x);
  }

  // The states of all positions, on every rank.
  Status finish(Forward& step, const nn::RowSplit& split, TensorView own) {
    OpContext& ops = step.ops();
    const TensorView states = step.output(0);
    if (!split.is_split()) return norm_.run(ops, own, states);
    const auto mark = ops.arena.mark();
    const TensorView all = ops.temporary(states.dtype, {split.padded_rows(), c_.dim});
    MSTAR_TRY(norm_.run(ops, own, all.slice(split.own().begin, split.own().end)));
    MSTAR_TRY(nn::gather_rows(ops, split, all));
    ops.device.copy_within(states.pointer, all.pointer, states.bytes(), ops.stream);
    ops.arena.rewind(mark);
    return ok_status();
  }

  std::size_t scratch_bytes(int rows) const {
    const std::int64_t tokens = static_cast<std::int64_t>(rows) * c_.audio_positions;
    std::size_t bytes =
        c_.on_cuda() ? 0 : attention_dense_workspace_bytes(tokens, heads_, c_.head_dim(), num_threads_, rows);
    for (const Layer& layer : layers_) {
      bytes = std::max({bytes, layer.ffn.up.workspace_bytes(tokens, num_threads_),
                        layer.ffn.down.workspace_bytes(tokens, num_threads_),
                        layer.attention.in.workspace_bytes(tokens, num_threads_)});
    }
    Conv1dArgs conv;
    conv.x = TensorView(nullptr, DType::f32, {c_.num_mels, c_.window_frames()});
    conv.channels_first = true;
    conv.weight = &conv1_;
    conv.out = TensorView(nullptr, DType::f32, {c_.window_frames(), c_.dim});
    Conv1dArgs second;
    second.x = conv.out;
    second.weight = &conv2_;
    second.stride = 2;
    second.out = TensorView(nullptr, DType::f32, {c_.audio_positions, c_.dim});
    return std::max({bytes, conv1d_workspace_bytes(conv, num_threads_), conv1d_workspace_bytes(second, num_threads_)}) +
           (1 << 16);
  }

  // Window by window: two products of one are enough for a device.
  Status stem(Forward& step, TensorView x) {
    OpContext& ops = step.ops();
    for (std::int64_t row = 0; row < step.num_rows(); ++row) {
      const auto mark = ops.arena.mark();
      TensorView first = ops.temporary(ops.activations, {c_.window_frames(), c_.dim});
      MSTAR_TRY(conv1d(ops, {.x = step.input(0).slice(row * c_.num_mels, (row + 1) * c_.num_mels),
                             .channels_first = true,
                             .weight = &conv1_,
                             .bias = conv1_bias_.view(),
                             .stride = 1,
                             .activation = Activation::gelu_erf,
                             .out = first}));
      MSTAR_TRY(conv1d(ops, {.x = first,
                             .weight = &conv2_,
                             .bias = conv2_bias_.view(),
                             .stride = 2,
                             .activation = Activation::gelu_erf,
                             .residual = positions_.view(),
                             .out = x.slice(row * c_.audio_positions, (row + 1) * c_.audio_positions)}));
      ops.arena.rewind(mark);
    }
    return ok_status();
  }

  WhisperRefs refs_;
  const WhisperConfig& c_;
  Part part_;
  Ranks sequence_;
  int heads_ = 0;  // of the part's, those that it attends with
  nn::HeadSwap swap_;
  int num_threads_ = 1;
  int max_rows_ = 1;
  LinearWeight conv1_, conv2_;
  Tensor conv1_bias_, conv2_bias_, positions_, row_offsets_;
  std::vector<Layer> layers_;
  nn::LayerNorm norm_;
  Value any_mel_;  // on a GPU
};

// ---- cross keys and values
// ---------------------------------------------------------------------------------------------

class CrossWriter final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const WhisperRefs& refs, engine::BuildContext& build) {
    auto out = std::unique_ptr<CrossWriter>(new CrossWriter(refs));
    const WhisperConfig& c = *refs.config;
    const nn::LoadContext context = load_context(build, c);
    MSTAR_TRY_ASSIGN(out->part_, Part::of(c, context.ranks));
    out->num_threads_ = build.pool ? build.pool->num_threads() : 1;
    for (int layer = 0; layer < c.decoder_layers; ++layer) {
      MSTAR_TRY_ASSIGN(nn::Linear kv, nn::Linear::load(context, "cross.layer." + std::to_string(layer) + ".kv",
                                                       2 * c.dim, c.dim, true, out->part_.outputs(2, c.dim)));
      out->layers_.push_back(std::move(kv));
    }
    out->max_rows_ = build.limits.max_rows;
    if (c.on_cuda()) out->any_states_ = zeros(c.activations(), {c.audio_positions, c.dim});
    MSTAR_TRY_ASSIGN(
        out->written_,
        upload(build.device, std::vector<std::int32_t>(static_cast<std::size_t>(out->max_rows_), c.audio_positions)));
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "states",
             .dtype = c_.activations(),
             .item_dims = {c_.dim},
             .max_items = max_rows_ * c_.audio_positions}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "context", .dtype = DType::i32, .max_items = max_rows_, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override { return demand(row.value(refs_.states)); }
  std::vector<engine::CaptureSpec> captures() const override { return {{.row = demand(&any_states_)}}; }
  std::size_t workspace_bytes(int rows, int) const override {
    const std::int64_t tokens = static_cast<std::int64_t>(rows) * c_.audio_positions;
    return elements(c_.activations(), tokens * 2 * part_.width()) +
           layers_.front().workspace_bytes(tokens, num_threads_) + 4096;
  }
  DType activations() const override { return c_.activations(); }
  int num_slices() const override { return c_.on_cuda() ? 1 : c_.decoder_layers; }
  Status forward(Forward& step, int slice) override {
    const int first = c_.on_cuda() ? 0 : slice, last = c_.on_cuda() ? c_.decoder_layers : slice + 1;
    for (int layer = first; layer < last; ++layer) MSTAR_TRY(write_layer(step, layer));
    if (slice == 0)
      step.ops().device.copy_within(step.output(0).pointer, written_.view().pointer, step.output(0).bytes(),
                                    step.ops().stream);
    return ok_status();
  }
  std::size_t weight_bytes() const override {
    std::size_t bytes = 0;
    for (const auto& layer : layers_) bytes += layer.bytes();
    return bytes;
  }

 private:
  explicit CrossWriter(const WhisperRefs& refs) : refs_(refs), c_(*refs.config) {}
  RowDemand demand(const Value* states) const {
    RowDemand out;
    out.resources.context_tokens = c_.audio_positions;
    out.sources = {{0, states}};
    out.results = {{.slot = 0, .output = 0, .items = 1}};
    return out;
  }
  Status write_layer(Forward& step, int layer) {
    OpContext& ops = step.ops();
    auto& cross = static_cast<resource::CrossKvPool&>(step.resource(refs_.cross_kv));
    const auto mark = ops.arena.mark();
    TensorView kv = ops.temporary(ops.activations, {step.input(0).dim(0), 2 * part_.width()});
    const nn::Linear& both = layers_[static_cast<std::size_t>(layer)];
    KvStoreArgs store{.keys = heads_of(kv, 0, part_),
                      .values = heads_of(kv, 1, part_),
                      .rows = cross.contexts(step.plan_slot()),
                      .kv = cross.view(layer, step.plan_slot())};
    if (c_.adds_biases_late()) {
      MSTAR_TRY(both.multiply(ops, step.input(0), kv));
      store.value_bias = bias_of(both.bias(), 1, part_);
    } else {
      MSTAR_TRY(both.run(ops, step.input(0), kv));
    }
    MSTAR_TRY(kv_store(ops, store));
    ops.arena.rewind(mark);
    return ok_status();
  }
  WhisperRefs refs_;
  const WhisperConfig& c_;
  Part part_;
  int num_threads_ = 1;
  int max_rows_ = 1;
  std::vector<nn::Linear> layers_;
  Tensor written_;    // [max_rows] i32: what a row tells
  Value any_states_;  // on a GPU
};

}  // namespace

decl::BuildBody build_whisper_features(const WhisperRefs& refs) {
  return [refs](engine::BuildContext& context) { return Features::build(refs, context); };
}
decl::BuildBody build_whisper_encoder(const WhisperRefs& refs) {
  return [refs](engine::BuildContext& context) { return Encoder::build(refs, context); };
}
decl::BuildBody build_whisper_cross(const WhisperRefs& refs) {
  return [refs](engine::BuildContext& context) { return CrossWriter::build(refs, context); };
}

}  // namespace mstar::models
