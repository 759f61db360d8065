#include "mstar/models/toy/toy_speech.h"

#include <algorithm>

#include "mstar/engine/component_body.h"
#include "mstar/media/pcm.h"
#include "mstar/nn/paged_layer.h"
#include "mstar/ops/embedding/embedding.h"
#include "mstar/ops/rms_norm/rms_norm.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"

namespace mstar::models {
namespace {

using namespace decl;
using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;

constexpr std::string_view kAlphabet =
    ". abcdefghijklmnopqrstuvwxyz,!?-";  // a token is a place in it; 0 ends the speech
constexpr int kVocab = static_cast<int>(kAlphabet.size());
constexpr int kMaxPromptTokens = 64, kMaxNewTokens = 256;
constexpr nn::PagedLayer::Dims kDims = {.dim = 32, .heads = 2, .head_dim = 16, .ffn_dim = 64};
constexpr int kNumLayers = 2;
constexpr std::uint64_t kTalkSeed = 7004, kVoiceSeed = 7002;

constexpr int kSampleRate = 16000, kSamplesPerToken = 80;
constexpr int kContext = 4;  // tokens before one that shape its sound
constexpr int kSoundDim = 16, kSoundHidden = 48;

struct Refs {
  PortRef text, prompt, token, audio;
  ResourceRef kv, sampler;
  WalkRef prefill, decode, speak;
};

// ---- talk: text -> tokens, one by one
// ----------------------------------------------------------------------------------

class Spelling final : public HostStage {
 public:
  Result<HostOutputs> run(const HostInputs& inputs) override {
    std::vector<std::int32_t> ids;
    for (char c : inputs.ports[0].front().text()) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      const std::size_t at = kAlphabet.find(c);
      ids.push_back(at == kAlphabet.npos ? 1 : static_cast<std::int32_t>(at));
    }
    return HostOutputs{.ports = {{HostValue::i32(ids)}}};
  }
};

class Talker final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const Refs& refs, engine::BuildContext& context) {
    auto out = std::make_unique<Talker>(refs, context.pool ? context.pool->num_threads() : 1);
    const nn::SeededWeights weights(context.device, kTalkSeed);
    MSTAR_TRY_ASSIGN(out->table_, weights.tensor("table", {kVocab, kDims.dim}));
    MSTAR_TRY_ASSIGN(out->positions_, weights.tensor("positions", {kMaxPromptTokens + kMaxNewTokens, kDims.dim}));
    for (int i = 0; i < kNumLayers; ++i) {
      MSTAR_TRY_ASSIGN(auto layer, nn::PagedLayer::seeded(weights, "layer." + std::to_string(i), kDims));
      out->layers_.push_back(std::move(layer));
    }
    MSTAR_TRY_ASSIGN(out->norm_, weights.tensor("norm", {kDims.dim}, 0.1f));
    MSTAR_TRY_ASSIGN(out->head_, weights.linear("head", kVocab, kDims.dim));
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }
  Talker(const Refs& refs, int num_threads) : refs_(refs), num_threads_(num_threads) {}

  std::vector<engine::SlotSpec> input_slots() const override { return {{.name = "ids", .dtype = DType::i32}}; }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* const prompt = row.value(refs_.prompt);
    RowDemand demand;
    demand.sources = {{0, prompt ? prompt : row.value(refs_.token)}};
    demand.resources = {.tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1,
                        .samples = true};
    demand.results = {{.slot = 0, .output = 0, .items = 1}};
    return demand;
  }
  std::size_t workspace_bytes(int rows, int tokens) const override {
    const auto floats = static_cast<std::size_t>(tokens * kDims.dim + 2 * rows * kDims.dim + rows * (kVocab + 1));
    return floats * sizeof(float) + 5 * 256 + layers_[0].workspace_bytes(tokens, num_threads_) +
           head_.workspace_bytes(rows, num_threads_) + sample_workspace_bytes(kVocab, num_threads_);
  }
  std::size_t weight_bytes() const override {
    std::size_t bytes = table_.bytes() + positions_.bytes() + norm_.bytes() + head_.bytes();
    for (const auto& layer : layers_) bytes += layer.bytes();
    return bytes;
  }

  Status forward(Forward& step, int) override {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(refs_.kv));
    const int slot = step.plan_slot(), num_rows = step.num_rows();
    const RaggedView rows = kv.ragged(slot);
    const TensorView x = ops.temporary(DType::f32, {rows.num_tokens, kDims.dim});
    const TensorView positions(const_cast<std::int32_t*>(kv.positions(slot)), DType::i32, {rows.num_tokens});
    MSTAR_TRY(embedding(ops, {.ids = step.input(0),
                              .table = table_.view(),
                              .positions = positions,
                              .position_table = positions_.view(),
                              .out = x}));
    for (int i = 0; i < kNumLayers; ++i)
      MSTAR_TRY(layers_[static_cast<std::size_t>(i)].run(ops, x, rows, kv.view(i, slot)));
    const TensorView last = ops.temporary(DType::f32, {num_rows, kDims.dim});
    for (int r = 0; r < num_rows; ++r)
      ops.device.copy_within(last.at(r).pointer,
                             x.at(step.token_offsets()[static_cast<std::size_t>(r) + 1] - 1).pointer,
                             last.at(r).bytes(), ops.stream);
    MSTAR_TRY(rms_norm(ops, {.x = last, .weight = norm_.view(), .weight_offset = 1.0f, .out = last}));
    const TensorView logits = ops.temporary(DType::f32, {num_rows, kVocab});
    MSTAR_TRY(head_.run(ops, last, logits));
    const auto& wanted = static_cast<resource::SamplerPool&>(step.resource(refs_.sampler)).rows(slot);
    std::vector<SampleRow> draws(static_cast<std::size_t>(num_rows));
    for (std::size_t r = 0; r < draws.size(); ++r)
      draws[r] = {.temperature = wanted[r].temperature,
                  .top_k = wanted[r].top_k,
                  .top_p = wanted[r].top_p,
                  .min_p = wanted[r].min_p,
                  .seed = wanted[r].seed,
                  .offset = wanted[r].offset};
    MSTAR_TRY(sample(ops, {.logits = logits,
                           .rows = draws,
                           .tokens = step.output(0),
                           .log_probs = ops.temporary(DType::f32, {num_rows})}));
    ops.arena.rewind(mark);
    return ok_status();
  }

 private:
  Refs refs_;
  int num_threads_;
  Tensor table_, positions_, norm_;
  std::vector<nn::PagedLayer> layers_;
  nn::Linear head_;
};

class TalkPlan final : public Plan {
 public:
  explicit TalkPlan(const Refs& refs) : refs_(refs) {}
  Result<Decision> next(const PlanView& view) override {
    if (!view.finished.valid()) return Decision(NextWalk{.walk = refs_.prefill});
    if (view.finished == refs_.prefill)  // a prompt whose token is the last one has ended the partition
      return Decision(
          NextWalk{.walk = refs_.decode, .caps = {{"decode", static_cast<int>(view.params.sampling.max_tokens) - 1}}});
    return Decision(Done{view.loop_ends.at("decode") == LoopEnd::stop ? Finish::stop : Finish::length});
  }

 private:
  Refs refs_;
};

// ---- voice: windows of tokens -> samples
// -------------------------------------------------------------------------------

// A token's samples follow from it and the kContext tokens before it alone, so how the stream is cut does not matter.
class Codec final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(engine::BuildContext& context) {
    auto out = std::make_unique<Codec>(context.pool ? context.pool->num_threads() : 1);
    const nn::SeededWeights weights(context.device, kVoiceSeed);
    MSTAR_TRY_ASSIGN(out->table_, weights.tensor("table", {kVocab, kSoundDim}));
    MSTAR_TRY_ASSIGN(out->window_, weights.linear("window", kSoundHidden, (kContext + 1) * kSoundDim));
    MSTAR_TRY_ASSIGN(out->wave_, weights.linear("wave", kSamplesPerToken, kSoundHidden));
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }
  explicit Codec(int num_threads) : num_threads_(num_threads) {}

  std::vector<engine::SlotSpec> input_slots() const override { return {{.name = "ids", .dtype = DType::i32}}; }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "wave", .item_dims = {kSamplesPerToken}, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    RowDemand demand;
    for (const Value& token : row.ports[0]) demand.sources.push_back({0, &token});
    // Counted as tokens, so that a step is bounded; the final chunk may hold nothing new.
    demand.resources.tokens = static_cast<int>(row.ports[0].size()) - row.num_seen[0];
    if (demand.resources.tokens > 0) demand.results = {{.slot = 0, .output = 0, .items = demand.resources.tokens}};
    return demand;
  }
  std::size_t workspace_bytes(int rows, int tokens) const override {
    const auto floats = static_cast<std::size_t>((rows * kContext + tokens) * kSoundDim +
                                                 tokens * ((kContext + 1) * kSoundDim + kSoundHidden));
    return floats * sizeof(float) + 3 * 256 +
           std::max(window_.workspace_bytes(tokens, num_threads_), wave_.workspace_bytes(tokens, num_threads_));
  }
  std::size_t weight_bytes() const override { return table_.bytes() + window_.bytes() + wave_.bytes(); }

  Status forward(Forward& step, int) override {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    const std::int64_t num_tokens = step.token_offsets().back();
    if (num_tokens == 0) return ok_status();
    const TensorView ids = step.input(0);
    const TensorView sounds = ops.temporary(DType::f32, {ids.dim(0), kSoundDim});
    MSTAR_TRY(embedding(ops, {.ids = ids, .table = table_.view(), .out = sounds}));
    const TensorView windows = ops.temporary(DType::f32, {num_tokens, (kContext + 1) * kSoundDim});
    ops.device.fill_zero(windows.pointer, windows.bytes(), ops.stream);  // before the first token is silence
    for (int r = 0; r < step.num_rows(); ++r) {
      const std::int64_t begin = step.input_offsets(0)[static_cast<std::size_t>(r)];
      const std::int64_t first = step.token_offsets()[static_cast<std::size_t>(r)];
      const std::int64_t last = step.token_offsets()[static_cast<std::size_t>(r) + 1];
      for (std::int64_t t = first; t < last; ++t) {
        const std::int64_t at = begin + step.row(r).num_seen[0] + (t - first);
        const std::int64_t from = std::max(begin, at - kContext);
        ops.device.copy_within(windows.at(t).data<float>() + (kContext - (at - from)) * kSoundDim,
                               sounds.at(from).pointer, sounds.slice(from, at + 1).bytes(), ops.stream);
      }
    }
    const TensorView hidden = ops.temporary(DType::f32, {num_tokens, kSoundHidden});
    MSTAR_TRY(window_.run(ops, windows, hidden, Activation::gelu_tanh));
    MSTAR_TRY(wave_.run(ops, hidden, step.output(0)));
    ops.arena.rewind(mark);
    return ok_status();
  }

 private:
  int num_threads_;
  Tensor table_;
  nn::Linear window_, wave_;
};

class Silent final : public Plan {
 public:
  Result<Decision> next(const PlanView&) override { return Decision(Done{}); }
};

// ---- surfaces
// ----------------------------------------------------------------------------------------------------------

Error bad_field(const char* field, std::string message) {
  return invalid_request(std::move(message)).with_field(field);
}

Result<SamplingParams> read_sampling(const Params& fields) {
  SamplingParams out;
  MSTAR_TRY_ASSIGN(out.max_tokens, fields.get_int("max_tokens", 64));
  if (out.max_tokens < 1 || out.max_tokens > kMaxNewTokens)
    return bad_field("max_tokens", "'max_tokens' must be between 1 and " + std::to_string(kMaxNewTokens));
  MSTAR_TRY_ASSIGN(out.ignore_eos, fields.get_bool("ignore_eos", false));
  MSTAR_TRY_ASSIGN(out.temperature, fields.get_number("temperature", 0.0));
  if (!(out.temperature >= 0 && out.temperature <= 2))
    return bad_field("temperature", "'temperature' must be between 0 and 2");
  MSTAR_TRY_ASSIGN(const std::int64_t top_k, fields.get_int("top_k", 0));
  out.top_k = static_cast<int>(std::clamp<std::int64_t>(top_k, 0, kVocab));
  MSTAR_TRY_ASSIGN(out.top_p, fields.get_number("top_p", 1.0));
  if (!(out.top_p > 0 && out.top_p <= 1)) return bad_field("top_p", "'top_p' must be above 0 and at most 1");
  MSTAR_TRY_ASSIGN(const std::int64_t seed, fields.get_int("seed", 0));
  out.seed = static_cast<std::uint64_t>(seed);
  MSTAR_TRY_ASSIGN(const std::string stop, fields.get_string("stop", ""));
  for (const char c : stop) {
    if (kAlphabet.find(c) == kAlphabet.npos)
      return bad_field("stop", "'stop' may hold letters of this model's alphabet only");
    out.stop_ids.push_back(static_cast<std::int32_t>(kAlphabet.find(c)));
  }
  return out;
}

Result<Intake> intake(const Refs& refs, const ApiRequest& request) {
  const char* const field = request.route == Route::audio_speech ? "input" : "text";
  if (request.text.empty()) return bad_field(field, std::string("'") + field + "' is empty; say something");
  if (request.text.size() > kMaxPromptTokens)
    return bad_field(field,
                     std::string("'") + field + "' is longer than " + std::to_string(kMaxPromptTokens) + " letters");
  Intake out;
  out.inputs[refs.text] = {HostValue::utf8(request.text)};
  out.params.fields = request.fields;
  MSTAR_TRY_ASSIGN(out.params.sampling, read_sampling(request.fields));
  out.params.output_modalities =
      request.route == Route::audio_speech ? std::vector{Modality::audio} : request.output_modalities;
  out.num_prompt_tokens = static_cast<std::int64_t>(request.text.size());
  return out;
}

Result<Chunk> emit(const Refs& refs, PortRef port, const HostValue& value) {
  if (port == refs.token) {
    const auto id = static_cast<std::size_t>(value.as<std::int32_t>()[0]);
    return Chunk{Modality::text, "utf8", HostValue::utf8(kAlphabet.substr(id, 1))};
  }
  Chunk out{Modality::audio, "pcm16", HostValue::blob(encode_pcm16(value.as<float>()))};
  out.metadata.set("sample_rate", std::int64_t{kSampleRate});
  out.metadata.set("num_channels", std::int64_t{1});
  return out;
}

}  // namespace

Result<Decl> declare_toy_speech(const ModelSource& source) {
  Decl d(source.name);
  Refs r;
  r.kv = d.resource(PagedKv{.name = "talk.kv",
                            .layers = kNumLayers,
                            .kv_heads = kDims.heads,
                            .head_dim = kDims.head_dim,
                            .max_tokens_per_request = kMaxPromptTokens + kMaxNewTokens});
  r.sampler = d.resource(Sampler{.name = "talk.sampler", .vocab = kVocab});
  r.text = d.port({.name = "text", .dtype = DType::utf8, .travel = {FromRequest{}}});
  r.prompt = d.port({.name = "prompt", .dtype = DType::i32, .axes = {{"tokens"}}});
  r.token = d.port({.name = "token",
                    .dtype = DType::i32,
                    .axes = {{"one", 1}},
                    .travel = {Keep{}, ToClient{Modality::text, "utf8"},
                               decl::Stream{"voice", LeftContext{.items = 8, .context = kContext, .ramp = {2, 4}}}},
                    .counts_token = true});
  r.audio = d.port({.name = "audio",
                    .axes = {{"tokens"}, {"samples", kSamplesPerToken}},
                    .travel = {ToClient{Modality::audio, "pcm16"}}});

  const auto spelling = d.component(
      HostComponent{.name = "spelling", .make = [](const RequestParams&) { return std::make_unique<Spelling>(); }});
  const auto talker = d.component(DeviceComponent{.name = "talker",
                                                  .build = [r](engine::BuildContext& c) { return Talker::build(r, c); },
                                                  .uses = {r.kv, r.sampler},
                                                  .max_batch_rows = 16,
                                                  .max_batch_tokens = 256});
  const auto codec = d.component(
      DeviceComponent{.name = "codec", .build = Codec::build, .max_batch_rows = 16, .max_batch_tokens = 128});

  r.prefill = d.walk("prefill", Sequential{{Run{spelling, {r.text}, {r.prompt}}, Run{talker, {r.prompt}, {r.token}}}});
  r.decode = d.walk("decode", Loop{.name = "decode",
                                   .body = {Run{talker, {r.token}, {r.token}}},
                                   .stop = TokenStop{.token = r.token, .ids = {0}, .prefill_walks = {"prefill"}},
                                   .at_most = kMaxNewTokens});
  r.speak = d.walk("speak", Run{codec, {r.token}, {r.audio}});
  d.partition({.name = "talk", .walks = {r.prefill, r.decode}, .plan = [r](const RequestParams&) {
                 return std::make_unique<TalkPlan>(r);
               }});
  d.partition({.name = "voice", .walks = {r.speak}, .plan = [r](const RequestParams& p) -> std::unique_ptr<Plan> {
                 if (!p.wants(Modality::audio)) return std::make_unique<Silent>();
                 return each_chunk(r.speak)(p);
               }});
  for (const Route route : {Route::generate, Route::audio_speech})
    d.surface(
        {.route = route,
         .intake = [r](const ApiRequest& request) { return intake(r, request); },
         .emit = [r](PortRef port, const HostValue& value, const RequestParams&) { return emit(r, port, value); }});
  return d;
}

}  // namespace mstar::models
