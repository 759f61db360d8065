#include "mstar/worker/toy_support_test.h"

#include <stdexcept>

#include "mstar/engine/component_body.h"
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
  Result<HostOutputs> run(const HostInputs& inputs) override {
    const RequestParams& params = *inputs.params;
    if (fails_here(params, "tokenise")) return told("tokenise");
    if (fails_here(params, "tokenise_throw")) throw std::runtime_error("told to throw");
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
    const TensorView ids = step.input(0);
    const TensorView states = step.output(0);
    for (std::int64_t i = 0; i < ids.dim(0); ++i) {
      std::int32_t& state = states.data<std::int32_t>()[i];
      if (slice == 0) state = ids.data<std::int32_t>()[i];
      if (slice == 1) state *= 3;
      if (slice == 2) state += 1;
    }
    return ok_status();
  }

 private:
  PortRef ids_;
};

class Decoder final : public engine::ComponentBody {
 public:
  Decoder(PortRef states, PortRef token, ResourceRef roll, std::uint32_t salt)
      : states_(states), token_(token), roll_(roll), salt_(salt) {}
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
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override { return 0; }
  Status forward(Forward& step, int) override {
    for (int r = 0; r < step.num_rows(); ++r) {
      if (fails_here(*step.row(r).params, "forward", step.row(r).iteration)) return told("forward");
      if (fails_here(*step.row(r).params, "forward_throw", step.row(r).iteration))
        throw std::runtime_error("told to throw");
    }
    auto& slots = static_cast<resource::StateSlots&>(step.resource(roll_));
    const auto index = slots.slot_index_on_host(step.plan_slot());
    const auto offsets = step.input_offsets(0);
    for (int r = 0; r < step.num_rows(); ++r) {
      if (fails_here(*step.row(r).params, "fail_row", step.row(r).iteration)) step.fail_row(r, told("fail_row"));
      auto& state = *slots.tensor(0).at(index[r]).data<std::int32_t>();
      auto rolled = static_cast<std::uint32_t>(state);
      for (std::int32_t i = offsets[r]; i < offsets[r + 1]; ++i)
        rolled = mix(rolled, static_cast<std::uint32_t>(step.input(0).data<std::int32_t>()[i]), salt_);
      state = static_cast<std::int32_t>(rolled);
      step.output(0).data<std::int32_t>()[r] = token_of(rolled);
    }
    return ok_status();
  }

 private:
  PortRef states_, token_;
  ResourceRef roll_;
  std::uint32_t salt_;
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
    const auto offsets = step.input_offsets(0);
    for (int r = 0; r < step.num_rows(); ++r) {
      std::int32_t sum = 0;
      for (std::int32_t i = offsets[r]; i < offsets[r + 1]; ++i) sum += step.input(0).data<std::int32_t>()[i];
      step.output(0).data<std::int32_t>()[r] = sum * (step.row(r).run->labels.front() == "b" ? 3 : 2);
    }
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

Decl language_model(std::string name, std::uint32_t salt) {
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
  const ResourceRef roll = d.resource(RecurrentState{.name = "roll", .tensors = {{"roll", {1}, DType::i32}}});
  const auto tokenise = d.component(HostComponent{"tokenise", make_tokenise});
  const auto encoder =
      d.component(DeviceComponent{.name = "encoder", .build = build<Encoder>(ids), .max_batch_rows = 2});
  const auto decoder = d.component(DeviceComponent{.name = "decoder",
                                                   .build = build<Decoder>(states, token, roll, salt),
                                                   .uses = {kv, roll},
                                                   .max_batch_rows = 8,
                                                   .max_batch_tokens = 256});
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
  const auto join = d.component(HostComponent{"join", make_join});
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
