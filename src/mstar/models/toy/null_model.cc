#include "mstar/models/toy/null_model.h"

#include <chrono>
#include <cmath>
#include <thread>

#include "mstar/engine/component_body.h"
#include "mstar/models/text_surface.h"
#include "mstar/models/toy/timed_body.h"

namespace mstar::models {
namespace {

using namespace decl;
using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;
using Clock = std::chrono::steady_clock;

constexpr int kVocab = 1 << 24;    // of prompts; answers use few of them
constexpr int kContext = 1 << 20;  // tokens of a prompt and its answer
constexpr int kMaxRows = 1024;
constexpr std::int64_t kMaxStepUs = 10'000'000;

struct Refs {
  PortRef prompt, token;
  WalkRef prefill, decode;
};

class NullBody final : public engine::ComponentBody {
 public:
  explicit NullBody(std::int64_t step_us) : step_(step_us) {}

  std::vector<engine::SlotSpec> input_slots() const override { return {}; }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs&) override {
    RowDemand demand;
    demand.resources.tokens = 1;  // of a prompt only the last one is looked at
    demand.results = {{.slot = 0, .output = 0, .items = 1}};
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override { return 0; }

  Status forward(Forward& step, int) override {
    auto* const tokens = step.output(0).data<std::int32_t>();
    for (int r = 0; r < step.num_rows(); ++r) {
      const RowInputs& row = step.row(r);
      const auto ids = row.ports[0].front().host.as<std::int32_t>();  // the prompt, or the last token
      tokens[r] = next_null_token(ids.back(), row.params->sampling.seed);
    }
    pace();
    return ok_status();
  }

 private:
  void pace() {
    if (step_.count() == 0) return;
    std::this_thread::sleep_until(last_end_ + step_);
    last_end_ = Clock::now();
  }

  std::chrono::microseconds step_;
  Clock::time_point last_end_ = Clock::now();
};

class NullPlan final : public Plan {
 public:
  explicit NullPlan(const Refs& refs) : refs_(refs) {}
  Result<Decision> next(const PlanView& view) override {
    if (!view.finished.valid()) return Decision(NextWalk{.walk = refs_.prefill});
    const auto more = static_cast<int>(view.params.sampling.max_tokens) - 1;
    if (view.finished == refs_.prefill && more > 0)
      return Decision(NextWalk{.walk = refs_.decode, .caps = {{"decode", more}}});
    return Decision(Done{Finish::length});
  }

 private:
  Refs refs_;
};

Result<std::vector<std::int32_t>> prompt_ids(const ApiRequest& request) {
  std::vector<std::int32_t> out;
  const auto given = request.fields.values().find("prompt_ids");
  if (given == request.fields.values().end()) {
    const std::string& text = request.route == Route::chat_completions ? request.messages_json : request.text;
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  const auto* const numbers = std::get_if<std::vector<double>>(&given->second);
  if (!numbers) return invalid_request("'prompt_ids' must be a list of token ids").with_field("prompt_ids");
  for (const double id : *numbers) {
    if (!(id >= 0 && id < kVocab) || id != std::floor(id))
      return invalid_request("'prompt_ids' holds what is no token id").with_field("prompt_ids");
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

Result<Intake> intake(const Refs& refs, const ApiRequest& request, int context) {
  const char* const field = request.route == Route::chat_completions ? "messages"
                            : request.route == Route::completions    ? "prompt"
                                                                     : "text";
  Intake out;
  MSTAR_TRY_ASSIGN(out.params.sampling, read_sampling(request.fields, kVocab));
  MSTAR_TRY_ASSIGN(const std::vector<std::int32_t> ids, prompt_ids(request));
  if (ids.empty()) return invalid_request(std::string("'") + field + "' is empty; say something").with_field(field);
  auto& max_tokens = out.params.sampling.max_tokens;
  if (max_tokens < 0) max_tokens = 16;
  if (static_cast<std::int64_t>(ids.size()) + max_tokens > context)
    return std::move(std::move(invalid_request("the prompt has " + std::to_string(ids.size()) +
                                               " tokens and max_tokens is " + std::to_string(max_tokens) +
                                               "; both must fit into " + std::to_string(context)))
                         .with_field(field))
        .with_reason(kContextExceeded);
  MSTAR_TRY_ASSIGN(const std::int64_t seed, request.fields.get_int("seed", 0));  // the same answer without one, too
  out.params.sampling.seed = static_cast<std::uint64_t>(seed);
  out.params.fields = request.fields;
  out.params.output_modalities = {Modality::text};
  out.inputs[refs.prompt] = {HostValue::i32(ids)};
  out.num_prompt_tokens = static_cast<std::int64_t>(ids.size());
  return out;
}

std::string word(std::int32_t token) { return " " + std::to_string(token); }

// The component that answers: at once or every so often, or as a table says.
Result<DeviceComponent> null_component(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(const std::int64_t step_us, source.options.get_int("step_us", 0));
  if (step_us < 0 || step_us > kMaxStepUs)
    return bad_model("the option step_us must be from 0 to " + std::to_string(kMaxStepUs));
  return DeviceComponent{
      .name = "null",
      .build =
          [step_us](engine::BuildContext&) {
            return Result<std::unique_ptr<engine::ComponentBody>>(std::make_unique<NullBody>(step_us));
          },
      .max_batch_rows = kMaxRows,
      .run_ahead = false};
}

DeviceComponent timed_component(const Refs& r, ResourceRef kv, const TimedModel& timed) {
  const TimedRefs refs{r.prompt, r.token, kv};
  return {.name = "null",
          .build =
              [=](engine::BuildContext& build) {
                return Result<std::unique_ptr<engine::ComponentBody>>(
                    make_timed_body(refs, timed.costs, timed.timer, build.device));
              },
          .uses = {kv},
          .max_batch_rows = timed.max_rows,
          .max_batch_tokens = timed.costs->step_tokens,
          .chunked_prefill = true};
}

Refs add_ports(Decl& d) {
  Refs r;
  r.prompt = d.port({.name = "prompt", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {FromRequest{}}});
  r.token = d.port({.name = "token",
                    .dtype = DType::i32,
                    .axes = {{"one", 1}},
                    .travel = {Keep{}, ToClient{Modality::text, "utf8"}},
                    .counts_token = true});
  return r;
}

void add_walks(Decl& d, Refs r, ComponentRef body, int context) {
  r.prefill = d.walk("prefill", Run{body, {r.prompt}, {r.token}});
  r.decode = d.walk("decode", Loop{.name = "decode", .body = {Run{body, {r.token}, {r.token}}}, .at_most = context});
  d.partition(
      {.walks = {r.prefill, r.decode}, .plan = [r](const RequestParams&) { return std::make_unique<NullPlan>(r); }});
  for (const Route route : {Route::generate, Route::completions, Route::chat_completions})
    d.surface({.route = route,
               .intake = [r, context](const ApiRequest& request) { return intake(r, request, context); },
               .emit = [](PortRef, const HostValue& value, const RequestParams&) -> Result<Chunk> {
                 return Chunk{Modality::text, "utf8", HostValue::utf8(word(value.as<std::int32_t>()[0]))};
               }});
}

}  // namespace

std::string null_model_text(std::span<const std::int32_t> prompt, std::uint64_t seed, int num_tokens) {
  std::string out;
  std::int32_t token = prompt.back();
  for (int i = 0; i < num_tokens; ++i) out += word(token = next_null_token(token, seed));
  return out;
}

Decl declare_timed_model(const std::string& name, const TimedModel& timed) {
  Decl d(name);
  const Refs r = add_ports(d);
  const ResourceRef kv = d.resource(PagedKv{.name = "kv",
                                            .layers = 1,
                                            .kv_heads = 1,
                                            .head_dim = 1,
                                            .max_tokens_per_request = timed.context_tokens,
                                            .prefix_cache = timed.prefix_cache,
                                            .pool_tokens = timed.kv_tokens});
  add_walks(d, r, d.component(timed_component(r, kv, timed)), timed.context_tokens);
  return d;
}

Result<Decl> declare_null_model(const ModelSource& source) {
  if (source.options.has("step_costs")) {
    TimedModel timed{.timer = std::make_shared<SleepingTimer>()};
    MSTAR_TRY_ASSIGN(const std::string file, source.options.get_string("step_costs", ""));
    MSTAR_TRY_ASSIGN(StepCosts costs, read_step_costs(file));
    timed.costs = std::make_shared<const StepCosts>(std::move(costs));
    MSTAR_TRY_ASSIGN(const std::int64_t rows, source.options.get_int("max_rows", timed.max_rows));
    if (rows < 1 || rows > kMaxRows)
      return bad_model("the option max_rows must be from 1 to " + std::to_string(kMaxRows));
    timed.max_rows = static_cast<int>(rows);
    MSTAR_TRY_ASSIGN(timed.kv_tokens, source.options.get_int("kv_tokens", 0));
    if (timed.kv_tokens < 0) return bad_model("the option kv_tokens must not be negative");
    MSTAR_TRY_ASSIGN(timed.prefix_cache, source.options.get_bool("prefix_cache", true));
    return declare_timed_model(source.name, timed);
  }
  Decl d(source.name);
  const Refs r = add_ports(d);
  MSTAR_TRY_ASSIGN(DeviceComponent component, null_component(source));
  add_walks(d, r, d.component(std::move(component)), kContext);
  return d;
}

}  // namespace mstar::models
