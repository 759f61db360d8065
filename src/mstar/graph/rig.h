// What the tests of the graph share: a declaration on one or more workers, driven by hand.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mstar/graph/partition_state.h"
#include "mstar/graph/sim/oracle.h"

namespace mstar::graph {

using Step = decl::Run;  // testing::Test has a Run of its own
using decl::DeviceComponent;
using decl::FromPlan;
using decl::Keep;
using decl::Loop;
using decl::Parallel;
using decl::PortRef;
using decl::Sequential;
using decl::ToClient;
using decl::WalkRef;

// Ports and components by name, made when first named.
class Rig {
 public:
  decl::Decl d{"rig"};
  std::int64_t live = 0;  // values that exist

  PortRef port(const std::string& name, std::vector<decl::Travel> travel = {}) {
    const PortRef known = d.find_port(name);
    return known.valid() ? known : d.port({.name = name, .dtype = DType::i32, .travel = std::move(travel)});
  }
  decl::ComponentRef component(const std::string& name) {
    const decl::ComponentRef known = d.find_component(name);
    return known.valid() ? known : d.component(DeviceComponent{.name = name});
  }
  Step run(const std::string& name, std::initializer_list<PortRef> in, std::initializer_list<PortRef> out) {
    return Step{component(name), in, out};
  }

  // `workers`: of components that are not on worker 0.
  void compile(const std::map<std::string, int>& workers = {}) {
    auto result = CompiledModel::compile(d);
    ASSERT_TRUE(result) << result.error().message;
    model = std::make_unique<CompiledModel>(std::move(*result));
    RequestPlacement placement(*model, WorkerId(0));
    for (const auto& [name, worker] : workers)
      placement.set(component(name), WorkerId(static_cast<std::uint32_t>(worker)));
    auto result_placed = PlacedModel::place(*model, placement);
    ASSERT_TRUE(result_placed) << result_placed.error().message;
    placed = *result_placed;
  }
  PartitionState state(int worker = 0, int partition = 0) {
    return PartitionState(placed, WorkerId(static_cast<std::uint32_t>(worker)),
                          decl::PartitionRef(static_cast<std::uint16_t>(partition)));
  }

  // A value that says its number.
  Values value(std::int64_t id) { return {Value(std::make_shared<sim::Tracked>(id, live))}; }
  StartPass start(WalkRef walk, int pass, std::map<PortRef, std::int64_t> inputs = {},
                  std::map<std::string, int> caps = {}) {
    StartPass start{.walk = walk, .pass = pass};
    for (const auto& [port, id] : inputs) start.inputs.emplace_back(port, value(id));
    for (const auto& [name, cap] : caps) start.caps.emplace_back(model->at(walk).find_loop(name), cap);
    return start;
  }
  NodeIndex node(WalkRef walk, const std::string& name) {
    for (NodeIndex n = 0; n < model->at(walk).nodes.size(); ++n)
      if (d.at(model->at(walk).nodes[n].component).name() == name) return n;
    return kNoNode;
  }
  // Takes the next ready node, which must be `name`.
  ReadyNode take(PartitionState& state, const std::string& name) {
    const std::optional<ReadyNode> ready = state.take_ready();
    EXPECT_TRUE(ready) << name << " is not ready";
    if (!ready) return {};
    EXPECT_EQ(d.at(model->at(state.walk()).nodes[ready->node].component).name(), name);
    return *ready;
  }
  // Completes with one value per output, numbered `id`, id + 1, ...; 0 = that output is left empty.
  Effects complete(PartitionState& state, ReadyNode ready, std::vector<std::int64_t> ids,
                   std::vector<std::string> stop = {}) {
    std::vector<Values> outputs;
    for (const std::int64_t id : ids) outputs.push_back(id ? value(id) : Values());
    std::vector<LoopIndex> loops;
    for (const std::string& name : stop) loops.push_back(model->at(state.walk()).find_loop(name));
    Effects effects;
    EXPECT_TRUE(state.complete(ready, outputs, {.loops = loops}, effects));
    return effects;
  }
  Effects step(PartitionState& state, const std::string& name, std::vector<std::int64_t> ids,
               std::vector<std::string> stop = {}) {
    const ReadyNode ready = take(state, name);
    if (ready.node == kNoNode) return {};
    return complete(state, ready, std::move(ids), std::move(stop));
  }
  // Ids of an input of a running node.
  sim::Ids in(const PartitionState& state, ReadyNode ready, std::size_t input = 0) {
    return sim::ids_of(state.inputs(ready.node)[input]);
  }

  std::unique_ptr<CompiledModel> model;
  std::shared_ptr<const PlacedModel> placed;
};

using sim::Ids;

inline Ids client_ids(const Effects& effects, PortRef port) {
  Ids ids;
  for (const Effects::Client& each : effects.client)
    if (each.port == port)
      for (const std::int64_t id : sim::ids_of(each.values)) ids.push_back(id);
  return ids;
}

}  // namespace mstar::graph
