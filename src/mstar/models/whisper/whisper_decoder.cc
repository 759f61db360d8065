#include <unordered_map>

#include "mstar/engine/component_body.h"
#include "mstar/models/whisper/whisper_blocks.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/embedding/embedding.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/resource/cross_kv.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"

namespace mstar::models {
namespace {

using namespace whisper;
using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;

// ---- decoder
// -----------------------------------------------------------------------------------------------------------

class Decoder final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const WhisperRefs& refs, engine::BuildContext& build) {
    auto out = std::unique_ptr<Decoder>(new Decoder(refs));
    const WhisperConfig& c = *refs.config;
    const nn::LoadContext context{build.weights, build.device, c.storage, build.pool};
    out->num_threads_ = build.pool ? build.pool->num_threads() : 1;
    for (int layer = 0; layer < c.decoder_layers; ++layer) {
      const std::string name = "decoder.layer." + std::to_string(layer);
      MSTAR_TRY_ASSIGN(Attention self, Attention::load(context, name + ".self", "qkv", 3, c));
      MSTAR_TRY_ASSIGN(Attention cross, Attention::load(context, name + ".cross", "q", 1, c));
      MSTAR_TRY_ASSIGN(FeedForward ffn, FeedForward::load(context, name + ".ffn", c));
      out->layers_.push_back({std::move(self), std::move(cross), std::move(ffn)});
    }
    MSTAR_TRY_ASSIGN(out->norm_, nn::LayerNorm::load(context, "decoder.norm", c.dim));
    MSTAR_TRY_ASSIGN(out->positions_, nn::load_f32(context, "decoder.positions", {c.text_positions, c.dim}));
    MSTAR_TRY_ASSIGN(out->embedding_, nn::Linear::load(context, "decoder.embedding", c.vocab, c.dim, false));
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }

  // Output slots: 0 tokens, 1 log-probabilities, 2 no-speech probability, 3 language probabilities.
  std::vector<engine::SlotSpec> input_slots() const override { return {{.name = "ids", .dtype = DType::i32}}; }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .to_host = true},
            {.name = "score", .dtype = DType::f32, .to_host = true},
            {.name = "no_speech", .dtype = DType::f32, .to_host = true},
            {.name = "language_probs", .dtype = DType::f32, .to_host = true}};
  }

  Result<RowDemand> declare(const RowInputs& row) override {
    RowDemand demand;
    const Value* prompt = row.value(refs_.prompt);
    const Value* ids = prompt ? prompt : row.value(refs_.token);
    demand.sources = {{0, ids}};
    demand.resources.tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1;
    demand.resources.restart = prompt != nullptr;
    demand.resources.samples = !detects(row);
    if (detects(row)) {
      demand.results = {{.slot = 3, .output = 0, .items = static_cast<int>(c_.tokens.languages.size())}};
    } else if (prompt) {
      demand.results = {{.slot = 0, .output = 0, .items = 1},
                        {.slot = 1, .output = 1, .items = 1},
                        {.slot = 2, .output = 2, .items = 1}};
    } else {
      demand.results = {{.slot = 0, .output = 0, .items = 1}, {.slot = 1, .output = 1, .items = 1}};
    }
    return demand;
  }

  std::size_t workspace_bytes(int rows, int tokens) const override {
    const std::int64_t dim = c_.dim;
    std::size_t bytes = 4 * floats(tokens * dim) + floats(static_cast<std::int64_t>(tokens) * 3 * dim) +
                        floats(static_cast<std::int64_t>(tokens) * c_.ffn_dim) + floats(2 * rows * dim) +
                        floats(static_cast<std::int64_t>(2 * rows) * c_.vocab) +
                        sample_workspace_bytes(c_.vocab, num_threads_) + (1 << 20);
    bytes += std::max({attention_paged_workspace_bytes(c_.head_dim(), num_threads_),
                       attention_slots_workspace_bytes(c_.head_dim(), num_threads_),
                       embedding_.workspace_bytes(2 * rows, num_threads_),
                       layers_.front().ffn.down.workspace_bytes(tokens, num_threads_),
                       layers_.front().ffn.up.workspace_bytes(tokens, num_threads_)});
    return bytes;
  }

  Status forward(Forward& step, int) override {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    auto& self_kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.self_kv));
    auto& cross_kv = static_cast<resource::CrossKvPool&>(step.resource(refs_.cross_kv));
    const int slot = step.plan_slot();
    const std::int64_t tokens = step.token_offsets().back();
    const RaggedView rows = self_kv.ragged(slot);
    TensorView x = ops.temporary(DType::f32, {tokens, c_.dim});
    TensorView normed = ops.temporary(DType::f32, {tokens, c_.dim});
    TensorView mixed = ops.temporary(DType::f32, {tokens, c_.dim});
    TensorView qkv = ops.temporary(DType::f32, {tokens, 3 * c_.dim});
    TensorView hidden = ops.temporary(DType::f32, {tokens, c_.ffn_dim});
    const TensorView positions(const_cast<std::int32_t*>(self_kv.positions(slot)), DType::i32, {tokens});
    MSTAR_TRY(embedding(ops, {.ids = step.input(0),
                              .tied = &embedding_.weight(),
                              .positions = positions,
                              .position_table = positions_.view(),
                              .out = x}));
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      Layer& l = layers_[layer];
      MSTAR_TRY(l.self.norm.run(ops, x, normed));
      MSTAR_TRY(l.self.in.run(ops, normed, qkv));
      const PagedKvView kv = self_kv.view(static_cast<int>(layer), slot);
      MSTAR_TRY(kv_append(ops, {.keys = heads_of(qkv, 1, c_), .values = heads_of(qkv, 2, c_), .rows = rows, .kv = kv}));
      MSTAR_TRY(attention_paged(
          ops, {.q = heads_of(qkv, 0, c_), .rows = rows, .kv = kv, .scale = scale_of(c_), .out = as_heads(mixed, c_)}));
      MSTAR_TRY(l.self.out.run(ops, mixed, x, Activation::none, x));
      MSTAR_TRY(l.cross.norm.run(ops, x, normed));
      MSTAR_TRY(l.cross.in.run(ops, normed, mixed));
      MSTAR_TRY(attention_slots(ops, {.q = as_heads(mixed, c_),
                                      .rows = rows,
                                      .kv = cross_kv.view(static_cast<int>(layer), slot),
                                      .scale = scale_of(c_),
                                      .out = as_heads(normed, c_)}));
      MSTAR_TRY(l.cross.out.run(ops, normed, x, Activation::none, x));
      MSTAR_TRY(l.ffn.run(ops, x, normed, hidden));
    }
    MSTAR_TRY(heads(step, x));
    ops.arena.rewind(mark);
    return ok_status();
  }

  void forget(RequestId request) override { states_.erase(request); }
  std::size_t weight_bytes() const override {
    std::size_t bytes = positions_.bytes() + embedding_.bytes() + norm_.bytes();
    for (const Layer& layer : layers_) bytes += layer.self.bytes() + layer.cross.bytes() + layer.ffn.bytes();
    return bytes;
  }

 private:
  struct Layer {
    Attention self, cross;
    FeedForward ffn;
  };
  explicit Decoder(const WhisperRefs& refs) : refs_(refs), c_(*refs.config) {}

  bool detects(const RowInputs& row) const { return row.run->outputs[0] == refs_.language_probs; }

  // Logits for the positions that need them: the last of each row, and the start token's of a prompt.
  Status heads(Forward& step, TensorView x) {
    OpContext& ops = step.ops();
    const int num_rows = step.num_rows();
    std::vector<std::int64_t> picked;  // token index of each logits row
    std::vector<int> last_row(static_cast<std::size_t>(num_rows)), sot_row(static_cast<std::size_t>(num_rows), -1);
    const auto offsets = step.token_offsets();
    for (int r = 0; r < num_rows; ++r) {
      last_row[r] = static_cast<int>(picked.size());
      picked.push_back(offsets[r + 1] - 1);
      if (!step.row(r).value(refs_.prompt)) continue;
      const std::int32_t* ids = step.input(0).data<std::int32_t>();
      for (std::int64_t t = offsets[r]; t < offsets[r + 1]; ++t) {
        if (ids[t] != c_.tokens.sot) continue;
        if (t == offsets[r + 1] - 1) {
          sot_row[r] = last_row[r];
        } else {
          sot_row[r] = static_cast<int>(picked.size());
          picked.push_back(t);
        }
        break;
      }
    }
    TensorView chosen = ops.temporary(DType::f32, {static_cast<std::int64_t>(picked.size()), c_.dim});
    for (std::size_t i = 0; i < picked.size(); ++i)
      ops.device.copy_within(chosen.at(static_cast<std::int64_t>(i)).pointer, x.at(picked[i]).pointer,
                             sizeof(float) * c_.dim, ops.stream);
    MSTAR_TRY(norm_.run(ops, chosen, chosen));
    TensorView logits = ops.temporary(DType::f32, {static_cast<std::int64_t>(picked.size()), c_.vocab});
    MSTAR_TRY(embedding_.run(ops, chosen, logits));
    return pick(step, logits, last_row, sot_row);
  }

  Status pick(Forward& step, TensorView logits, const std::vector<int>& last_row, const std::vector<int>& sot_row) {
    OpContext& ops = step.ops();
    auto& sampler = static_cast<resource::SamplerPool&>(step.resource(refs_.sampler));
    const auto& parameters = sampler.rows(step.plan_slot());
    for (int r = 0; r < step.num_rows(); ++r) {
      const bool detects_here = detects(step.row(r));
      const TensorView raw = logits.slice(last_row[r], last_row[r] + 1);
      if (detects_here) {
        const TensorView out = step.output(3).slice(step.output_offsets(3)[r], step.output_offsets(3)[r + 1]);
        MSTAR_TRY(token_probabilities(
            ops, {.logits = raw, .ids = c_.tokens.languages, .among_ids = true, .out = out.reshaped({1, out.dim(0)})}));
        continue;
      }
      DecodingState& state = states_[step.row(r).request];
      if (step.row(r).value(refs_.prompt)) {
        state = {};
        const int sot = sot_row[r] < 0 ? last_row[r] : sot_row[r];
        const std::int32_t id[1] = {c_.tokens.no_speech};
        const TensorView out = step.output(2).slice(step.output_offsets(2)[r], step.output_offsets(2)[r + 1]);
        MSTAR_TRY(
            token_probabilities(ops, {.logits = logits.slice(sot, sot + 1), .ids = id, .out = out.reshaped({1, 1})}));
      }
      SampleRow row;
      const resource::SamplerRow& wanted = parameters[static_cast<std::size_t>(r)];
      row.temperature = wanted.temperature;
      row.top_k = wanted.top_k;
      row.top_p = wanted.top_p;
      row.min_p = wanted.min_p;
      row.seed = wanted.seed;
      row.offset = wanted.offset;
      apply_decoding_rules(state, c_.tokens, ranges_, row);
      const std::int32_t at = step.output_offsets(0)[r];
      MSTAR_TRY(sample(ops, {.logits = raw,
                             .rows = {&row, 1},
                             .tokens = step.output(0).slice(at, at + 1),
                             .log_probs = step.output(1).slice(at, at + 1)}));
      state.push(step.output(0).data<std::int32_t>()[at], c_.tokens);
    }
    return ok_status();
  }

  WhisperRefs refs_;
  const WhisperConfig& c_;
  int num_threads_ = 1;
  std::vector<Layer> layers_;
  nn::LayerNorm norm_;
  Tensor positions_;
  nn::Linear embedding_;
  std::vector<TokenRange> ranges_;
  std::unordered_map<RequestId, DecodingState> states_;
};

}  // namespace

decl::BuildBody build_whisper_decoder(const WhisperRefs& refs) {
  return [refs](engine::BuildContext& context) { return Decoder::build(refs, context); };
}

}  // namespace mstar::models
