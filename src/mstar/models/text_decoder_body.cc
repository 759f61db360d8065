#include "mstar/models/text_decoder_body.h"

#include <algorithm>

#include "mstar/nn/rms_norm.h"
#include "mstar/nn/row_split.h"
#include "mstar/nn/vocabulary.h"
#include "mstar/ops/last_rows/last_rows.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"

namespace mstar::models {
namespace {

using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;

// The one region: all between the ids and the logits. Rows that tell log-probabilities are drawn outside of it.
constexpr int kTrunk = 0;
constexpr int kLogits = 0;  // what crosses its border

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float) + 256; }

class TextDecoder final : public engine::ComponentBody {
 public:
  template <class BuildStack>
  static Result<std::unique_ptr<engine::ComponentBody>> build(const TextDecoderRefs& refs, engine::BuildContext& build,
                                                              const BuildStack& build_stack) {
    const TextDecoderConfig& c = *refs.config;
    auto out = std::unique_ptr<TextDecoder>(new TextDecoder(refs));
    const nn::LoadContext context{.weights = build.weights,
                                  .device = build.device,
                                  .storage = c.storage,
                                  .pool = build.pool,
                                  .batch_invariant = c.batch_invariant,
                                  .keep_blocks = c.keep_blocks,
                                  .ranks = build.ranks(),
                                  .sequence = build.sequence()};
    out->sequence_ = context.sequence;
    MSTAR_TRY_ASSIGN(out->ids_, nn::Vocabulary::of(c.vocab, context.ranks));
    out->num_threads_ = build.pool ? build.pool->num_threads() : 1;
    MSTAR_TRY_ASSIGN(out->embedding_,
                     nn::Linear::load(context, "decoder.embedding", c.vocab, c.dim, false, out->ids_.cut()));
    MSTAR_TRY_ASSIGN(out->stack_, build_stack(context, build));
    MSTAR_TRY_ASSIGN(out->norm_, nn::RmsNorm::load(context, "decoder.norm", c.dim, c.norm_epsilon, c.norm_offset));
    if (!c.tied) {
      MSTAR_TRY_ASSIGN(out->head_, nn::Linear::load(context, "decoder.head", c.vocab, c.dim, false, out->ids_.cut()));
    }
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }

  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "ids", .dtype = DType::i32, .per_token = true}};
  }
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
    const auto& sampling = row.params->sampling;
    if (sampling.num_logprobs >= 0)
      demand.results.push_back({.slot = 1, .output = 1, .items = 1 + sampling.num_logprobs});
    demand.may_run_ahead =
        sampling.repetition_penalty == 1 && sampling.frequency_penalty == 0 && sampling.presence_penalty == 0;
    return demand;
  }

  std::vector<engine::CaptureSpec> captures() const override {
    engine::CaptureSpec decode;
    decode.row.sources = {{0, &any_token_}};
    decode.row.resources.tokens = 1;
    decode.row.resources.samples = true;
    decode.row.results = {{.slot = 0, .output = 0, .items = 1}};
    engine::CaptureSpec prompts;
    prompts.packed = true;
    prompts.few_rows = 8;
    prompts.few_rows_tokens = 1024;
    prompts.row.resources.samples = true;
    prompts.row.results = decode.row.results;
    return {decode, prompts};
  }
  std::vector<engine::RegionSpec> regions() const override {
    return {{.name = std::string(kTrunkRegion), .kinds = captures()}};
  }
  std::vector<engine::SlotSpec> borders() const override {
    return {{.name = "logits", .dtype = DType::f32, .item_dims = {refs_.config->vocab}}};
  }
  DType activations() const override { return refs_.config->activations(); }

  std::size_t workspace_bytes(int rows, int tokens) const override {
    const TextDecoderConfig& c = *refs_.config;
    const std::int64_t r = rows;
    return floats(nn::RowSplit::most_padded_rows(tokens, sequence_) * c.dim) +
           nn::Residual::workspace_bytes(tokens, c.dim) + 2 * floats(r * c.dim) + floats(r * c.vocab) + floats(r) +
           static_cast<std::size_t>(r) * 256 + ids_.workspace_bytes(r) +
           std::max({stack_->workspace_bytes(rows, tokens, num_threads_), head().workspace_bytes(rows, num_threads_),
                     sample_workspace_bytes(c.vocab, num_threads_)});
  }
  std::size_t weight_bytes() const override {
    return embedding_.bytes() + norm_.bytes() + head_.bytes() + stack_->bytes();
  }

  void before_plan(Forward& step) override {
    auto& sampler = static_cast<resource::SamplerPool&>(step.resource(refs_.sampler));
    for (int r = 0; r < step.num_rows(); ++r)
      if (const Value* const prompt = step.row_ends(r) ? step.row(r).value(refs_.prompt) : nullptr)
        sampler.note_prompt(step.row(r).request, prompt->host.as<std::int32_t>());
  }
  void after_row(Forward& step, int row, const std::vector<Values>& outputs) override {
    if (outputs.empty() || outputs[0].empty()) return;
    static_cast<resource::SamplerPool&>(step.resource(refs_.sampler))
        .note_drawn(step.row(row).request, outputs[0][0].host.as<std::int32_t>()[0]);
  }

  Status forward(Forward& step, int) override {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    const std::vector<int> drawn = drawn_rows(step);
    MSTAR_TRY(step.run_region(kTrunk, [&] { return make_logits(step, drawn); }));
    if (!drawn.empty())
      MSTAR_TRY(draw(step, drawn, step.border(kLogits).slice(0, static_cast<std::int64_t>(drawn.size()))));
    ops.arena.rewind(mark);
    return ok_status();
  }

 private:
  explicit TextDecoder(const TextDecoderRefs& refs) : refs_(refs) {}
  const nn::Linear& head() const { return refs_.config->tied ? embedding_ : head_; }

  bool on_cuda() const { return refs_.config->backend == Backend::cuda; }

  nn::Residual::Reader head_reader() const { return {.norm = &norm_, .product = &head(), .logits = true}; }

  static std::vector<int> drawn_rows(Forward& step) {
    std::vector<int> out;
    out.reserve(static_cast<std::size_t>(step.num_rows()));
    for (int r = 0; r < step.num_rows(); ++r)
      if (step.has_all_places() || step.row_ends(r)) out.push_back(r);
    return out;
  }

  // Of the rows that are drawn, in their order.
  Status make_logits(Forward& step, const std::vector<int>& drawn) {
    OpContext& ops = step.ops();
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.kv));
    const std::int64_t tokens = step.token_offsets().back();
    const nn::RowSplit split(tokens, sequence_);
    const AxisRange own = split.own();
    const TensorView stream = ops.temporary(DType::f32, {split.padded_rows(), refs_.config->dim});
    nn::Residual x(ops, stream.slice(own.begin, own.end));
    const TensorView positions(const_cast<std::int32_t*>(kv.positions(step.plan_slot())), DType::i32, {tokens},
                               ops.device.id());
    const TensorView ids = split.is_split() ? step.input(0).slice(own.begin, own.end) : step.input(0);
    MSTAR_TRY(ids_.embed(ops, {.ids = ids, .tied = &embedding_.weight(), .out = x.x()}));
    const bool each_draws = each_token_draws(step) && !split.is_split();
    MSTAR_TRY(stack_->run(step, x, positions, each_draws ? head_reader() : nn::Residual::Reader{}));
    MSTAR_TRY(nn::gather_rows(ops, split, stream));
    if (drawn.empty()) return ok_status();
    const TensorView logits = step.border(kLogits).slice(0, static_cast<std::int64_t>(drawn.size()));
    if (!each_draws) return logits_of_last(step, stream.slice(0, tokens), drawn, logits);
    MSTAR_TRY(x.norm(ops, norm_));
    return ids_.run_head(ops, head(), x.normed(), logits);
  }

  // Whether each row has one token and ends, as while answers are decoded.
  static bool each_token_draws(Forward& step) {
    const auto& offsets = step.token_offsets();
    for (int r = 0; r < step.num_rows(); ++r)
      if (!step.row_ends(r) || offsets[static_cast<std::size_t>(r) + 1] != r + 1) return false;
    return true;
  }

  // From the last token of each row that is drawn.
  Status logits_of_last(Forward& step, TensorView x, const std::vector<int>& drawn, TensorView logits) {
    OpContext& ops = step.ops();
    const TextDecoderConfig& c = *refs_.config;
    const auto& kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.kv));
    const std::int64_t num_rows = static_cast<std::int64_t>(drawn.size());
    const TensorView last = ops.temporary(DType::f32, {num_rows, c.dim});
    if (num_rows == step.num_rows()) {
      MSTAR_TRY(last_rows(ops, {.x = x, .rows = kv.ragged(step.plan_slot()), .out = last}));
    } else {
      for (std::int64_t i = 0; i < num_rows; ++i) {
        const auto row = static_cast<std::size_t>(drawn[static_cast<std::size_t>(i)]);
        ops.device.copy_within(last.at(i).pointer, x.at(step.token_offsets()[row + 1] - 1).pointer,
                               sizeof(float) * static_cast<std::size_t>(c.dim), ops.stream);
      }
    }
    const TensorView normed = ops.temporary(ops.activations, {num_rows, c.dim});
    MSTAR_TRY(norm_.run(ops, last, normed));
    return ids_.run_head(ops, head(), normed, logits);
  }

  Status draw(Forward& step, const std::vector<int>& ending, TensorView logits) {
    return on_cuda() ? draw_on_device(step, ending, logits) : draw_on_host(step, ending, logits);
  }

  Status draw_on_device(Forward& step, const std::vector<int>& ending, TensorView logits) {
    OpContext& ops = step.ops();
    const auto& sampler = static_cast<const resource::SamplerPool&>(step.resource(refs_.sampler));
    const auto num_rows = static_cast<std::int64_t>(ending.size());
    MSTAR_TRY(keep_raw(step, ending, logits));
    const std::vector<SampleRow> rows(ending.size());
    const TensorView scores = ops.temporary(DType::f32, {num_rows});
    MSTAR_TRY(sample(ops, {.logits = logits,
                           .rows = rows,
                           .tokens = step.output(0),
                           .log_probs = scores,
                           .parameters = sampler.parameters(step.plan_slot())}));
    return tell_log_probabilities(step, ending);
  }

  // Logits as the model gave them, where the client is told of them.
  Status keep_raw(Forward& step, const std::vector<int>& ending, TensorView logits) {
    OpContext& ops = step.ops();
    raw_.assign(ending.size(), {});
    for (std::size_t r = 0; r < ending.size(); ++r) {
      if (step.demand(ending[r]).results.size() < 2) continue;
      const TensorView own = logits.at(static_cast<std::int64_t>(r));
      raw_[r] = ops.temporary(DType::f32, {own.dim(0)});
      ops.device.copy_within(raw_[r].pointer, own.pointer, own.bytes(), ops.stream);
    }
    return ok_status();
  }

  Status tell_log_probabilities(Forward& step, const std::vector<int>& ending) {
    for (std::size_t r = 0; r < ending.size(); ++r) {
      if (!raw_[r].pointer) continue;
      const auto offsets = step.output_offsets(1);
      const auto row = static_cast<std::size_t>(ending[r]);
      const std::int32_t* const drawn = step.output(0).data<std::int32_t>() + r;
      MSTAR_TRY(log_probabilities(step.ops(), {.logits = raw_[r],
                                               .token = on_cuda() ? 0 : *drawn,
                                               .out = step.output(1).slice(offsets[row], offsets[row + 1]),
                                               .drawn = on_cuda() ? drawn : nullptr}));
    }
    return ok_status();
  }

  Status draw_on_host(Forward& step, const std::vector<int>& ending, TensorView logits) {
    OpContext& ops = step.ops();
    const auto& sampler = static_cast<const resource::SamplerPool&>(step.resource(refs_.sampler));
    std::vector<SampleRow> rows(ending.size());
    for (std::size_t r = 0; r < ending.size(); ++r)
      rows[r] = sampler.sample_row(step.plan_slot(), ending[r], step.row(ending[r]).request);
    MSTAR_TRY(keep_raw(step, ending, logits));
    const TensorView scores = ops.temporary(DType::f32, {static_cast<std::int64_t>(ending.size())});
    MSTAR_TRY(sample(ops, {.logits = logits, .rows = rows, .tokens = step.output(0), .log_probs = scores}));
    return tell_log_probabilities(step, ending);
  }

  TextDecoderRefs refs_;
  std::vector<TensorView> raw_;                                     // of the rows of one forward that end
  Value any_token_ = HostValue::i32(std::vector<std::int32_t>{0});  // what captured rows are recorded with
  int num_threads_ = 1;
  Ranks sequence_;
  nn::Vocabulary ids_;
  nn::Linear embedding_, head_;
  std::unique_ptr<DecoderStack> stack_;
  nn::RmsNorm norm_;
};

}  // namespace

decl::BuildBody build_text_decoder(
    const TextDecoderRefs& refs,
    std::function<Result<std::unique_ptr<DecoderStack>>(const nn::LoadContext&, engine::BuildContext&)> build_stack) {
  return [refs, build_stack = std::move(build_stack)](engine::BuildContext& context) {
    return TextDecoder::build(refs, context, build_stack);
  };
}

}  // namespace mstar::models
