#include "mstar/models/toy/toy_image.h"

#include <algorithm>
#include <cmath>

#include "mstar/engine/component_body.h"
#include "mstar/media/image.h"
#include "mstar/nn/paged_layer.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/embedding/embedding.h"
#include "mstar/ops/rms_norm/rms_norm.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/state_slots.h"

namespace mstar::models {
namespace {

using namespace decl;
using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;

constexpr int kVocab = 32, kMaxCaptionTokens = 64, kMaxSteps = 50, kMaxPictures = 4;
constexpr std::int32_t kStyle[] = {3, 14, 15, 9, 26};  // what every picture's context begins with
constexpr nn::PagedLayer::Dims kDims = {.dim = 32, .heads = 2, .head_dim = 16, .ffn_dim = 64};
constexpr int kNumLayers = 2;
constexpr int kPatches = 4, kChannels = 16, kLatentDim = kChannels + 1;  // the last channel is the time, 0 to 1
constexpr int kPatchSide = 8, kPatchPixels = kPatchSide * kPatchSide * 3, kSide = 2 * kPatchSide;
constexpr int kMaxContext = static_cast<int>(std::size(kStyle)) + kMaxCaptionTokens + kPatches * kMaxSteps;
constexpr std::uint64_t kPainterSeed = 8001, kRendererSeed = 8002;

struct Refs {
  PortRef text, style, caption, latent, guided, free, pixels, image;
  ResourceRef kv, mood;
  WalkRef begin, condition, again, paint;
};

// The toys beside ops work on memory directly.
Status need_cpu(const engine::BuildContext& context) {
  return context.device.id().backend == Backend::cpu ? ok_status()
                                                     : Status(bad_model("toy-image runs on the CPU only"));
}

class Caption final : public HostStage {
 public:
  Result<HostOutputs> run(const HostInputs& inputs) override {
    std::vector<std::int32_t> ids;
    for (const char c : inputs.ports[0].front().text()) ids.push_back(static_cast<unsigned char>(c) % kVocab);
    return HostOutputs{.ports = {{HostValue::i32(ids)}}};
  }
};

// A causal transformer that reads style and caption, then the latent patches of each step; all of it stays in the KV of
// the row's label. `mood` is a running mean of the words, under the same labels, that colours the patches.
class Painter final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const Refs& refs, engine::BuildContext& context) {
    MSTAR_TRY(need_cpu(context));
    auto out = std::make_unique<Painter>(refs, context.pool ? context.pool->num_threads() : 1);
    const nn::SeededWeights weights(context.device, kPainterSeed);
    MSTAR_TRY_ASSIGN(out->table_, weights.tensor("table", {kVocab, kDims.dim}));
    MSTAR_TRY_ASSIGN(out->positions_, weights.tensor("positions", {kMaxContext, kDims.dim}, 0.5f));
    MSTAR_TRY_ASSIGN(out->in_, weights.linear("in", kDims.dim, kLatentDim));
    for (int i = 0; i < kNumLayers; ++i) {
      MSTAR_TRY_ASSIGN(auto layer, nn::PagedLayer::seeded(weights, "layer." + std::to_string(i), kDims));
      out->layers_.push_back(std::move(layer));
    }
    MSTAR_TRY_ASSIGN(out->norm_, weights.tensor("norm", {kDims.dim}, 0.1f));
    MSTAR_TRY_ASSIGN(out->out_, weights.linear("out", kChannels, kDims.dim));
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }
  Painter(const Refs& refs, int num_threads) : refs_(refs), num_threads_(num_threads) {}

  // A row brings words or patches.
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "ids", .dtype = DType::i32}, {.name = "latent", .item_dims = {kLatentDim}}};
  }
  std::vector<engine::SlotSpec> output_slots() const override { return {{.name = "flow", .item_dims = {kChannels}}}; }
  Result<RowDemand> declare(const RowInputs& row) override {
    RowDemand demand;
    if (const Value* const latent = row.value(refs_.latent)) {
      demand.sources = {{1, latent}};
      demand.resources.tokens = kPatches;
      demand.results = {{.slot = 0, .output = 0, .items = kPatches}};
    } else {
      const Value* const words = row.value(row.run->inputs[0]);
      demand.sources = {{0, words}};
      demand.resources.tokens = static_cast<int>(words->host.as<std::int32_t>().size());
    }
    return demand;
  }
  std::size_t workspace_bytes(int, int tokens) const override {
    const auto floats = static_cast<std::size_t>(tokens * 5 * kDims.dim);
    return floats * sizeof(float) + 5 * 256 + layers_[0].workspace_bytes(tokens, num_threads_) +
           in_.workspace_bytes(tokens, num_threads_) + out_.workspace_bytes(tokens, num_threads_);
  }
  std::size_t weight_bytes() const override {
    std::size_t bytes = table_.bytes() + positions_.bytes() + norm_.bytes() + in_.bytes() + out_.bytes();
    for (const auto& layer : layers_) bytes += layer.bytes();
    return bytes;
  }

  Status forward(Forward& step, int) override {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.kv));
    const int slot = step.plan_slot();
    const RaggedView rows = kv.ragged(slot);
    if (rows.num_tokens == 0) return ok_status();
    const TensorView x = ops.temporary(DType::f32, {rows.num_tokens, kDims.dim});
    MSTAR_TRY(embed(step, x));
    const TensorView places = ops.temporary(DType::f32, {rows.num_tokens, kDims.dim});
    const TensorView positions(const_cast<std::int32_t*>(kv.positions(slot)), DType::i32, {rows.num_tokens});
    MSTAR_TRY(embedding(ops, {.ids = positions, .table = positions_.view(), .out = places}));
    MSTAR_TRY(add(ops, {.a = x, .b = places, .out = x}));
    for (int i = 0; i < kNumLayers; ++i)
      MSTAR_TRY(layers_[static_cast<std::size_t>(i)].run(ops, x, rows, kv.view(i, slot)));
    const std::int64_t num_patches = step.input_offsets(1).back();
    if (num_patches > 0) {
      const TensorView patches = ops.temporary(DType::f32, {num_patches, kDims.dim});
      for (int r = 0; r < step.num_rows(); ++r) {
        const auto [from, to] = share(step.input_offsets(1), r);
        if (to > from) copy(ops, x.at(step.token_offsets()[static_cast<std::size_t>(r)]), patches.at(from), to - from);
      }
      MSTAR_TRY(rms_norm(ops, {.x = patches, .weight = norm_.view(), .weight_offset = 1.0f, .out = patches}));
      MSTAR_TRY(out_.run(ops, patches, step.output(0)));
    }
    ops.arena.rewind(mark);
    return ok_status();
  }

 private:
  static std::pair<std::int64_t, std::int64_t> share(std::span<const std::int32_t> offsets, int r) {
    return {offsets[static_cast<std::size_t>(r)], offsets[static_cast<std::size_t>(r) + 1]};
  }
  static void copy(OpContext& ops, TensorView from, TensorView to, std::int64_t num_rows) {
    ops.device.copy_within(to.pointer, from.pointer, static_cast<std::size_t>(num_rows) * from.bytes(), ops.stream);
  }

  // Words by the table, patches by a projection and coloured by the mood, each where its row's tokens lie.
  Status embed(Forward& step, TensorView x) {
    OpContext& ops = step.ops();
    const TensorView ids = step.input(0), latents = step.input(1);
    const TensorView words = ops.temporary(DType::f32, {ids.dim(0), kDims.dim});
    const TensorView patches = ops.temporary(DType::f32, {latents.dim(0), kDims.dim});
    if (!words.empty()) MSTAR_TRY(embedding(ops, {.ids = ids, .table = table_.view(), .out = words}));
    if (!patches.empty()) MSTAR_TRY(in_.run(ops, latents, patches));
    auto& moods = static_cast<resource::StateSlots&>(step.resource(refs_.mood));
    const auto slots = moods.write_index_on_host(step.plan_slot());
    for (int r = 0; r < step.num_rows(); ++r) {
      const std::int64_t at = step.token_offsets()[static_cast<std::size_t>(r)];
      float* const mood = moods.tensor(0).at(slots[static_cast<std::size_t>(r)]).data<float>();
      if (const auto [from, to] = share(step.input_offsets(0), r); to > from) {
        copy(ops, words.at(from), x.at(at), to - from);
        for (std::int64_t t = from; t < to; ++t)
          for (int i = 0; i < kDims.dim; ++i) mood[i] = 0.75f * mood[i] + 0.25f * words.at(t).data<float>()[i];
      }
      if (const auto [from, to] = share(step.input_offsets(1), r); to > from) {
        copy(ops, patches.at(from), x.at(at), to - from);
        for (std::int64_t t = 0; t < to - from; ++t)
          for (int i = 0; i < kDims.dim; ++i) x.at(at + t).data<float>()[i] += mood[i];
      }
    }
    return ok_status();
  }

  Refs refs_;
  int num_threads_;
  Tensor table_, positions_, norm_;
  nn::Linear in_, out_;
  std::vector<nn::PagedLayer> layers_;
};

// latent += (free + guidance * (guided - free)) / num_steps, and the time goes on.
class Guide final : public engine::ComponentBody {
 public:
  explicit Guide(const Refs& refs) : refs_(refs) {}
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "latent", .item_dims = {kLatentDim}},
            {.name = "guided", .item_dims = {kChannels}},
            {.name = "free", .item_dims = {kChannels}}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "latent", .item_dims = {kLatentDim}}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    RowDemand demand;
    demand.sources = {{0, row.value(refs_.latent)}, {1, row.value(refs_.guided)}, {2, row.value(refs_.free)}};
    demand.results = {{.slot = 0, .output = 0, .items = kPatches}};
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override { return 0; }
  Status forward(Forward& step, int) override {
    for (int r = 0; r < step.num_rows(); ++r) {
      MSTAR_TRY_ASSIGN(const double guidance, step.row(r).params->fields.get_number("guidance", 3.0));
      const float scale = static_cast<float>(guidance);
      const float part = 1.0f / static_cast<float>(step.row(r).flag("num_steps", 1));
      for (std::int64_t p = r * kPatches; p < (r + 1) * kPatches; ++p) {
        const float* const from = step.input(0).at(p).data<float>();
        const float* const guided = step.input(1).at(p).data<float>();
        const float* const unguided = step.input(2).at(p).data<float>();
        float* const to = step.output(0).at(p).data<float>();
        for (int i = 0; i < kChannels; ++i) to[i] = from[i] + part * (unguided[i] + scale * (guided[i] - unguided[i]));
        to[kChannels] = from[kChannels] + part;
      }
    }
    return ok_status();
  }

 private:
  Refs refs_;
};

// Latent patches -> their pixels, 0 to 255 before rounding.
class Renderer final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(engine::BuildContext& context) {
    MSTAR_TRY(need_cpu(context));
    auto out = std::make_unique<Renderer>(context.pool ? context.pool->num_threads() : 1);
    const nn::SeededWeights weights(context.device, kRendererSeed);
    MSTAR_TRY_ASSIGN(out->pixels_, weights.linear("pixels", kPatchPixels, kLatentDim));
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }
  explicit Renderer(int num_threads) : num_threads_(num_threads) {}
  std::vector<engine::SlotSpec> input_slots() const override { return {{.name = "latent", .item_dims = {kLatentDim}}}; }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "pixels", .item_dims = {kPatchPixels}, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    return RowDemand{.sources = {{0, &row.ports[0].front()}}, .results = {{.slot = 0, .output = 0, .items = kPatches}}};
  }
  std::size_t workspace_bytes(int rows, int) const override {
    return pixels_.workspace_bytes(rows * kPatches, num_threads_);
  }
  std::size_t weight_bytes() const override { return pixels_.bytes(); }
  Status forward(Forward& step, int) override {
    MSTAR_TRY(pixels_.run(step.ops(), step.input(0), step.output(0)));
    float* const pixels = step.output(0).data<float>();
    for (std::int64_t i = 0; i < step.output(0).shape.num_elements(); ++i)
      pixels[i] = std::clamp(128.0f + 64.0f * pixels[i], 0.0f, 255.0f);
    return ok_status();
  }

 private:
  int num_threads_;
  nn::Linear pixels_;
};

class Png final : public HostStage {
 public:
  Result<HostOutputs> run(const HostInputs& inputs) override {
    const auto pixels = inputs.ports[0].front().as<float>();  // [patches, side, side, 3], patches row by row
    std::vector<std::uint8_t> rgb(kSide * kSide * 3);
    for (std::size_t i = 0; i < rgb.size(); ++i) {
      const std::size_t y = i / (kSide * 3), x = i / 3 % kSide, colour = i % 3;
      const std::size_t patch = y / kPatchSide * 2 + x / kPatchSide;
      const std::size_t at = ((patch * kPatchSide + y % kPatchSide) * kPatchSide + x % kPatchSide) * 3 + colour;
      rgb[i] = static_cast<std::uint8_t>(std::lrintf(pixels[at]));
    }
    MSTAR_TRY_ASSIGN(const std::string png, encode_png(rgb, kSide, kSide));
    return HostOutputs{.ports = {{HostValue::blob(png)}}};
  }
};

// begin -> condition -> paint -> again -> paint ...; `again` brings back the context from before the first picture.
class PaintPlan final : public Plan {
 public:
  PaintPlan(const Refs& refs, const RequestParams& params) : refs_(refs), seed_(params.sampling.seed) {
    // Checked at intake.
    num_pictures_ = static_cast<int>(params.fields.get_int("n", 1).value_or(1));
    num_steps_ = static_cast<int>(params.fields.get_int("num_steps", 8).value_or(8));
  }
  Result<Decision> next(const PlanView& view) override {
    if (!view.finished.valid())
      return Decision(NextWalk{.walk = refs_.begin, .inputs = {{refs_.style, {HostValue::i32(kStyle)}}}});
    if (view.finished == refs_.begin) return Decision(NextWalk{.walk = refs_.condition});
    if (view.finished != refs_.paint) return Decision(paint());
    if (num_painted_ == num_pictures_) return Decision(Done{});
    return Decision(NextWalk{.walk = refs_.again, .inputs = {{refs_.style, {HostValue::i32({})}}}});
  }

 private:
  NextWalk paint() {
    std::vector<float> noise(kPatches * kLatentDim);
    for (std::size_t i = 0; i < noise.size(); ++i)
      noise[i] =
          i % kLatentDim == kChannels
              ? 0.0f
              : std::sqrt(3.0f) * nn::seeded_number(seed_ + static_cast<std::uint64_t>(num_painted_), "noise", i);
    ++num_painted_;
    std::vector<std::byte> bytes(noise.size() * sizeof(float));
    std::copy_n(reinterpret_cast<const std::byte*>(noise.data()), bytes.size(), bytes.data());
    return {.walk = refs_.paint,
            .inputs = {{refs_.latent, {HostValue(DType::f32, {kPatches, kLatentDim}, std::move(bytes))}}},
            .caps = {{"denoise", num_steps_}},
            .flags = {{"num_steps", num_steps_}}};
  }

  Refs refs_;
  std::uint64_t seed_;
  int num_pictures_ = 1, num_steps_ = 1, num_painted_ = 0;
};

Error bad_field(const char* field, std::string message) {
  return invalid_request(std::move(message)).with_field(field);
}

Result<Intake> intake(const Refs& refs, const ApiRequest& request) {
  const char* const field = request.route == Route::images_generations ? "prompt" : "text";
  if (request.text.empty()) return bad_field(field, std::string("'") + field + "' is empty; say what to paint");
  if (request.text.size() > kMaxCaptionTokens)
    return bad_field(field,
                     std::string("'") + field + "' is longer than " + std::to_string(kMaxCaptionTokens) + " letters");
  Intake out;
  out.inputs[refs.text] = {HostValue::utf8(request.text)};
  out.num_prompt_tokens = static_cast<std::int64_t>(request.text.size());
  out.params.fields = request.fields;
  out.params.output_modalities = {Modality::image};
  const auto check = [&](const char* name, std::int64_t fallback, std::int64_t most) -> Status {
    MSTAR_TRY_ASSIGN(const std::int64_t value, request.fields.get_int(name, fallback));
    if (value >= 1 && value <= most) return ok_status();
    return bad_field(name, "'" + std::string(name) + "' must be between 1 and " + std::to_string(most));
  };
  MSTAR_TRY(check("n", 1, kMaxPictures));
  MSTAR_TRY(check("num_steps", 8, kMaxSteps));
  MSTAR_TRY_ASSIGN(const double guidance, request.fields.get_number("guidance", 3.0));
  if (!(guidance >= 0 && guidance <= 20)) return bad_field("guidance", "'guidance' must be between 0 and 20");
  MSTAR_TRY_ASSIGN(const std::int64_t seed, request.fields.get_int("seed", 0));
  out.params.sampling.seed = static_cast<std::uint64_t>(seed);
  return out;
}

}  // namespace

Result<Decl> declare_toy_image(const ModelSource& source) {
  Decl d(source.name);
  Refs r;
  const std::vector<std::string> labels = {"cond", "uncond", "cond_start", "uncond_start"};
  r.kv = d.resource(PagedKv{.name = "painter.kv",
                            .layers = kNumLayers,
                            .kv_heads = kDims.heads,
                            .head_dim = kDims.head_dim,
                            .max_tokens_per_request = kMaxContext,
                            .labels = labels});
  r.mood = d.resource(RecurrentState{.name = "painter.mood", .tensors = {{"mood", {kDims.dim}}}, .labels = labels});
  const std::vector<Axis> latent = {{"patches", kPatches}, {"channels_and_time", kLatentDim}};
  const std::vector<Axis> flow = {{"patches", kPatches}, {"channels", kChannels}};
  r.text = d.port({.name = "text", .dtype = DType::utf8, .travel = {FromRequest{}}});
  r.style = d.port({.name = "style", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {FromPlan{}}});
  r.caption = d.port({.name = "caption", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {Keep{}}});
  r.latent = d.port({.name = "latent", .axes = latent, .travel = {FromPlan{}}});
  r.guided = d.port({.name = "guided", .axes = flow});
  r.free = d.port({.name = "free", .axes = flow});
  r.pixels = d.port({.name = "pixels", .axes = {{"patches", kPatches}, {"pixels", kPatchPixels}}});
  r.image = d.port({.name = "image", .dtype = DType::bytes, .travel = {ToClient{Modality::image, "png"}}});

  const auto caption = d.component(
      HostComponent{.name = "caption", .make = [](const RequestParams&) { return std::make_unique<Caption>(); }});
  const auto painter =
      d.component(DeviceComponent{.name = "painter",
                                  .build = [r](engine::BuildContext& c) { return Painter::build(r, c); },
                                  .uses = {r.kv, r.mood},
                                  .max_batch_rows = 16,
                                  .max_batch_tokens = 128});
  const auto guide = d.component(
      DeviceComponent{.name = "guide",
                      .build = [r](engine::BuildContext& c) -> Result<std::unique_ptr<engine::ComponentBody>> {
                        MSTAR_TRY(need_cpu(c));
                        return std::unique_ptr<engine::ComponentBody>(std::make_unique<Guide>(r));
                      },
                      .max_batch_rows = 16});
  const auto renderer =
      d.component(DeviceComponent{.name = "renderer", .build = Renderer::build, .max_batch_rows = 16});
  const auto png =
      d.component(HostComponent{.name = "png", .make = [](const RequestParams&) { return std::make_unique<Png>(); }});

  r.begin = d.walk("begin", Parallel{{Run{caption, {r.text}, {r.caption}}, Run{painter, {r.style}, {}, {"cond"}}}});
  // The style alone is what guidance leads away from; both beginnings are kept for further pictures.
  r.condition = d.walk("condition", Run{painter,
                                        {r.caption},
                                        {},
                                        {"cond"},
                                        {{"cond", "uncond"}, {"cond", "uncond_start"}},
                                        {{"cond", "cond_start"}}});
  r.again =
      d.walk("again", Run{painter, {r.style}, {}, {"cond"}, {{"cond_start", "cond"}, {"uncond_start", "uncond"}}});
  r.paint = d.walk("paint", Sequential{{Loop{.name = "denoise",
                                             .body = {Parallel{{Run{painter, {r.latent}, {r.guided}, {"cond"}},
                                                                Run{painter, {r.latent}, {r.free}, {"uncond"}}}},
                                                      Run{guide, {r.latent, r.guided, r.free}, {r.latent}}},
                                             .at_most = kMaxSteps,
                                             .outputs = {r.latent}},
                                        Run{renderer, {r.latent}, {r.pixels}}, Run{png, {r.pixels}, {r.image}}}});
  d.partition({.walks = {r.begin, r.condition, r.again, r.paint},
               .plan = [r](const RequestParams& p) { return std::make_unique<PaintPlan>(r, p); }});
  for (const Route route : {Route::generate, Route::images_generations})
    d.surface({.route = route, .intake = [r](const ApiRequest& request) { return intake(r, request); }});
  return d;
}

}  // namespace mstar::models
