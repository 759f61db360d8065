#include "mstar/models/toy/toy_world.h"

#include <algorithm>
#include <cmath>

#include "mstar/engine/component_body.h"
#include "mstar/nn/seeded.h"

namespace mstar::models {
namespace {

using namespace decl;
using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;

constexpr int kStateDim = 8, kActionDim = 2, kHidden = 32, kSide = 4, kPixels = kSide * kSide;
constexpr int kMaxActions = 64;
constexpr double kMaxAction = 10;
constexpr float kInertia = 0.25f, kBound = 6.0f;  // of each number of the state
constexpr std::uint64_t kWorldSeed = 9001;
constexpr char kLoop[] = "roll";

struct Refs {
  PortRef actions, action, state, frame, seen, video;
  WalkRef rollout, watch, steer;
};

// state = kInertia * state + move(gelu(in(state, action))); frame = look(state).
class World final : public engine::ComponentBody {
 public:
  static Result<std::unique_ptr<engine::ComponentBody>> build(const Refs& refs, engine::BuildContext& context) {
    if (context.device.id().backend != Backend::cpu) return bad_model("toy-world runs on the CPU only");
    auto out = std::make_unique<World>(refs, context.pool ? context.pool->num_threads() : 1);
    const nn::SeededWeights weights(context.device, kWorldSeed);
    MSTAR_TRY_ASSIGN(out->in_, weights.linear("in", kHidden, kStateDim + kActionDim));
    MSTAR_TRY_ASSIGN(out->move_, weights.linear("move", kStateDim, kHidden));
    MSTAR_TRY_ASSIGN(out->look_, weights.linear("look", kPixels, kStateDim));
    return std::unique_ptr<engine::ComponentBody>(std::move(out));
  }
  World(const Refs& refs, int num_threads) : refs_(refs), num_threads_(num_threads) {}

  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "state", .item_dims = {kStateDim}}, {.name = "actions", .item_dims = {kActionDim}}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "state", .item_dims = {kStateDim}}, {.name = "frame", .item_dims = {kPixels}, .to_host = true}};
  }
  // A row moves by one action: the one of its iteration where all came with the request, else the one that has just
  // come. A client's last chunk may bring none: then the row moves nothing, and its walk ends.
  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* const listed = row.value(refs_.actions);
    const Value* const action = listed ? listed : row.value(refs_.action);
    if (!action) return RowDemand{};
    return RowDemand{.sources = {{0, row.value(refs_.state)}, {1, action}},
                     .results = {{.slot = 0, .output = 0, .items = 1, .drop_items_axis = true},
                                 {.slot = 1, .output = 1, .items = 1, .drop_items_axis = true}}};
  }
  std::size_t workspace_bytes(int rows, int) const override {
    return static_cast<std::size_t>(rows * (2 * kStateDim + kActionDim + kHidden)) * sizeof(float) + 3 * 256 +
           std::max({in_.workspace_bytes(rows, num_threads_), move_.workspace_bytes(rows, num_threads_),
                     look_.workspace_bytes(rows, num_threads_)});
  }
  std::size_t weight_bytes() const override { return in_.bytes() + move_.bytes() + look_.bytes(); }

  Status forward(Forward& step, int) override {
    OpContext& ops = step.ops();
    const auto mark = ops.arena.mark();
    const TensorView state = step.input(0), next = step.output(0);
    const TensorView given = ops.temporary(DType::f32, {state.dim(0), kStateDim + kActionDim});
    const TensorView kept = ops.temporary(DType::f32, {state.dim(0), kStateDim});
    for (int r = 0; r < step.num_rows(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      const std::int64_t moves = step.input_offsets(0)[at];
      if (step.input_offsets(0)[at + 1] == moves) continue;
      const std::int64_t num_actions = step.input_offsets(1)[at + 1] - step.input_offsets(1)[at];
      const std::int64_t action = num_actions > 1 ? step.row(r).iteration : 0;
      const float* const from = state.at(moves).data<float>();
      std::copy_n(from, kStateDim, given.at(moves).data<float>());
      std::transform(from, from + kStateDim, kept.at(moves).data<float>(), [](float each) { return kInertia * each; });
      std::copy_n(step.input(1).at(step.input_offsets(1)[at] + action).data<float>(), kActionDim,
                  given.at(moves).data<float>() + kStateDim);
    }
    if (state.dim(0) > 0) {
      const TensorView hidden = ops.temporary(DType::f32, {state.dim(0), kHidden});
      MSTAR_TRY(in_.run(ops, given, hidden, Activation::gelu_tanh));
      MSTAR_TRY(move_.run(ops, hidden, next, Activation::none, kept));
      MSTAR_TRY(look_.run(ops, next, step.output(1)));
    }
    for (int r = 0; r < step.num_rows(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      const std::int64_t moved = step.output_offsets(0)[at];
      if (step.output_offsets(0)[at + 1] > moved && left_bounds(next.at(moved))) step.stop_loop(r, kLoop);
    }
    ops.arena.rewind(mark);
    return ok_status();
  }

 private:
  // Not a number is out of bounds too.
  static bool left_bounds(TensorView state) {
    return std::any_of(state.data<float>(), state.data<float>() + kStateDim,
                       [](float number) { return !(std::abs(number) <= kBound); });
  }

  Refs refs_;
  int num_threads_;
  nn::Linear in_, move_, look_;
};

// All frames of a rollout as one value.
class Film final : public HostStage {
 public:
  Result<HostOutputs> run(const HostInputs& inputs) override {
    const std::vector<HostValue>& frames = inputs.ports[0];
    std::vector<std::byte> bytes;
    for (const HostValue& frame : frames) bytes.insert(bytes.end(), frame.bytes().begin(), frame.bytes().end());
    return HostOutputs{
        .ports = {{HostValue(DType::f32, {static_cast<std::int64_t>(frames.size()), kPixels}, std::move(bytes))}}};
  }
};

class WorldPlan final : public Plan {
 public:
  WorldPlan(const Refs& refs, const RequestParams& params) : refs_(refs) {
    // Checked at intake.
    const bool streams = params.fields.get_bool("stream_rollout", false).value_or(false);
    steered_ = params.fields.get_string("control", "list").value_or("") == "client";
    walk_ = steered_ ? refs.steer : streams ? refs.watch : refs.rollout;
    std::vector<float> state(kStateDim);
    for (std::size_t i = 0; i < state.size(); ++i) state[i] = nn::seeded_number(params.sampling.seed, "state", i);
    start_ = HostValue::f32(state);
  }
  Result<Decision> next(const PlanView& view) override {
    if (!view.finished.valid()) {
      NextWalk first{.walk = walk_, .inputs = {{refs_.state, {start_}}}};
      if (!steered_) {
        MSTAR_TRY_ASSIGN(const std::int64_t num_actions, view.params.fields.get_int("num_actions", 1));
        first.caps = {{kLoop, static_cast<int>(num_actions)}};
      }
      return Decision(std::move(first));
    }
    if (view.loop_ends.at(kLoop) == LoopEnd::stop) return Decision(Done{Finish::stop});
    if (steered_) return Decision(NextWalk{.walk = walk_});  // from the state that the last pass has kept
    return Decision(Done{Finish::length});
  }

 private:
  Refs refs_;
  WalkRef walk_;
  bool steered_ = false;
  HostValue start_;
};

Error bad_field(const char* field, std::string message) {
  return invalid_request(std::move(message)).with_field(field);
}

Result<HostValue> read_actions(const Params& fields) {
  const auto it = fields.values().find("actions");
  const auto* list = it == fields.values().end() ? nullptr : std::get_if<std::vector<double>>(&it->second);
  if (!list || list->empty() || list->size() % kActionDim != 0 || list->size() > kMaxActions * kActionDim)
    return bad_field("actions", "'actions' must be a list of 1 to " + std::to_string(kMaxActions) +
                                    " pairs of numbers, one after the other");
  std::vector<std::byte> bytes(list->size() * sizeof(float));
  for (std::size_t i = 0; i < list->size(); ++i) {
    if (!(std::abs((*list)[i]) <= kMaxAction)) return bad_field("actions", "'actions' must be between -10 and 10");
    const auto number = static_cast<float>((*list)[i]);
    std::copy_n(reinterpret_cast<const std::byte*>(&number), sizeof number, bytes.data() + i * sizeof number);
  }
  const auto pairs = static_cast<std::int64_t>(list->size()) / kActionDim;
  return HostValue(DType::f32, {pairs, kActionDim}, std::move(bytes));
}

Result<Intake> intake(const Refs& refs, const ApiRequest& request) {
  Intake out;
  out.params.fields = request.fields;
  out.params.output_modalities = {Modality::video, Modality::video_frame};
  MSTAR_TRY_ASSIGN(const std::string control, request.fields.get_string("control", "list"));
  if (control != "list" && control != "client") return bad_field("control", "'control' must be list or client");
  MSTAR_TRY(request.fields.get_bool("stream_rollout", false));
  MSTAR_TRY_ASSIGN(const std::int64_t seed, request.fields.get_int("seed", 0));
  out.params.sampling.seed = static_cast<std::uint64_t>(seed);
  if (control == "client") {
    if (request.fields.has("actions"))
      return bad_field("actions", "'actions' come to the input 'action' where 'control' is client");
    return out;
  }
  MSTAR_TRY_ASSIGN(const HostValue actions, read_actions(request.fields));
  out.params.fields.set("num_actions", actions.dims()[0]);
  out.inputs[refs.actions] = {actions};
  return out;
}

Result<Chunk> emit(const Refs& refs, PortRef port, const HostValue& value) {
  Chunk out{port == refs.video ? Modality::video : Modality::video_frame, "f32", value};
  out.metadata.set("num_frames", static_cast<std::int64_t>(value.size_bytes() / (kPixels * sizeof(float))));
  out.metadata.set("height", std::int64_t{kSide});
  out.metadata.set("width", std::int64_t{kSide});
  return out;
}

}  // namespace

Result<Decl> declare_toy_world(const ModelSource& source) {
  Decl d(source.name);
  Refs r;
  const std::vector<Axis> frame = {{"pixels", kPixels}};
  r.actions = d.port({.name = "actions", .axes = {{"steps"}, {"xy", kActionDim}}, .travel = {FromRequest{}}});
  r.action = d.port({.name = "action", .axes = {{"xy", kActionDim}}, .travel = {FromClient{Modality::action}}});
  r.state = d.port({.name = "state", .axes = {{"state", kStateDim}}, .travel = {FromPlan{}, Keep{}}});
  r.frame = d.port({.name = "frame", .axes = frame});
  r.seen = d.port({.name = "seen", .axes = frame, .travel = {ToClient{Modality::video_frame, "f32"}}});
  r.video = d.port(
      {.name = "video", .axes = {{"frames"}, {"pixels", kPixels}}, .travel = {ToClient{Modality::video, "f32"}}});

  const auto world = d.component(DeviceComponent{
      .name = "world", .build = [r](engine::BuildContext& c) { return World::build(r, c); }, .max_batch_rows = 16});
  const auto film =
      d.component(HostComponent{.name = "film", .make = [](const RequestParams&) { return std::make_unique<Film>(); }});

  r.rollout = d.walk("rollout", Sequential{{Loop{.name = kLoop,
                                                 .body = {Run{world, {r.state, r.actions}, {r.state, r.frame}}},
                                                 .stop = ComponentSignal{},
                                                 .at_most = kMaxActions,
                                                 .accumulated = {r.frame}},
                                            Run{film, {r.frame}, {r.video}}}});
  r.watch = d.walk("watch", Loop{.name = kLoop,
                                 .body = {Run{world, {r.state, r.actions}, {r.state, r.seen}}},
                                 .stop = ComponentSignal{},
                                 .at_most = kMaxActions});
  r.steer = d.walk("steer", Loop{.name = kLoop,
                                 .body = {Run{world, {r.state, r.action}, {r.state, r.seen}}},
                                 .stop = ComponentSignal{},
                                 .at_most = kMaxActions,
                                 .outputs = {r.state}});
  d.partition({.walks = {r.rollout, r.watch, r.steer},
               .plan = [r](const RequestParams& p) { return std::make_unique<WorldPlan>(r, p); }});
  for (const Route route : {Route::generate, Route::videos_generations})
    d.surface({.route = route,
               .intake = [r](const ApiRequest& request) { return intake(r, request); },
               .emit = [r](PortRef port, const HostValue& value, const RequestParams&) { return emit(r, port, value); },
               .example = R"({"actions": [0.5, 0, 0, 0.5], "streaming": false})"});
  return d;
}

}  // namespace mstar::models
