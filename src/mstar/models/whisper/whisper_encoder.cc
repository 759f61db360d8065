#include <algorithm>
#include <cmath>

#include "mstar/base/check.h"
#include "mstar/engine/component_body.h"
#include "mstar/models/whisper/whisper_blocks.h"
#include "mstar/models/whisper/whisper_body.h"
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
    const nn::LoadContext context{build.weights, build.device, c.storage, build.pool};
    out->num_threads_ = build.pool ? build.pool->num_threads() : 1;
    // The convolutions stay in f32: int8 is for the matrices only, as in the reference.
    MSTAR_TRY_ASSIGN(const Tensor conv1, nn::load_f32(context, "encoder.conv1.weight", {c.dim, c.num_mels, 3}));
    MSTAR_TRY_ASSIGN(const Tensor conv2, nn::load_f32(context, "encoder.conv2.weight", {c.dim, c.dim, 3}));
    MSTAR_TRY_ASSIGN(out->conv1_, pack_conv1d(build.device, conv1.view(), DType::f32));
    MSTAR_TRY_ASSIGN(out->conv2_, pack_conv1d(build.device, conv2.view(), DType::f32));
    MSTAR_TRY_ASSIGN(out->conv1_bias_, nn::load_f32(context, "encoder.conv1.bias", {c.dim}));
    MSTAR_TRY_ASSIGN(out->conv2_bias_, nn::load_f32(context, "encoder.conv2.bias", {c.dim}));
    MSTAR_TRY_ASSIGN(out->positions_, nn::load_f32(context, "encoder.positions", {c.audio_positions, c.dim}));
    for (int layer = 0; layer < c.encoder_layers; ++layer) {
      const std::string name = "encoder.layer." + std::to_string(layer);
      MSTAR_TRY_ASSIGN(Attention attention, Attention::load(context, name + ".self", "qkv", 3, c));
      MSTAR_TRY_ASSIGN(FeedForward ffn, FeedForward::load(context, name + ".ffn", c));
      out->layers_.push_back({std::move(attention), std::move(ffn)});
    }
    MSTAR_TRY_ASSIGN(out->norm_, nn::LayerNorm::load(context, "encoder.norm", c.dim));
    MSTAR_TRY_ASSIGN(out->row_offsets_, Tensor::allocate(build.device, DType::i32, {2}));
    out->row_offsets_.view().data<std::int32_t>()[0] = 0;
    out->row_offsets_.view().data<std::int32_t>()[1] = c.audio_positions;
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }

  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "mel", .dtype = DType::f32, .item_dims = {c_.window_frames()}, .max_items = c_.num_mels}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "states", .dtype = DType::f32, .item_dims = {c_.dim}, .max_items = c_.audio_positions}};
  }

  Result<RowDemand> declare(const RowInputs& row) override {
    RowDemand demand;
    demand.sources = {{0, row.value(refs_.mel)}};
    demand.results = {{.slot = 0, .output = 0, .items = c_.audio_positions}};
    return demand;
  }

  std::size_t workspace_bytes(int, int) const override {
    const std::int64_t frames = c_.window_frames(), positions = c_.audio_positions, dim = c_.dim;
    return floats(frames * dim) + 2 * floats(positions * dim) + floats(positions * c_.ffn_dim) +
           floats(positions * 3 * dim) + scratch_bytes();
  }

  int num_slices() const override { return 2 + 2 * c_.encoder_layers; }

  Status forward(Forward& step, int slice) override {
    MSTAR_CHECK(step.num_rows() == 1, "the encoder takes one window a step");
    OpContext& ops = step.ops();
    TensorView x = step.output(0);
    if (slice == 0) return stem(step, x);
    if (slice == 1 + 2 * c_.encoder_layers) return norm_.run(ops, x, x);
    Layer& layer = layers_[static_cast<std::size_t>((slice - 1) / 2)];
    const auto mark = ops.arena.mark();
    TensorView normed = ops.temporary(DType::f32, {c_.audio_positions, c_.dim});
    Status ran;
    if ((slice - 1) % 2 == 0) {
      TensorView qkv = ops.temporary(DType::f32, {c_.audio_positions, 3 * c_.dim});
      MSTAR_TRY(layer.attention.norm.run(ops, x, normed));
      MSTAR_TRY(layer.attention.in.run(ops, normed, qkv));
      MSTAR_TRY(attention_dense(ops, {.q = heads_of(qkv, 0, c_),
                                      .k = heads_of(qkv, 1, c_),
                                      .v = heads_of(qkv, 2, c_),
                                      .rows = {row_offsets_.view().data<std::int32_t>(), 1, c_.audio_positions},
                                      .scale = scale_of(c_),
                                      .out = as_heads(normed, c_)}));
      ran = layer.attention.out.run(ops, normed, x, Activation::none, x);
    } else {
      TensorView hidden = ops.temporary(DType::f32, {c_.audio_positions, c_.ffn_dim});
      ran = layer.ffn.run(ops, x, normed, hidden);
    }
    ops.arena.rewind(mark);
    return ran;
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

  std::size_t scratch_bytes() const {
    std::size_t bytes = attention_dense_workspace_bytes(c_.audio_positions, c_.heads, c_.head_dim(), num_threads_);
    for (const Layer& layer : layers_) {
      bytes = std::max({bytes, layer.ffn.up.workspace_bytes(c_.audio_positions, num_threads_),
                        layer.ffn.down.workspace_bytes(c_.audio_positions, num_threads_),
                        layer.attention.in.workspace_bytes(c_.audio_positions, num_threads_)});
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

  Status stem(Forward& step, TensorView x) {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    TensorView first = ops.temporary(DType::f32, {c_.window_frames(), c_.dim});
    MSTAR_TRY(conv1d(ops, {.x = step.input(0),
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
                           .out = x}));
    ops.arena.rewind(mark);
    return ok_status();
  }

  WhisperRefs refs_;
  const WhisperConfig& c_;
  int num_threads_ = 1;
  LinearWeight conv1_, conv2_;
  Tensor conv1_bias_, conv2_bias_, positions_, row_offsets_;
  std::vector<Layer> layers_;
  nn::LayerNorm norm_;
};

// ---- cross keys and values
// ---------------------------------------------------------------------------------------------

class CrossWriter final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const WhisperRefs& refs, engine::BuildContext& build) {
    auto out = std::unique_ptr<CrossWriter>(new CrossWriter(refs));
    const WhisperConfig& c = *refs.config;
    const nn::LoadContext context{build.weights, build.device, c.storage, build.pool};
    out->num_threads_ = build.pool ? build.pool->num_threads() : 1;
    for (int layer = 0; layer < c.decoder_layers; ++layer) {
      MSTAR_TRY_ASSIGN(nn::Linear kv,
                       nn::Linear::load(context, "cross.layer." + std::to_string(layer) + ".kv", 2 * c.dim, c.dim));
      out->layers_.push_back(std::move(kv));
    }
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "states", .dtype = DType::f32, .item_dims = {c_.dim}, .max_items = c_.audio_positions}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "context", .dtype = DType::i32, .max_items = 1, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    RowDemand demand;
    demand.resources.context_tokens = c_.audio_positions;
    demand.sources = {{0, row.value(refs_.states)}};
    demand.results = {{.slot = 0, .output = 0, .items = 1}};
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override {
    return floats(static_cast<std::int64_t>(c_.audio_positions) * 2 * c_.dim) +
           layers_.front().workspace_bytes(c_.audio_positions, num_threads_) + 4096;
  }
  int num_slices() const override { return c_.decoder_layers; }
  Status forward(Forward& step, int slice) override {
    OpContext& ops = step.ops();
    auto& cross = static_cast<resource::CrossKvPool&>(step.resource(refs_.cross_kv));
    const auto mark = ops.arena.mark();
    TensorView kv = ops.temporary(DType::f32, {step.input(0).dim(0), 2 * c_.dim});
    MSTAR_TRY(layers_[static_cast<std::size_t>(slice)].run(ops, step.input(0), kv));
    MSTAR_TRY(kv_store(ops, {.keys = heads_of(kv, 0, c_),
                             .values = heads_of(kv, 1, c_),
                             .rows = cross.contexts(step.plan_slot()),
                             .kv = cross.view(slice, step.plan_slot())}));
    ops.arena.rewind(mark);
    if (slice == 0)
      for (int r = 0; r < step.num_rows(); ++r) step.output(0).data<std::int32_t>()[r] = c_.audio_positions;
    return ok_status();
  }
  std::size_t weight_bytes() const override {
    std::size_t bytes = 0;
    for (const auto& layer : layers_) bytes += layer.bytes();
    return bytes;
  }

 private:
  explicit CrossWriter(const WhisperRefs& refs) : refs_(refs), c_(*refs.config) {}
  WhisperRefs refs_;
  const WhisperConfig& c_;
  int num_threads_ = 1;
  std::vector<nn::Linear> layers_;
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
