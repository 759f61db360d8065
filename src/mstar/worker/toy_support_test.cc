#include "mstar/worker/toy_support_test.h"

#include <stdexcept>
#include <thread>
#include <unordered_map>

#include "mstar/engine/component_body.h"
#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"
#include "mstar/resource/state_slots.h"

namespace mstar::toy {
namespace {

using namespace decl;
using engine::Forward;
using engine::RowInputs;

std::uint32_t mix(std::uint32_t state, std::uint32_t value, std::uint32_t salt) {
  return state * 31u + value * 2654435761u + salt;
}
std::int32_t token_of(std::uint32_t state) { return static_cast<std::int32_t>((state >> 11) % kVocab); }
std::int32_t encoded(std::int32_t id) { return id * 3 + 1; }

bool fails_here(const RequestParams& params, const std::string& place, std::int64_t at = 0) {
  return params.fields.get_string("fail", "").value_or("") == place &&
         params.fields.get_int("fail_at", 0).value_or(0) == at;
}
Error told(const std::string& place) { return internal_error("told to fail: " + place); }

// ---- host components
// ---------------------------------------------------------------------------------------------------

class Tokenise final : public HostStage {
 public:
  bool is_brief(const HostInputs& inputs) const override { return fails_here(*inputs.params, "brief"); }
  Result<HostOutputs> run(const HostInputs& inputs) override {
    const RequestParams& params = *inputs.params;
    if (fails_here(params, "tokenise")) return told("tokenise");
    if (fails_here(params, "tokenise_throw")) throw std::runtime_error("told to throw");
    while (fails_here(params, "tokenise_for_ever")) {
      if (inputs.is_abandoned()) return cancelled("told to give up");
      std::this_thread::yield();
    }
    if (fails_here(params, "wrong_outputs")) return HostOutputs{};
    const std::string_view text = inputs.ports[0][0].text();
    if (text.empty()) return std::move(invalid_request("the text is empty")).with_field("text");
    if (fails_here(params, "bad_value")) return HostOutputs{.ports = {{HostValue::f32(std::vector<float>{1.5f})}}};
    const std::vector<std::int32_t> ids(text.begin(), text.end());
    return HostOutputs{.ports = {{HostValue::i32(ids)}}};
  }
};

std::string piece_of(std::int32_t token) { return "<" + std::to_string(token) + ">"; }

class Detokenise final : public HostStage {
 public:
  Result<HostOutputs> run(const HostInputs& inputs) override {
    if (fails_here(*inputs.params, "detokenise")) return told("detokenise");
    std::string text;
    for (const HostValue& value : inputs.ports[0])
      for (const std::int32_t token : value.as<std::int32_t>()) text += piece_of(token);
    ++num_runs_;
    if (text.empty()) return HostOutputs{.ports = {{}}};
    return HostOutputs{.ports = {{HostValue::utf8(text)}}};
  }

 private:
  int num_runs_ = 0;  // unguarded on purpose: two runs at once are a race that a sanitizer sees
};

class Join final : public HostStage {
 public:
  Result<HostOutputs> run(const HostInputs& inputs) override {
    const std::int32_t left = inputs.ports[0][0].as<std::int32_t>()[0],
                       right = inputs.ports[1][0].as<std::int32_t>()[0];
    return HostOutputs{.ports = {{HostValue::utf8(std::to_string(left) + "|" + std::to_string(right))}}};
  }
};

// ---- device components
// -------------------------------------------------------------------------------------------------

// What a kernel launch is: at once on the CPU, when somebody waits on the deferred device.
template <class Kernel>
void launch(Forward& step, Kernel kernel) {
  if (auto* deferred = dynamic_cast<engine::DeferredDevice*>(&step.ops().device)) {
    deferred->launch(std::move(kernel));
  } else {
    kernel();
  }
}

std::vector<std::int32_t> copied(std::span<const std::int32_t> from) { return {from.begin(), from.end()}; }

class Encoder final : public engine::ComponentBody {
 public:
  explicit Encoder(PortRef ids) : ids_(ids) {}
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "ids", .dtype = DType::i32, .max_items = 256}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "states", .dtype = DType::i32, .max_items = 256}};
  }
  Result<engine::RowDemand> declare(const RowInputs& row) override {
    const Value* ids = row.value(ids_);
    engine::RowDemand demand;
    demand.sources = {{0, ids}};
    demand.results = {
        {.slot = 0, .output = 0, .items = static_cast<int>(ids->host.size_bytes() / sizeof(std::int32_t))}};
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override { return 0; }
  int num_slices() const override { return kEncoderSlices; }
  Status forward(Forward& step, int slice) override {
    launch(step, [ids = step.input(0), states = step.output(0), slice] {
      for (std::int64_t i = 0; i < ids.dim(0); ++i) {
        std::int32_t& state = states.data<std::int32_t>()[i];
        if (slice == 0) state = ids.data<std::int32_t>()[i];
        if (slice == 1) state *= 3;
        if (slice == 2) state += 1;
      }
    });
    return ok_status();
  }

 private:
  PortRef ids_;
};

// One step of the decoder. The token is right only when the state, the keys and the draws of the row all are: a row
// that was dropped must have left no trace in any of them.
struct DecoderKernel {
  TensorView in, out, state;
  std::vector<std::int32_t> offsets, num_prompt_tokens;
  std::vector<std::uint64_t> draws;  // before this one
  const std::int32_t *read, *write, *positions;
  PagedKvView kv;
  std::uint32_t salt;

  float& key(std::size_t row, std::int32_t position) const {
    const std::int32_t page = kv.page_table[static_cast<std::int32_t>(row) * kv.max_pages + position / kv.page_tokens];
    return *kv.keys.at(page).at(position % kv.page_tokens).data<float>();
  }
  void operator()() const {
    for (std::size_t r = 0; r + 1 < offsets.size(); ++r) {
      auto rolled = static_cast<std::uint32_t>(*state.at(read[r]).data<std::int32_t>());
      for (std::int32_t i = offsets[r]; i < offsets[r + 1]; ++i) {
        const std::int32_t id = in.data<std::int32_t>()[i];
        rolled = mix(rolled, static_cast<std::uint32_t>(id), salt);
        key(r, positions[i]) = static_cast<float>(id);
      }
      *state.at(write[r]).data<std::int32_t>() = static_cast<std::int32_t>(rolled);
      std::uint32_t from_keys = 0;
      for (std::int32_t p = 0; p < kv.lengths[r]; ++p)
        from_keys = mix(from_keys, static_cast<std::uint32_t>(static_cast<std::int32_t>(key(r, p))), salt);
      const bool right =
          from_keys == rolled && static_cast<std::int64_t>(draws[r]) == kv.lengths[r] - num_prompt_tokens[r];
      out.data<std::int32_t>()[r] = right ? token_of(rolled) : -1;
    }
  }
};

class Decoder final : public engine::ComponentBody {
 public:
  Decoder(PortRef states, PortRef token, ResourceRef kv, ResourceRef roll, ResourceRef sampler, std::uint32_t salt)
      : states_(states), token_(token), kv_(kv), roll_(roll), sampler_(sampler), salt_(salt) {}
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "in", .dtype = DType::i32, .max_items = 256}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .max_items = 16, .to_host = true}};
  }
  Result<engine::RowDemand> declare(const RowInputs& row) override {
    const Value* in = row.value(states_) ? row.value(states_) : row.value(token_);
    if (fails_here(*row.params, "declare", row.iteration)) return told("declare");
    if (fails_here(*row.params, "declare_throw", row.iteration)) throw std::runtime_error("told to throw");
    engine::RowDemand demand;
    demand.sources = {{0, in}};
    demand.results = {{.slot = 0, .output = 0, .items = 1}};
    std::int64_t tokens = 1;
    if (in)
      for (const auto d : in->device ? in->device->dims() : in->host.dims()) tokens *= d;
    demand.resources.tokens = static_cast<int>(tokens);
    demand.resources.samples = true;
    if (row.value(states_)) num_prompt_tokens_[row.request] = static_cast<std::int32_t>(tokens);
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override { return 0; }
  void forget(RequestId request) override { num_prompt_tokens_.erase(request); }
  Status forward(Forward& step, int) override {
    for (int r = 0; r < step.num_rows(); ++r) {
      if (fails_here(*step.row(r).params, "forward", step.row(r).iteration)) return told("forward");
      if (fails_here(*step.row(r).params, "forward_of_" + std::to_string(salt_), step.row(r).iteration))
        return told("forward");
      if (fails_here(*step.row(r).params, "forward_throw", step.row(r).iteration))
        throw std::runtime_error("told to throw");
    }
    const int slot = step.plan_slot();
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(kv_));
    auto& roll = static_cast<resource::StateSlots&>(step.resource(roll_));
    DecoderKernel kernel{.in = step.input(0),
                         .out = step.output(0),
                         .state = roll.tensor(0),
                         .offsets = copied(step.input_offsets(0)),
                         .num_prompt_tokens = {},
                         .draws = {},
                         .read = roll.read_index(slot),
                         .write = roll.write_index(slot),
                         .positions = kv.positions(slot),
                         .kv = kv.view(0, slot),
                         .salt = salt_};
    for (int r = 0; r < step.num_rows(); ++r) {
      if (fails_here(*step.row(r).params, "fail_row", step.row(r).iteration)) step.fail_row(r, told("fail_row"));
      const RowInputs& row = step.row(r);
      const auto known = num_prompt_tokens_.find(row.request);  // not where the prompt ran on another worker
      const auto said = row.params ? row.params->fields.get_int("prompt_tokens", 0).value_or(0) : 0;
      kernel.num_prompt_tokens.push_back(known != num_prompt_tokens_.end() ? known->second
                                                                           : static_cast<std::int32_t>(said));
    }
    for (const auto& row : static_cast<resource::SamplerPool&>(step.resource(sampler_)).rows(slot))
      kernel.draws.push_back(row.offset);
    launch(step, std::move(kernel));
    return ok_status();
  }

 private:
  PortRef states_, token_;
  ResourceRef kv_, roll_, sampler_;
  std::uint32_t salt_;
  std::unordered_map<RequestId, std::int32_t> num_prompt_tokens_;
};

class Scale final : public engine::ComponentBody {
 public:
  explicit Scale(PortRef ids) : ids_(ids) {}
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "ids", .dtype = DType::i32, .max_items = 256}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "sum", .dtype = DType::i32, .max_items = 16}};
  }
  Result<engine::RowDemand> declare(const RowInputs& row) override {
    const bool second = row.run->labels.front() == "b";
    if (second && fails_here(*row.params, "label_b")) return told("label_b");
    engine::RowDemand demand;
    demand.sources = {{0, row.value(ids_)}};
    demand.results = {{.slot = 0, .output = 0, .items = 1}};
    demand.resources.tokens = 1;
    demand.resources.label = second ? 1 : 0;
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override { return 0; }
  Status forward(Forward& step, int) override {
    std::vector<std::int32_t> factors;
    for (int r = 0; r < step.num_rows(); ++r) factors.push_back(step.row(r).run->labels.front() == "b" ? 3 : 2);
    launch(step, [in = step.input(0), out = step.output(0), offsets = copied(step.input_offsets(0)), factors] {
      for (std::size_t r = 0; r < factors.size(); ++r) {
        std::int32_t sum = 0;
        for (std::int32_t i = offsets[r]; i < offsets[r + 1]; ++i) sum += in.data<std::int32_t>()[i];
        out.data<std::int32_t>()[r] = sum * factors[r];
      }
    });
    return ok_status();
  }

 private:
  PortRef ids_;
};

template <class Body, class... Args>
BuildBody build(Args... args) {
  return [args...](engine::BuildContext&) {
    return Result<std::unique_ptr<engine::ComponentBody>>(std::make_unique<Body>(args...));
  };
}

// ---- plans and surfaces
// ------------------------------------------------------------------------------------------------

class SpeakPlan final : public Plan {
 public:
  SpeakPlan(WalkRef hear, WalkRef say) : hear_(hear), say_(say) {}
  Result<Decision> next(const PlanView& view) override {
    if (!view.finished.valid()) return Decision(NextWalk{.walk = hear_});
    if (fails_here(view.params, "plan")) return told("plan");
    if (fails_here(view.params, "plan_throw")) throw std::runtime_error("told to throw");
    if (view.finished == say_)
      return Decision(Done{view.loop_ends.at("say") == LoopEnd::stop ? Finish::stop : Finish::length});
    NextWalk next{.walk = say_};
    const std::int64_t budget = view.params.sampling.max_tokens < 0 ? kMaxNewTokens : view.params.sampling.max_tokens;
    next.caps = {{"say", static_cast<int>(budget - view.num_tokens)}};
    return Decision(next);
  }

 private:
  WalkRef hear_, say_;
};

Surface generate(PortRef prompt) {
  Surface surface{.route = Route::generate};
  surface.intake = [prompt](const ApiRequest& api) -> Result<Intake> {
    Intake out;
    out.params.fields = api.fields;
    if (fails_here(out.params, "intake")) return std::move(invalid_request("told to fail: intake")).with_field("fail");
    if (fails_here(out.params, "intake_throw")) throw std::runtime_error("told to throw");
    out.inputs[prompt] = {HostValue::blob(api.text)};
    out.num_prompt_tokens = static_cast<std::int64_t>(api.text.size());
    out.params.fields.set("prompt_tokens", out.num_prompt_tokens);
    MSTAR_TRY_ASSIGN(out.params.sampling.max_tokens, out.params.fields.get_int("max_tokens", -1));
    MSTAR_TRY_ASSIGN(out.params.sampling.ignore_eos, out.params.fields.get_bool("ignore_eos", false));
    return out;
  };
  surface.emit = [](PortRef, const HostValue& value, const RequestParams& params) -> Result<Chunk> {
    if (fails_here(params, "emit")) return told("emit");
    return Chunk{.modality = Modality::text, .format = "utf8", .value = value};
  };
  return surface;
}

std::unique_ptr<HostStage> make_tokenise(const RequestParams&) { return std::make_unique<Tokenise>(); }
std::unique_ptr<HostStage> make_detokenise(const RequestParams&) { return std::make_unique<Detokenise>(); }
std::unique_ptr<HostStage> make_join(const RequestParams&) { return std::make_unique<Join>(); }

}  // namespace

Decl language_model(std::string name, std::uint32_t salt, bool walks_apart, bool tensor_parallel) {
  Decl d(std::move(name));
  const PortRef prompt = d.port({.name = "prompt", .dtype = DType::bytes, .travel = {FromRequest{}}});
  const PortRef ids = d.port({.name = "ids", .dtype = DType::i32});
  const PortRef states = d.port({.name = "states", .dtype = DType::i32});
  const PortRef token =
      d.port({.name = "token", .dtype = DType::i32, .travel = {Keep{}, decl::Stream{"text"}}, .counts_token = true});
  const PortRef piece = d.port({.name = "piece", .dtype = DType::utf8, .travel = {ToClient{}}});
  const ResourceRef kv = d.resource(PagedKv{.name = "kv",
                                            .layers = 1,
                                            .kv_heads = 1,
                                            .head_dim = 4,
                                            .page_tokens = 4,
                                            .max_tokens_per_request = kMaxContext});
  const ResourceRef roll =
      d.resource(RecurrentState{.name = "roll", .tensors = {{"roll", {1}, DType::i32}}, .double_buffered = true});
  const ResourceRef sampler = d.resource(Sampler{.name = "sampler", .vocab = kVocab});
  const auto tokenise = d.component(HostComponent{"tokenise", make_tokenise});
  const auto encoder =
      d.component(DeviceComponent{.name = "encoder", .build = build<Encoder>(ids), .max_batch_rows = 2});
  const std::vector<CombinedWalks> apart = {{"prompts", {WalkRef(0)}}, {"answers", {WalkRef(1)}}};  // hear, say
  const auto decoder = d.component(DeviceComponent{.name = "decoder",
                                                   .build = build<Decoder>(states, token, kv, roll, sampler, salt),
                                                   .uses = {kv, roll, sampler},
                                                   .max_batch_rows = 8,
                                                   .max_batch_tokens = 256,
                                                   .combined = walks_apart ? apart : std::vector<CombinedWalks>(),
                                                   .tensor_parallel = tensor_parallel});
  const auto detokenise = d.component(HostComponent{"detokenise", make_detokenise});
  const WalkRef hear = d.walk("hear", Sequential{{Run{tokenise, {prompt}, {ids}}, Run{encoder, {ids}, {states}},
                                                  Run{decoder, {states}, {token}}}});
  const WalkRef say = d.walk("say", Loop{.name = "say",
                                         .body = {Run{decoder, {token}, {token}}},
                                         .stop = TokenStop{.token = token, .ids = {kStopId}, .prefill_walks = {"hear"}},
                                         .at_most = kMaxNewTokens});
  const WalkRef write = d.walk("write", Run{detokenise, {token}, {piece}});
  d.partition({.name = "speech", .walks = {hear, say}, .plan = [hear, say](const RequestParams&) {
                 return std::make_unique<SpeakPlan>(hear, say);
               }});
  d.partition({.name = "text", .walks = {write}, .plan = each_chunk(write)});
  d.surface(generate(prompt));
  return d;
}

std::vector<std::int32_t> expected_tokens(const std::string& text, std::int64_t max_tokens, bool ignore_eos,
                                          std::uint32_t salt) {
  const std::int64_t budget = max_tokens < 0 ? kMaxNewTokens : max_tokens;
  std::uint32_t state = 0;
  for (const char c : text) state = mix(state, static_cast<std::uint32_t>(encoded(static_cast<std::int32_t>(c))), salt);
  std::vector<std::int32_t> tokens = {token_of(state)};
  while (static_cast<std::int64_t>(tokens.size()) < budget && (ignore_eos || tokens.back() != kStopId)) {
    state = mix(state, static_cast<std::uint32_t>(tokens.back()), salt);
    tokens.push_back(token_of(state));
  }
  return tokens;
}

std::string expected_text(const std::string& text, std::int64_t max_tokens, bool ignore_eos, std::uint32_t salt) {
  std::string out;
  for (const std::int32_t token : expected_tokens(text, max_tokens, ignore_eos, salt)) out += piece_of(token);
  return out;
}

Decl two_branches(std::string name) {
  Decl d(std::move(name));
  const PortRef prompt = d.port({.name = "prompt", .dtype = DType::bytes, .travel = {FromRequest{}}});
  const PortRef ids = d.port({.name = "ids", .dtype = DType::i32});
  const PortRef left = d.port({.name = "left", .dtype = DType::i32});
  const PortRef right = d.port({.name = "right", .dtype = DType::i32});
  const PortRef piece = d.port({.name = "piece", .dtype = DType::utf8, .travel = {ToClient{}}});
  const ResourceRef kv = d.resource(PagedKv{.name = "kv",
                                            .layers = 1,
                                            .kv_heads = 1,
                                            .head_dim = 4,
                                            .page_tokens = 4,
                                            .max_tokens_per_request = 8,
                                            .labels = {"a", "b"}});
  const auto tokenise = d.component(HostComponent{"tokenise", make_tokenise});
  const auto scale =
      d.component(DeviceComponent{.name = "scale", .build = build<Scale>(ids), .uses = {kv}, .max_batch_rows = 8});
  const auto join = d.component(HostComponent{.name = "join", .make = make_join, .is_light = true});
  const WalkRef all = d.walk(
      "all", Sequential{{Run{tokenise, {prompt}, {ids}},
                         Parallel{{Run{.component = scale, .inputs = {ids}, .outputs = {left}, .labels = {"a"}},
                                   Run{.component = scale, .inputs = {ids}, .outputs = {right}, .labels = {"b"}}}},
                         Run{join, {left, right}, {piece}}}});
  d.partition({.walks = {all}, .plan = in_order({all})});
  d.surface(generate(prompt));
  return d;
}

std::string expected_branches(const std::string& text) {
  std::int32_t sum = 0;
  for (const char c : text) sum += c;
  return std::to_string(sum * 2) + "|" + std::to_string(sum * 3);
}

ApiRequest request(std::string model, std::string text, std::int64_t max_tokens, bool ignore_eos) {
  ApiRequest out{.model = std::move(model), .text = std::move(text)};
  out.fields.set("max_tokens", max_tokens);
  out.fields.set("ignore_eos", ignore_eos);
  return out;
}

ApiRequest failing_request(std::string model, std::string text, std::string place, std::int64_t at) {
  ApiRequest out = request(std::move(model), std::move(text), 16, true);
  out.fields.set("fail", std::move(place));
  out.fields.set("fail_at", at);
  return out;
}

}  // namespace mstar::toy
