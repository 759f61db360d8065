#include <algorithm>
#include <optional>

#include "mstar/engine/component_body.h"
#include "mstar/models/whisper/whisper_alignment.h"
#include "mstar/models/whisper/whisper_blocks.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/models/whisper/whisper_draws.h"
#include "mstar/models/whisper/whisper_host_draws.h"
#include "mstar/nn/residual.h"
#include "mstar/nn/vocabulary.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/ops/score_tokens/score_tokens.h"
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
    const nn::LoadContext context = load_context(build, c);
    MSTAR_TRY_ASSIGN(out->part_, Part::of(c, context.ranks));
    MSTAR_TRY_ASSIGN(out->ids_, nn::Vocabulary::of(c.vocab, context.ranks));
    const Part& part = out->part_;
    out->alignment_ = TextAlignment(c, part);
    out->num_threads_ = build.pool ? build.pool->num_threads() : 1;
    out->max_rows_ = build.limits.max_rows;
    out->max_tokens_ = build.limits.max_tokens;
    for (int layer = 0; layer < c.decoder_layers; ++layer) {
      const std::string name = "decoder.layer." + std::to_string(layer);
      MSTAR_TRY_ASSIGN(Attention self, Attention::load(context, name + ".self", "qkv", 3, c, part));
      MSTAR_TRY_ASSIGN(Attention cross, Attention::load(context, name + ".cross", "q", 1, c, part));
      MSTAR_TRY_ASSIGN(FeedForward ffn, FeedForward::load(context, name + ".ffn", c, part));
      if (c.passes_norms()) {
        MSTAR_TRY(self.in.fold(build.device, self.norm));
        MSTAR_TRY(cross.in.fold(build.device, cross.norm));
        MSTAR_TRY(ffn.up.fold(build.device, ffn.norm));
      }
      out->layers_.push_back({std::move(self), std::move(cross), std::move(ffn)});
    }
    MSTAR_TRY_ASSIGN(out->norm_, nn::LayerNorm::load(context, "decoder.norm", c.dim));
    MSTAR_TRY_ASSIGN(out->positions_, nn::load_f32(context, "decoder.positions", {c.text_positions, c.dim}));
    MSTAR_TRY_ASSIGN(out->embedding_,
                     nn::Linear::load(context, "decoder.embedding", c.vocab, c.dim, false, out->ids_.cut()));
    if (c.passes_norms()) MSTAR_TRY(out->embedding_.fold(build.device, out->norm_));
    if (c.on_cuda()) {
      MSTAR_TRY_ASSIGN(out->draws_,
                       DeviceDraws::create(c, build.device, build.limits.max_requests, build.limits.max_rows));
    }
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }

  // Output slots: 0 tokens, 1 log-probabilities, 2 no-speech probability, 3 language probabilities; of texts that are
  // aligned 4 first frames, 5 probabilities of tokens.
  // Input slots: 0 ids; 1 on a GPU, how many tokens of each row came before its draws; then, of texts that are aligned,
  // the frames of the row, at each token.
  std::vector<engine::SlotSpec> input_slots() const override {
    std::vector<engine::SlotSpec> slots = {{.name = "ids", .dtype = DType::i32, .per_token = true}};
    if (draws_) slots.push_back({.name = "begins", .dtype = DType::i32});
    slots.push_back({.name = "frames", .dtype = DType::i32, .per_token = true});
    return slots;
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .to_host = true},
            {.name = "score", .dtype = DType::f32, .to_host = true},
            {.name = "no_speech", .dtype = DType::f32, .to_host = true},
            {.name = "language_probs",
             .dtype = DType::f32,
             .max_items = max_rows_ * std::max(1, static_cast<int>(c_.tokens.languages.size())),
             .to_host = true},
            {.name = "first_frames", .dtype = DType::i32, .max_items = max_tokens_, .to_host = true},
            {.name = "token_probs", .dtype = DType::f32, .max_items = max_tokens_, .to_host = true}};
  }

  Result<RowDemand> declare(const RowInputs& row) override {
    if (row.value(refs_.text)) return declare_text(row);
    RowDemand demand;
    const Value* prompt = row.value(refs_.prompt);
    const Value* ids = prompt ? prompt : row.value(refs_.token);
    demand.sources = {{0, ids}};
    if (draws_) {
      const int prompt_tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 0;
      MSTAR_TRY_ASSIGN(const Value* const begin, draws_->begin_of(row.request, prompt_tokens));
      demand.sources.push_back({1, begin});
    }
    demand.resources.tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1;
    demand.resources.restart = prompt != nullptr;
    demand.resources.samples = !detects(refs_, row);
    if (const std::int64_t micros = row.flag(kTemperatureFlag, -1); micros >= 0)
      demand.resources.temperature = static_cast<float>(static_cast<double>(micros) * 1e-6);
    if (detects(refs_, row)) {
      demand.results = {{.slot = 3, .output = 0, .items = static_cast<int>(c_.tokens.languages.size())}};
    } else if (prompt) {
      demand.results = prompt_results();
      if (prompt->host.as<std::int32_t>()[0] == c_.tokens.sot) demand.shape_key = kBarePrompt;
    } else {
      demand.results = {{.slot = 0, .output = 0, .items = 1}, {.slot = 1, .output = 1, .items = 1}};
    }
    return demand;
  }

  // A text that is read once more for the times of its words.
  Result<RowDemand> declare_text(const RowInputs& row) const {
    const Value *const text = row.value(refs_.text), *const frames = row.value(refs_.frames);
    const int tokens = static_cast<int>(text->host.as<std::int32_t>().size());
    const int placed = tokens - num_start_tokens(c_.tokens) - 1;
    if (placed < 1) return internal_error("a text to align that is none");
    RowDemand demand = text_row();
    demand.sources = {{0, text}, {frames_slot(), frames}};
    demand.resources.tokens = tokens;
    demand.resources.restart = true;
    demand.results = {{.slot = 4, .output = 0, .items = placed}, {.slot = 5, .output = 1, .items = placed}};
    return demand;
  }

  // The steps of single tokens, and of prompts without earlier text, on a GPU.
  std::vector<engine::CaptureSpec> captures() const override {
    if (!draws_) return {};
    const Value& bare = c_.tokens.multilingual ? three_tokens_ : any_token_;
    engine::CaptureSpec prompt;
    prompt.row.sources = {{0, &bare}, {1, draws_->any_begin()}};
    prompt.row.resources.tokens = static_cast<int>(bare.host.as<std::int32_t>().size());
    prompt.row.resources.samples = true;
    prompt.row.results = prompt_results();
    prompt.row.shape_key = kBarePrompt;
    prompt.max_rows = 4 * kEncoderRows;  // they come from its steps, of which several may have ended
    engine::CaptureSpec decode;
    decode.row.sources = {{0, &any_token_}, {1, draws_->any_begin()}};
    decode.row.resources.tokens = 1;
    decode.row.resources.samples = true;
    decode.row.results = {{.slot = 0, .output = 0, .items = 1}, {.slot = 1, .output = 1, .items = 1}};
    return {decode, prompt};
  }
  std::vector<engine::RegionSpec> regions() const override {
    engine::CaptureSpec text;
    text.packed = true;
    text.few_rows = kEncoderRows;
    text.few_rows_tokens = 512;
    text.row = text_row();
    return {{.name = std::string(kTextRegion), .kinds = {text}}};
  }
  // What the alignment of texts leaves: scores, first frames, probabilities.
  std::vector<engine::SlotSpec> borders() const override {
    return {
        {.name = "scores", .dtype = DType::f32, .item_dims = {alignment_.columns()}, .per_token = true},
        {.name = "first_frames", .dtype = DType::i32, .per_token = true},
        {.name = "token_probs", .dtype = DType::f32, .per_token = true},
    };
  }
  DType activations() const override { return c_.activations(); }

  std::size_t workspace_bytes(int rows, int tokens) const override {
    const std::int64_t dim = c_.dim;
    std::size_t bytes = 4 * floats(tokens * dim) + nn::Residual::workspace_bytes(tokens, dim) +
                        floats(static_cast<std::int64_t>(tokens) * 3 * part_.width()) +
                        floats(static_cast<std::int64_t>(tokens) * part_.num_units()) + ids_.workspace_bytes(2 * rows) +
                        2 * floats(2 * rows * dim) + floats(static_cast<std::int64_t>(2 * rows) * logits_stride()) +
                        sample_workspace_bytes(c_.vocab, num_threads_) + (1 << 20) +
                        floats(static_cast<std::int64_t>(tokens) * alignment_.columns()) +
                        alignment_.workspace_bytes(tokens);
    bytes += std::max({attention_paged_workspace_bytes(c_.head_dim(), num_threads_),
                       attention_slots_workspace_bytes(c_.head_dim(), num_threads_),
                       embedding_.workspace_bytes(2 * rows, num_threads_),
                       layers_.front().ffn.down.workspace_bytes(tokens, num_threads_),
                       layers_.front().ffn.up.workspace_bytes(tokens, num_threads_)});
    return bytes;
  }

  Status forward(Forward& step, int) override {
    if (step.demand(0).shape_key == kText) return align(step);
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    nn::Residual x(ops, ops.temporary(DType::f32, {step.token_offsets().back(), c_.dim}));
    MSTAR_TRY(run_layers(step, x, nullptr));
    MSTAR_TRY(draws_ ? draw_on_device(step, x, positions_of(step)) : heads(step, x.x()));
    ops.arena.rewind(mark);
    return ok_status();
  }

  void forget(RequestId request) override {
    host_draws_.forget(request);
    if (draws_) draws_->forget(request);
  }
  std::size_t weight_bytes() const override {
    std::size_t bytes = positions_.bytes() + embedding_.bytes() + norm_.bytes() + (draws_ ? draws_->bytes() : 0);
    for (const Layer& layer : layers_) bytes += layer.self.bytes() + layer.cross.bytes() + layer.ffn.bytes();
    return bytes;
  }

 private:
  struct Layer {
    Attention self, cross;
    FeedForward ffn;
  };
  explicit Decoder(const WhisperRefs& refs) : refs_(refs), c_(*refs.config), host_draws_(refs) {}

  // From the step's ids to the residual stream behind the last layer. With `alignment` on the way also what its heads
  // listen to, and the stream is for nobody's norm.
  Status run_layers(Forward& step, nn::Residual& x, TextAlignment::Step* alignment) {
    OpContext& ops = step.ops();
    auto& self_kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.self_kv));
    auto& cross_kv = static_cast<resource::CrossKvPool&>(step.resource(refs_.cross_kv));
    const int slot = step.plan_slot();
    const std::int64_t tokens = step.token_offsets().back();
    const RaggedView rows = self_kv.ragged(slot);
    TensorView mixed = ops.temporary(ops.activations, {tokens, part_.width()});
    TensorView heard = ops.temporary(ops.activations, {tokens, part_.width()});
    TensorView qkv = ops.temporary(ops.activations, {tokens, 3 * part_.width()});
    TensorView hidden = ops.temporary(ops.activations, {tokens, part_.num_units()});
    MSTAR_TRY(ids_.embed(ops, {.ids = step.input(0),
                               .tied = &embedding_.weight(),
                               .positions = positions_of(step),
                               .position_table = positions_.view(),
                               .out = x.x()}));
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const Layer& l = layers_[layer];
      MSTAR_TRY(x.norm(ops, l.self.norm));
      MSTAR_TRY(l.self.in.run(ops, x.normed(), qkv));
      const PagedKvView kv = self_kv.view(static_cast<int>(layer), slot);
      MSTAR_TRY(attention_paged(ops, {.q = heads_of(qkv, 0, part_),
                                      .rows = rows,
                                      .kv = kv,
                                      .scale = scale_of(c_),
                                      .out = as_heads(mixed, part_),
                                      .new_keys = heads_of(qkv, 1, part_),
                                      .new_values = heads_of(qkv, 2, part_)}));
      MSTAR_TRY(x.add(ops, l.self.out, mixed, {.product = &l.cross.in, .layer_norm = &l.cross.norm}));
      MSTAR_TRY(x.norm(ops, l.cross.norm));
      MSTAR_TRY(l.cross.in.run(ops, x.normed(), mixed));
      const SlotKvView heard_kv = cross_kv.view(static_cast<int>(layer), slot);
      if (alignment)
        MSTAR_TRY(alignment_.listen(ops, static_cast<int>(layer), as_heads(mixed, part_), heard_kv, *alignment));
      MSTAR_TRY(attention_slots(ops, {.q = as_heads(mixed, part_),
                                      .rows = rows,
                                      .kv = heard_kv,
                                      .scale = scale_of(c_),
                                      .out = as_heads(heard, part_)}));
      MSTAR_TRY(x.add(ops, l.cross.out, heard, {.product = &l.ffn.up, .layer_norm = &l.ffn.norm}));
      MSTAR_TRY(x.norm(ops, l.ffn.norm));
      MSTAR_TRY(l.ffn.expand(ops, x.normed(), hidden));
      MSTAR_TRY(x.add(ops, l.ffn.down, hidden, reader_behind(layer, alignment != nullptr)));
    }
    return ok_status();
  }

  TensorView positions_of(Forward& step) const {
    auto& self_kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.self_kv));
    return TensorView(const_cast<std::int32_t*>(self_kv.positions(step.plan_slot())), DType::i32,
                      {step.token_offsets().back()}, step.ops().device.id());
  }

  nn::Residual::Reader reader_behind(std::size_t layer, bool for_nobody) const {
    if (for_nobody && layer + 1 == layers_.size()) return {};
    if (layer + 1 == layers_.size()) return {.product = &embedding_, .logits = true, .layer_norm = &norm_};
    return {.product = &layers_[layer + 1].self.in, .layer_norm = &layers_[layer + 1].self.norm};
  }

  static std::vector<engine::SlotResult> prompt_results() {
    return {{.slot = 0, .output = 0, .items = 1},
            {.slot = 1, .output = 1, .items = 1},
            {.slot = 2, .output = 2, .items = 1}};
  }
  // Rows of logits on 16 bytes.
  std::int64_t logits_stride() const { return (c_.vocab + 3) / 4 * 4; }

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
    MSTAR_TRY(ids_.run_head(ops, embedding_, chosen, logits));
    return host_draws_.draw(step, logits, last_row, sot_row);
  }

  // ---- the alignment of texts

  // RowDemand::shape_key of a text. Its steps are of such rows alone (DeviceComponent::combined).
  static constexpr std::uint64_t kText = 2;
  enum Border { kScores, kFirstFrames, kTokenProbs };
  int frames_slot() const { return draws_ ? 2 : 1; }
  static RowDemand text_row() {
    RowDemand out;
    out.shape_key = kText;
    return out;
  }

  Status align(Forward& step) {
    OpContext& ops = step.ops();
    MSTAR_TRY(step.run_region(0, [&] { return read_texts(step); }));
    for (const auto& [slot, border] : {std::pair{4, kFirstFrames}, std::pair{5, kTokenProbs}}) {
      const TensorView out = step.output(slot);
      // None of rows that a graph is recorded with.
      if (!out.empty()) ops.device.copy_within(out.pointer, step.border(border).pointer, out.bytes(), ops.stream);
    }
    return ok_status();
  }

  // Into the borders.
  Status read_texts(Forward& step) {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    const int tokens = step.token_offsets().back();
    auto& self_kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.self_kv));
    TextAlignment::Step texts{.rows = self_kv.ragged(step.plan_slot()),
                              .ids = step.input(0),
                              .frames = step.input(frames_slot()),
                              .weights = ops.temporary(DType::f32, {tokens, alignment_.columns()}),
                              .scores = step.border(kScores)};
    nn::Residual x(ops, ops.temporary(DType::f32, {tokens, c_.dim}));
    MSTAR_TRY(run_layers(step, x, &texts));
    MSTAR_TRY(alignment_.find_frames(ops, texts, step.border(kFirstFrames)));
    MSTAR_TRY(score_texts(ops, x.x(), texts, step.border(kTokenProbs)));
    ops.arena.rewind(mark);
    return ok_status();
  }

  // As many logits at a time as other steps have.
  Status score_texts(OpContext& ops, TensorView x, const TextAlignment::Step& texts, TensorView out) {
    const std::int64_t most = 2 * max_rows_;
    const TensorView all_normed = ops.temporary(ops.activations, {most, c_.dim});
    const TensorView all_logits = ops.temporary(DType::f32, {most, logits_stride()});
    for (std::int64_t begin = 0; begin < x.dim(0); begin += most) {
      const std::int64_t count = std::min(most, x.dim(0) - begin);
      const TensorView normed = all_normed.slice(0, count);
      TensorView logits = all_logits.slice(0, count);
      logits.shape[1] = c_.vocab;
      MSTAR_TRY(norm_.run(ops, x.slice(begin, begin + count), normed));
      MSTAR_TRY(ids_.run_head(ops, embedding_, normed, logits));
      MSTAR_TRY(score_tokens(ops, {.logits = logits,
                                   .first_token = begin,
                                   .ids = texts.ids,
                                   .rows = texts.rows,
                                   .lead = num_start_tokens(c_.tokens),
                                   .num_ids = c_.tokens.eot,
                                   .out = out}));
    }
    return ok_status();
  }

  // ---- on a GPU

  // RowDemand::shape_key of a prompt that begins with the start token: what its step does hangs on the number of
  // tokens.
  static constexpr std::uint64_t kBarePrompt = 1;

  // Which tokens of a step need logits: the last of each row, those that draw first, and a prompt's start token, which
  // is another unless the prompt is that alone.
  struct Picked {
    std::vector<int> drawing, detecting;                // rows
    std::vector<std::pair<int, std::int64_t>> prompts;  // row, and its start token
    std::vector<DeviceDraws::Run> runs;                 // of drawing rows
  };
  Picked pick_rows(const Forward& step) const {
    Picked out;
    for (int r = 0; r < step.num_rows(); ++r) {
      if (detects(refs_, step.row(r))) {
        out.detecting.push_back(r);
        continue;
      }
      if (out.runs.empty() || out.drawing.back() != r - 1)
        out.runs.push_back({.first_row = r, .first_draw = static_cast<int>(out.drawing.size())});
      ++out.runs.back().num_rows;
      out.drawing.push_back(r);
      const std::int64_t begin = step.token_offsets()[static_cast<std::size_t>(r)];
      if (step.demand(r).shape_key == kBarePrompt) {
        out.prompts.emplace_back(r, begin);
      } else if (const Value* const prompt = step.row(r).value(refs_.prompt)) {
        const auto ids = prompt->host.as<std::int32_t>();
        const auto sot = std::find(ids.begin(), ids.end(), c_.tokens.sot);
        out.prompts.emplace_back(r, begin + (sot == ids.end() ? std::ssize(ids) - 1 : sot - ids.begin()));
      }
    }
    return out;
  }

  // Logits of the given tokens of x.
  Result<TensorView> logits_of(OpContext& ops, nn::Residual& x, std::span<const std::int64_t> tokens) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    TensorView logits = ops.temporary(DType::f32, {count, logits_stride()});
    logits.shape[1] = c_.vocab;
    bool whole = count == x.tokens();
    for (std::int64_t i = 0; i < count && whole; ++i) whole = tokens[static_cast<std::size_t>(i)] == i;
    if (whole) {
      MSTAR_TRY(x.norm(ops, norm_));
      MSTAR_TRY(ids_.run_head(ops, embedding_, x.normed(), logits));
      return logits;
    }
    const TensorView chosen = ops.temporary(DType::f32, {count, c_.dim});
    for (std::int64_t i = 0; i < count; ++i)
      ops.device.copy_within(chosen.at(i).pointer, x.x().at(tokens[static_cast<std::size_t>(i)]).pointer,
                             sizeof(float) * static_cast<std::size_t>(c_.dim), ops.stream);
    const TensorView normed = ops.temporary(ops.activations, {count, c_.dim});
    MSTAR_TRY(norm_.run(ops, chosen, normed));
    MSTAR_TRY(ids_.run_head(ops, embedding_, normed, logits));
    return logits;
  }

  Status draw_on_device(Forward& step, nn::Residual& x, TensorView positions) {
    OpContext& ops = step.ops();
    const Picked picked = pick_rows(step);
    const auto last_of = [&](int r) -> std::int64_t {
      return step.token_offsets()[static_cast<std::size_t>(r) + 1] - 1;
    };
    std::vector<std::int64_t> tokens;
    for (const auto* rows : {&picked.drawing, &picked.detecting})
      for (const int r : *rows) tokens.push_back(last_of(r));
    const auto num_last = static_cast<std::int64_t>(tokens.size());
    for (const auto& [r, start] : picked.prompts)
      if (start != last_of(r)) tokens.push_back(start);
    MSTAR_TRY_ASSIGN(const TensorView logits, logits_of(ops, x, tokens));
    const auto num_drawing = static_cast<std::int64_t>(picked.drawing.size());
    for (std::size_t i = 0; i < picked.detecting.size(); ++i) {
      const std::int64_t at = num_drawing + static_cast<std::int64_t>(i);
      MSTAR_TRY(tell_probabilities(step, picked.detecting[i], 3, logits.slice(at, at + 1), c_.tokens.languages));
    }
    if (!picked.prompts.empty()) MSTAR_TRY(tell_no_speech(step, picked, num_last, logits));
    return num_drawing ? draw(step, positions, picked.runs, logits.slice(0, num_drawing)) : ok_status();
  }

  // Before the draws, which mask the logits. Those of start tokens that are not the last come from `next` on.
  Status tell_no_speech(Forward& step, const Picked& picked, std::int64_t next, TensorView logits) {
    const std::int32_t id[1] = {c_.tokens.no_speech};
    for (const auto& [r, start] : picked.prompts) {
      const bool is_last = start == step.token_offsets()[static_cast<std::size_t>(r) + 1] - 1;
      const auto among = std::find(picked.drawing.begin(), picked.drawing.end(), r) - picked.drawing.begin();
      const std::int64_t at = is_last ? among : next++;
      MSTAR_TRY(tell_probabilities(step, r, 2, logits.slice(at, at + 1), id));
    }
    return ok_status();
  }
  Status tell_probabilities(Forward& step, int r, int output, TensorView logits, std::span<const std::int32_t> ids) {
    const auto offsets = step.output_offsets(output);
    const auto row = static_cast<std::size_t>(r);
    const TensorView out = step.output(output).slice(offsets[row], offsets[row + 1]);
    return token_probabilities(
        step.ops(), {.logits = logits, .ids = ids, .among_ids = output == 3, .out = out.reshaped({1, out.dim(0)})});
  }

  Status draw(Forward& step, TensorView positions, std::span<const DeviceDraws::Run> runs, TensorView logits) {
    const int slot = step.plan_slot();
    const auto& self_kv = static_cast<const resource::PagedKvPool&>(step.resource(refs_.self_kv));
    const auto& cross_kv = static_cast<const resource::CrossKvPool&>(step.resource(refs_.cross_kv));
    const auto& sampler = static_cast<const resource::SamplerPool&>(step.resource(refs_.sampler));
    const DeviceDraws::Step of_step{.ids = step.input(0),
                                    .positions = positions,
                                    .begins = step.input(1),
                                    .rows = self_kv.ragged(slot),
                                    .slots = cross_kv.view(0, slot).slots,
                                    .wanted = sampler.parameters(slot)};
    MSTAR_TRY_ASSIGN(const SampleParametersView parameters, draws_->rules(step.ops(), of_step, runs));
    return sample(step.ops(), {.logits = logits,
                               .rows = {},
                               .tokens = step.output(0),
                               .log_probs = step.output(1),
                               .parameters = parameters});
  }

  WhisperRefs refs_;
  const WhisperConfig& c_;
  Part part_;
  nn::Vocabulary ids_;
  int num_threads_ = 1;
  int max_rows_ = 1;
  int max_tokens_ = 1;
  std::vector<Layer> layers_;
  nn::LayerNorm norm_;
  Tensor positions_;
  nn::Linear embedding_;
  HostDraws host_draws_;
  TextAlignment alignment_;
  std::optional<DeviceDraws> draws_;  // on a GPU
  // What captured rows are recorded with.
  Value any_token_ = HostValue::i32(std::vector<std::int32_t>(1));
  Value three_tokens_ = HostValue::i32(std::vector<std::int32_t>(3));
};

}  // namespace

decl::BuildBody build_whisper_decoder(const WhisperRefs& refs) {
  return [refs](engine::BuildContext& context) { return Decoder::build(refs, context); };
}

}  // namespace mstar::models
