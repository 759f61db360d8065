#include "mstar/models/decoder_lm/decoder_body.h"

#include <algorithm>

#include "mstar/engine/component_body.h"
#include "mstar/ops/embedding/embedding.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"

namespace mstar::models {
namespace {

using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float) + 256; }

class Decoder final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const DecoderRefs& refs, engine::BuildContext& build) {
    const DecoderConfig& c = *refs.config;
    if (build.device.id().backend != Backend::cpu)
      return bad_model("'" + c.architecture + "' models run on the CPU only for now");
    auto out = std::unique_ptr<Decoder>(new Decoder(refs));
    const nn::LoadContext context{build.weights, build.device, c.storage, build.pool, c.keep_blocks};
    out->num_threads_ = build.pool ? build.pool->num_threads() : 1;
    MSTAR_TRY_ASSIGN(out->rotary_, nn::Rotary::create(build.device, c.frequencies, c.interleaved_rope));
    MSTAR_TRY_ASSIGN(out->embedding_, nn::Linear::load(context, "decoder.embedding", c.vocab, c.layer.dim, false));
    for (int layer = 0; layer < c.layers; ++layer) {
      MSTAR_TRY_ASSIGN(nn::DecoderLayer loaded,
                       nn::DecoderLayer::load(context, "decoder.layer." + std::to_string(layer), c.layer));
      out->layers_.push_back(std::move(loaded));
    }
    MSTAR_TRY_ASSIGN(out->norm_, nn::RmsNorm::load(context, "decoder.norm", c.layer.dim, c.layer.norm_epsilon));
    if (!c.tied) {
      MSTAR_TRY_ASSIGN(out->head_, nn::Linear::load(context, "decoder.head", c.vocab, c.layer.dim, false));
    }
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }

  std::vector<engine::SlotSpec> input_slots() const override { return {{.name = "ids", .dtype = DType::i32}}; }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .to_host = true},
            {.name = "logprobs", .dtype = DType::f32, .item_dims = {2}, .to_host = true}};
  }

  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* const prompt = row.value(refs_.prompt);
    const Value* const ids = prompt ? prompt : row.value(refs_.token);
    if (!ids) return internal_error("a row of the decoder without tokens");
    RowDemand demand;
    demand.sources = {{0, ids}};
    demand.resources.tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1;
    demand.resources.samples = true;
    demand.results = {{.slot = 0, .output = 0, .items = 1}};
    const int num_logprobs = row.params->sampling.num_logprobs;
    if (num_logprobs >= 0) demand.results.push_back({.slot = 1, .output = 1, .items = 1 + num_logprobs});
    return demand;
  }

  std::size_t workspace_bytes(int rows, int tokens) const override {
    const DecoderConfig& c = *refs_.config;
    const std::int64_t r = rows;
    return floats(static_cast<std::int64_t>(tokens) * c.layer.dim) + floats(r * c.layer.dim) + 2 * floats(r * c.vocab) +
           floats(r) + static_cast<std::size_t>(r) * 256 +
           std::max({layers_.front().workspace_bytes(tokens, num_threads_, rotary_),
                     head().workspace_bytes(rows, num_threads_), sample_workspace_bytes(c.vocab, num_threads_)});
  }
  std::size_t weight_bytes() const override {
    std::size_t bytes = embedding_.bytes() + norm_.bytes() + head_.bytes() + rotary_.bytes();
    for (const nn::DecoderLayer& layer : layers_) bytes += layer.bytes();
    return bytes;
  }

  Status forward(Forward& step, int) override {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.kv));
    const int slot = step.plan_slot();
    const std::int64_t tokens = step.token_offsets().back();
    const TensorView x = ops.temporary(DType::f32, {tokens, refs_.config->layer.dim});
    const TensorView positions(const_cast<std::int32_t*>(kv.positions(slot)), DType::i32, {tokens});
    MSTAR_TRY(embedding(ops, {.ids = step.input(0), .tied = &embedding_.weight(), .out = x}));
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
      MSTAR_TRY(
          layers_[layer].run(ops, x, positions, rotary_, kv.ragged(slot), kv.view(static_cast<int>(layer), slot)));
    MSTAR_TRY(sample_last(step, x));
    ops.arena.rewind(mark);
    return ok_status();
  }

 private:
  explicit Decoder(const DecoderRefs& refs) : refs_(refs) {}
  const nn::Linear& head() const { return refs_.config->tied ? embedding_ : head_; }

  // Logits of each row's last token, and the token drawn from them.
  Status sample_last(Forward& step, TensorView x) {
    OpContext& ops = step.ops();
    const DecoderConfig& c = *refs_.config;
    const std::int64_t num_rows = step.num_rows();
    const TensorView last = ops.temporary(DType::f32, {num_rows, c.layer.dim});
    for (std::int64_t r = 0; r < num_rows; ++r)
      ops.device.copy_within(last.at(r).pointer,
                             x.at(step.token_offsets()[static_cast<std::size_t>(r) + 1] - 1).pointer,
                             sizeof(float) * static_cast<std::size_t>(c.layer.dim), ops.stream);
    MSTAR_TRY(norm_.run(ops, last, last));
    const TensorView logits = ops.temporary(DType::f32, {num_rows, c.vocab});
    MSTAR_TRY(head().run(ops, last, logits));
    return draw(step, logits);
  }

  Status draw(Forward& step, TensorView logits) {
    OpContext& ops = step.ops();
    auto& sampler = static_cast<resource::SamplerPool&>(step.resource(refs_.sampler));
    const auto& wanted = sampler.rows(step.plan_slot());
    const std::size_t num_rows = wanted.size();
    std::vector<SampleRow> rows(num_rows);
    std::vector<TensorView> raw(num_rows);  // logits as the model gave them, where the client is told of them
    for (std::size_t r = 0; r < num_rows; ++r) {
      const RowInputs& row = step.row(static_cast<int>(r));
      if (row.value(refs_.prompt)) sampler.note_prompt(row.request, ids_of(step, r));
      const resource::TokenHistory history = sampler.history(row.request);
      rows[r] = {.repetition_penalty = wanted[r].repetition_penalty,
                 .seen = history.seen,
                 .biases = history.biases,
                 .temperature = wanted[r].temperature,
                 .top_k = wanted[r].top_k,
                 .top_p = wanted[r].top_p,
                 .min_p = wanted[r].min_p,
                 .seed = wanted[r].seed,
                 .offset = wanted[r].offset};
      if (wanted[r].needs_more_tokens) {
        rows[r].suppress = refs_.config->text.stop_ids;
        rows[r].more_suppress = row.params->sampling.stop_ids;
      }
      if (row.params->sampling.num_logprobs < 0) continue;
      const TensorView own = logits.at(static_cast<std::int64_t>(r));
      raw[r] = ops.temporary(DType::f32, {own.dim(0)});
      ops.device.copy_within(raw[r].pointer, own.pointer, own.bytes(), ops.stream);
    }
    const TensorView scores = ops.temporary(DType::f32, {static_cast<std::int64_t>(num_rows)});
    const TensorView tokens = step.output(0);
    MSTAR_TRY(sample(ops, {.logits = logits, .rows = rows, .tokens = tokens, .log_probs = scores}));
    for (std::size_t r = 0; r < num_rows; ++r) {
      const std::int32_t token = tokens.data<std::int32_t>()[r];
      sampler.note_drawn(step.row(static_cast<int>(r)).request, token);
      if (!raw[r].pointer) continue;
      const auto offsets = step.output_offsets(1);
      MSTAR_TRY(log_probabilities(
          ops, {.logits = raw[r], .token = token, .out = step.output(1).slice(offsets[r], offsets[r + 1])}));
    }
    return ok_status();
  }

  std::span<const std::int32_t> ids_of(const Forward& step, std::size_t row) const {
    const auto offsets = step.input_offsets(0);
    return {step.input(0).data<std::int32_t>() + offsets[row],
            static_cast<std::size_t>(offsets[row + 1] - offsets[row])};
  }

  DecoderRefs refs_;
  int num_threads_ = 1;
  nn::Rotary rotary_;
  nn::Linear embedding_, head_;
  std::vector<nn::DecoderLayer> layers_;
  nn::RmsNorm norm_;
};

}  // namespace

decl::BuildBody build_decoder_lm(const DecoderRefs& refs) {
  return [refs](engine::BuildContext& context) { return Decoder::build(refs, context); };
}

}  // namespace mstar::models
