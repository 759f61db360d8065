#include "mstar/engine/toy_decoder_fixture.h"

#include <cmath>
#include <random>

#include "mstar/ops/attention/attention.h"
#include "mstar/ops/embedding/embedding.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/layer_norm/layer_norm.h"
#include "mstar/ops/linear/linear.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"

namespace mstar::engine {
namespace {

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float) + 256; }

// Draws weights and puts them on the device. Uniform numbers by integer arithmetic: the same on every library.
class Maker {
 public:
  Maker(Device& device, const ToyConfig& c) : device_(device), c_(c), random_(c.seed) {}

  std::vector<float> draw(std::int64_t count, float spread, float centre = 0) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& value : out) value = centre + spread * (static_cast<float>(random_() >> 8) * 0x1p-23f - 1.0f);
    return out;
  }
  Result<Tensor> tensor(Shape shape, float spread, float centre = 0) {
    const auto values = draw(shape.num_elements(), spread, centre);
    MSTAR_TRY_ASSIGN(Tensor out, Tensor::allocate(device_, DType::f32, shape));
    const Stream stream = device_.default_stream();
    device_.copy_to_device(out.view().pointer, values.data(), out.bytes(), stream);
    device_.synchronize(stream);
    return out;
  }
  Result<LinearWeight> matrix(int n, int k) {
    auto values = draw(static_cast<std::int64_t>(n) * k, 1.7f / std::sqrt(static_cast<float>(k)));
    MSTAR_TRY_ASSIGN(LinearWeight out,
                     LinearWeight::pack(device_, {TensorView(values.data(), DType::f32, {n, k}), nullptr}, c_.storage));
    out.keep_one_order();  // a request alone is compared with the same among others, bit for bit
    return out;
  }

 private:
  Device& device_;
  const ToyConfig& c_;
  std::mt19937 random_;
};

struct Affine {
  LinearWeight weight;
  Tensor bias;
  static Result<Affine> make(Maker& maker, int n, int k) {
    Affine out;
    MSTAR_TRY_ASSIGN(out.weight, maker.matrix(n, k));
    MSTAR_TRY_ASSIGN(out.bias, maker.tensor({n}, 0.1f));
    return out;
  }
  Status run(OpContext& ops, TensorView x, TensorView out, Activation activation = Activation::none,
             TensorView residual = {}) const {
    return linear(
        ops,
        {.x = x, .weight = &weight, .bias = bias.view(), .residual = residual, .activation = activation, .out = out});
  }
};

struct Norm {
  Tensor weight, bias;
  static Result<Norm> make(Maker& maker, int dim) {
    Norm out;
    MSTAR_TRY_ASSIGN(out.weight, maker.tensor({dim}, 0.2f, 1.0f));
    MSTAR_TRY_ASSIGN(out.bias, maker.tensor({dim}, 0.1f));
    return out;
  }
  Status run(OpContext& ops, TensorView x, TensorView out) const {
    return layer_norm(ops, {.x = x, .weight = weight.view(), .bias = bias.view(), .out = out});
  }
};

struct Layer {
  Norm attention_norm, ffn_norm;
  Affine qkv, out, up, down;
  static Result<Layer> make(Maker& maker, const ToyConfig& c) {
    Layer l;
    MSTAR_TRY_ASSIGN(l.attention_norm, Norm::make(maker, c.dim));
    MSTAR_TRY_ASSIGN(l.qkv, Affine::make(maker, 3 * c.dim, c.dim));
    MSTAR_TRY_ASSIGN(l.out, Affine::make(maker, c.dim, c.dim));
    MSTAR_TRY_ASSIGN(l.ffn_norm, Norm::make(maker, c.dim));
    MSTAR_TRY_ASSIGN(l.up, Affine::make(maker, c.ffn_dim, c.dim));
    MSTAR_TRY_ASSIGN(l.down, Affine::make(maker, c.dim, c.ffn_dim));
    return l;
  }
};

class ToyDecoder final : public ComponentBody {
 public:
  static Result<std::unique_ptr<ComponentBody>> build(const ToyConfig& config, const DecoderDecl& d,
                                                      BuildContext& context) {
    auto out = std::unique_ptr<ToyDecoder>(new ToyDecoder(config, d));
    Maker maker(context.device, out->c_);
    out->num_threads_ = context.pool ? context.pool->num_threads() : 1;
    MSTAR_TRY_ASSIGN(out->embedding_, maker.tensor({config.vocab, config.dim}, 1.7f));
    MSTAR_TRY_ASSIGN(out->positions_, maker.tensor({config.max_positions, config.dim}, 0.5f));
    for (int i = 0; i < config.layers; ++i) {
      MSTAR_TRY_ASSIGN(Layer layer, Layer::make(maker, out->c_));
      out->layers_.push_back(std::move(layer));
    }
    MSTAR_TRY_ASSIGN(out->norm_, Norm::make(maker, config.dim));
    MSTAR_TRY_ASSIGN(out->head_, maker.matrix(config.vocab, config.dim));
    return std::unique_ptr<ComponentBody>(std::move(out));
  }

  std::vector<SlotSpec> input_slots() const override {
    return {{.name = "ids", .dtype = DType::i32, .max_items = 1024}};
  }
  // 0 token, 1 its log-probability, 2 logits.
  std::vector<SlotSpec> output_slots() const override {
    std::vector<SlotSpec> out = {{.name = "token", .dtype = DType::i32, .to_host = true},
                                 {.name = "log_prob", .to_host = true}};
    if (d_.with_logits) out.push_back({.name = "logits", .item_dims = {c_.vocab}, .to_host = true});
    return out;
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* prompt = row.value(d_.prompt);
    RowDemand out = prompt ? demand(prompt, static_cast<int>(prompt->host.as<std::int32_t>().size()))
                           : demand(row.value(d_.token), 1);
    out.may_replay = row.params->sampling.temperature == 0;
    return out;
  }
  std::vector<CaptureSpec> captures() const override { return {{.row = demand(&padding_, 1)}}; }
  std::vector<RegionSpec> regions() const override { return {{.name = "trunk", .kinds = captures()}}; }
  std::vector<SlotSpec> borders() const override { return {{.name = "logits", .item_dims = {c_.vocab}}}; }

  std::size_t workspace_bytes(int rows, int tokens) const override {
    const std::int64_t t = tokens, r = rows;
    return 3 * floats(t * c_.dim) + floats(t * 3 * c_.dim) + floats(t * c_.ffn_dim) + floats(r * c_.dim) +
           sample_workspace_bytes(c_.vocab, num_threads_) + linear_workspace_bytes(head_, t, num_threads_) +
           (std::size_t{4} << 20);
  }

  // Rows that are drawn at a temperature are drawn from what the host plans for them: outside of the region.
  Status forward(Forward& step, int) override {
    MSTAR_TRY(step.run_region(0, [&] { return make_logits(step, step.border(0)); }));
    return pick(step, step.border(0));
  }

  std::size_t weight_bytes() const override {
    std::size_t bytes = embedding_.bytes() + positions_.bytes() + head_.bytes();
    for (const Layer& l : layers_)
      bytes += l.qkv.weight.bytes() + l.out.weight.bytes() + l.up.weight.bytes() + l.down.weight.bytes();
    return bytes;
  }

 private:
  ToyDecoder(const ToyConfig& config, const DecoderDecl& d)
      : c_(config), d_(d), padding_(HostValue::i32(std::vector<std::int32_t>{0})) {}

  Status make_logits(Forward& step, TensorView logits) {
    OpContext& ops = step.ops();
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(d_.kv));
    const int slot = step.plan_slot();
    const std::int64_t tokens = step.token_offsets().back();
    const RaggedView rows = kv.ragged(slot);
    TensorView x = ops.temporary(DType::f32, {tokens, c_.dim});
    TensorView normed = ops.temporary(DType::f32, {tokens, c_.dim});
    TensorView mixed = ops.temporary(DType::f32, {tokens, c_.dim});
    TensorView qkv = ops.temporary(DType::f32, {tokens, 3 * c_.dim});
    TensorView hidden = ops.temporary(DType::f32, {tokens, c_.ffn_dim});
    const TensorView positions(const_cast<std::int32_t*>(kv.positions(slot)), DType::i32, {tokens}, ops.device.id());
    MSTAR_TRY(embedding(ops, {.ids = step.input(0),
                              .table = embedding_.view(),
                              .positions = positions,
                              .position_table = positions_.view(),
                              .out = x}));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& l = layers_[i];
      const PagedKvView pages = kv.view(static_cast<int>(i), slot);
      MSTAR_TRY(l.attention_norm.run(ops, x, normed));
      MSTAR_TRY(l.qkv.run(ops, normed, qkv));
      MSTAR_TRY(kv_append(ops, {.keys = heads_of(qkv, 1), .values = heads_of(qkv, 2), .rows = rows, .kv = pages}));
      MSTAR_TRY(attention_paged(ops, {.q = heads_of(qkv, 0),
                                      .rows = rows,
                                      .kv = pages,
                                      .scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim())),
                                      .out = heads_of(mixed, 0)}));
      MSTAR_TRY(l.out.run(ops, mixed, x, Activation::none, x));
      MSTAR_TRY(l.ffn_norm.run(ops, x, normed));
      MSTAR_TRY(l.up.run(ops, normed, hidden, Activation::gelu_erf));
      MSTAR_TRY(l.down.run(ops, hidden, x, Activation::none, x));
    }
    return read_last(step, x, logits);
  }

  RowDemand demand(const Value* ids, int tokens) const {
    RowDemand out;
    out.resources.tokens = tokens;
    out.resources.samples = true;
    out.sources = {{0, ids}};
    out.results = {{.slot = 0, .output = 0, .items = 1}, {.slot = 1, .output = -1, .items = 1}};
    if (d_.with_logits) out.results.push_back({.slot = 2, .output = 1, .items = 1});
    return out;
  }
  // Part `index` of [tokens, parts * dim] as [tokens, heads, head_dim].
  TensorView heads_of(TensorView fused, int index) const {
    TensorView view = fused;
    view.pointer = fused.data<float>() + static_cast<std::ptrdiff_t>(index) * c_.dim;
    view.shape = {fused.dim(0), c_.heads, c_.head_dim()};
    view.strides = {fused.stride(0), c_.head_dim(), 1};
    return view;
  }

  // The logits of each row's last token.
  Status read_last(Forward& step, TensorView x, TensorView logits) {
    OpContext& ops = step.ops();
    const int num_rows = step.num_rows();
    const auto offsets = step.token_offsets();
    TensorView last = x;
    if (x.dim(0) != num_rows) {
      last = ops.temporary(DType::f32, {num_rows, c_.dim});
      for (int r = 0; r < num_rows; ++r)
        ops.device.copy_within(last.at(r).pointer, x.at(offsets[static_cast<std::size_t>(r) + 1] - 1).pointer,
                               sizeof(float) * static_cast<std::size_t>(c_.dim), ops.stream);
    }
    MSTAR_TRY(norm_.run(ops, last, last));
    return linear(ops, {.x = last, .weight = &head_, .out = logits});
  }

  Status pick(Forward& step, TensorView logits) {
    OpContext& ops = step.ops();
    if (d_.with_logits) ops.device.copy_within(step.output(2).pointer, logits.pointer, logits.bytes(), ops.stream);
    const auto& wanted = static_cast<resource::SamplerPool&>(step.resource(d_.sampler)).rows(step.plan_slot());
    sample_rows_.resize(static_cast<std::size_t>(step.num_rows()));
    for (std::size_t r = 0; r < sample_rows_.size(); ++r) {
      sample_rows_[r].temperature = wanted[r].temperature;
      sample_rows_[r].seed = wanted[r].seed;
      sample_rows_[r].offset = wanted[r].offset;
    }
    return sample(ops, {.logits = logits, .rows = sample_rows_, .tokens = step.output(0), .log_probs = step.output(1)});
  }

  ToyConfig c_;
  const DecoderDecl& d_;
  Value padding_;
  int num_threads_ = 1;
  Tensor embedding_, positions_;
  std::vector<Layer> layers_;
  Norm norm_;
  LinearWeight head_;
  std::vector<SampleRow> sample_rows_;
};

}  // namespace

std::unique_ptr<DecoderDecl> declare_toy_decoder(const ToyConfig& config, std::vector<int> captured_rows,
                                                 int max_batch_rows, bool with_logits) {
  std::vector<decl::PiecewiseRegion> regions;
  if (!captured_rows.empty()) regions = {{.name = "trunk", .rows = captured_rows, .lease_before_step = true}};
  const DecoderSpec spec{.kv = {.name = "kv",
                                .layers = config.layers,
                                .kv_heads = config.heads,
                                .head_dim = config.head_dim(),
                                .page_tokens = config.page_tokens,
                                .max_tokens_per_request = config.max_positions,
                                .dtype = config.kv_dtype},
                         .vocab = config.vocab,
                         .captured_rows = std::move(captured_rows),
                         .regions = std::move(regions),
                         .max_batch_rows = max_batch_rows,
                         .with_logits = with_logits};
  return declare_decoder(spec, [&config](const DecoderDecl& d) -> decl::BuildBody {
    return [config, &d](BuildContext& context) { return ToyDecoder::build(config, d, context); };
  });
}

}  // namespace mstar::engine
