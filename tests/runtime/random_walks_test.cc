// Random walks (nested loops, parallel parts, streams) through real workers whose components compute: the client gets
// the same values whatever runs ahead, in whatever order things happen, wherever the components are.
#include <gtest/gtest.h>

#include <algorithm>

#include "mstar/decl/walk_flow.h"
#include "mstar/engine/component_body.h"
#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/graph/placement.h"
#include "mstar/graph/sim/random_model.h"
#include "simulation.h"

namespace mstar::sim {
namespace {

using engine::Forward;
using engine::RowInputs;

std::uint32_t mix(std::uint32_t state, std::uint32_t value) { return (state ^ value) * 2654435761u + 12345u; }
std::uint32_t hash_of(const std::string& text) {
  std::uint32_t state = 7;
  for (const char c : text) state = mix(state, static_cast<std::uint32_t>(c));
  return state;
}

// Every output is a number made of all inputs. Loops that a component may stop are stopped by the iteration's number.
class Hash final : public engine::ComponentBody {
 public:
  Hash(std::string name, std::vector<std::string> loops) : name_(std::move(name)), loops_(std::move(loops)) {}
  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "in", .dtype = DType::i32, .max_items = 4096}};
  }
  // Some components' values are read back with the step, others are fetched when they are wanted.
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "out", .dtype = DType::i32, .max_items = 64, .to_host = hash_of(name_) % 2 == 0}};
  }
  Result<engine::RowDemand> declare(const RowInputs& row) override {
    engine::RowDemand demand;
    for (const Values& port : row.ports)
      for (const Value& value : port) demand.sources.push_back({0, &value});
    if (name_ == "sink" && demand.sources.empty())
      return demand;  // a stream's end may come with its last chunk or after
    for (int o = 0; o < static_cast<int>(row.run->outputs.size()); ++o)
      demand.results.push_back({.slot = 0, .output = o, .items = 1});
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override { return 0; }
  Status forward(Forward& step, int) override {
    std::vector<std::int32_t> in(step.input_offsets(0).begin(), step.input_offsets(0).end());
    std::vector<std::int32_t> out(step.output_offsets(0).begin(), step.output_offsets(0).end());
    for (int r = 0; r < step.num_rows(); ++r) {
      const auto salt = static_cast<std::uint32_t>(step.row(r).params->fields.get_int("salt", 0).value_or(0));
      for (const std::string& loop : loops_)
        if (mix(mix(hash_of(name_ + loop), salt), static_cast<std::uint32_t>(step.row(r).iteration)) % 5 == 0)
          step.stop_loop(r, loop);
    }
    auto kernel = [in, out, first = hash_of(name_), from = step.input(0), to = step.output(0)] {
      for (std::size_t r = 0; r + 1 < in.size(); ++r) {
        std::uint32_t state = first;
        for (std::int32_t i = in[r]; i < in[r + 1]; ++i)
          state = mix(state, static_cast<std::uint32_t>(from.data<std::int32_t>()[i]));
        for (std::int32_t o = out[r]; o < out[r + 1]; ++o)
          to.data<std::int32_t>()[o] = static_cast<std::int32_t>(mix(state, static_cast<std::uint32_t>(o - out[r])));
      }
    };
    if (auto* deferred = dynamic_cast<engine::DeferredDevice*>(&step.ops().device)) {
      deferred->launch(std::move(kernel));
    } else {
      kernel();
    }
    return ok_status();
  }

 private:
  std::string name_;
  std::vector<std::string> loops_;
};

// Loops round the component's Run that end by a component's signal.
std::vector<std::string> loops_it_may_stop(const decl::Decl& model, decl::ComponentRef ref) {
  std::vector<std::string> out;
  for (const decl::Walk& walk : model.walks()) {
    const decl::WalkFlow flow = decl::trace_flow(model, walk);
    for (const decl::FlowNode& node : flow.nodes) {
      if (node.run->component != ref) continue;
      for (const int loop : node.loops) {
        const decl::Loop& spec = *flow.loops[static_cast<std::size_t>(loop)].spec;
        if (std::holds_alternative<decl::ComponentSignal>(spec.stop)) out.push_back(spec.name);
      }
    }
  }
  return out;
}

decl::DeviceComponent component(std::string name, decl::ComponentRef ref) {
  decl::DeviceComponent out{.name = name, .max_batch_rows = 4, .run_ahead = hash_of(name) % 5 != 0};
  out.build = [name, ref](engine::BuildContext& context) {
    return Result<std::unique_ptr<engine::ComponentBody>>(
        std::make_unique<Hash>(name, loops_it_may_stop(context.decl, ref)));
  };
  return out;
}

decl::Decl model_of(std::uint64_t seed) {
  decl::Decl model = graph::sim::random_model(seed, component);
  decl::Surface surface{.route = decl::Route::generate};
  surface.intake = [](const decl::ApiRequest& api) -> Result<decl::Intake> {
    decl::Intake out;
    out.params.fields = api.fields;
    return out;
  };
  surface.emit = [](decl::PortRef port, const HostValue& value, const decl::RequestParams&) -> Result<decl::Chunk> {
    std::string text = std::to_string(port.value) + "=";
    for (const std::int32_t each : value.as<std::int32_t>()) text += std::to_string(each) + ";";
    return decl::Chunk{.modality = decl::Modality::text, .format = "utf8", .value = HostValue::utf8(text)};
  };
  model.surface(std::move(surface));
  return model;
}

// Each component on one of the workers, where the graph allows that.
std::map<std::string, std::vector<std::uint32_t>> random_places(const decl::Decl& model, std::uint32_t num_workers,
                                                                std::mt19937_64& random) {
  const auto compiled = graph::CompiledModel::compile(model);
  if (!compiled) {
    ADD_FAILURE() << compiled.error().message;
    return {};
  }
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::map<std::string, std::vector<std::uint32_t>> out;
    graph::RequestPlacement placement(*compiled, WorkerId(0));
    for (std::uint16_t c = 0; c < model.components().size(); ++c) {
      const auto worker = static_cast<std::uint32_t>(random() % num_workers);
      out[model.components()[c].name()] = {worker};
      placement.set(decl::ComponentRef(c), WorkerId(worker));
    }
    if (graph::PlacedModel::place(*compiled, placement)) return out;
  }
  return {};
}

struct Totals {
  std::int64_t num_rows = 0, num_ahead = 0, num_dropped = 0;
};

// The client's values of each request, sorted: parallel parts may send in any order.
std::vector<std::vector<std::string>> answers(std::uint64_t seed, Options options, Totals& totals) {
  decl::Decl model = model_of(seed);
  std::vector<std::string> names;
  for (const auto& each : model.components()) names.push_back(each.name());
  std::mt19937_64 random(options.seed);
  const auto places = random_places(model, options.num_device_workers, random);
  std::vector<ModelSpec> models;
  models.push_back({std::move(model), places});
  Simulation sim(options, std::move(models));
  std::vector<Simulation::Submitted> submitted;
  for (int i = 0; i < 3; ++i) {
    decl::ApiRequest api{.model = "random", .text = "go"};
    api.fields.set("salt", std::int64_t{i});
    submitted.push_back(sim.submit(std::move(api)));
    for (std::uint64_t k = sim.random()() % 20; k > 0; --k) sim.step();
  }
  sim.run();
  std::vector<std::vector<std::string>> out;
  for (const auto& each : submitted) {
    EXPECT_EQ(each.answer->num_terminal, 1);
    EXPECT_FALSE(each.answer->error) << each.answer->error->message;
    out.push_back(each.answer->pieces);
    std::sort(out.back().begin(), out.back().end());
  }
  sim.expect_empty();
  for (const std::string& name : names) {
    const auto counted = sim.total(name);
    totals.num_rows += counted.num_rows;
    totals.num_ahead += counted.num_ahead_rows;
    totals.num_dropped += counted.num_dropped_rows;
  }
  return out;
}

TEST(RandomWalks, TheClientGetsTheSameWhateverRunsAhead) {
  Totals on_cpu, off, ahead;
  std::size_t num_values = 0;
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    Options options{.seed = seed, .num_device_workers = 1 + static_cast<std::uint32_t>(seed % 3)};
    options.asynchronous = false;
    const auto expected = answers(seed, options, on_cpu);
    options.asynchronous = true;
    options.run_ahead = false;
    options.seed = seed * 2 + 1;
    EXPECT_EQ(answers(seed, options, off), expected);
    options.run_ahead = true;
    options.seed = seed * 2 + 2;
    EXPECT_EQ(answers(seed, options, ahead), expected);
    for (const auto& each : expected) num_values += each.size();
    if (HasFailure()) FAIL() << "model " << seed;
  }
  EXPECT_EQ(on_cpu.num_ahead, 0);
  EXPECT_EQ(off.num_ahead, 0);
  EXPECT_GT(ahead.num_ahead, 500);
  EXPECT_GT(num_values, 1000u);
  RecordProperty("rows", std::to_string(ahead.num_rows));
  RecordProperty("ahead", std::to_string(ahead.num_ahead));
  RecordProperty("dropped", std::to_string(ahead.num_dropped));
}

}  // namespace
}  // namespace mstar::sim
