// Host cost of the graph on the step path: one token step of a decode loop, with and without running ahead.
#include <benchmark/benchmark.h>

#include <array>

#include "mstar/graph/fixtures/fixtures.h"
#include "mstar/graph/partition_state.h"

namespace mstar::graph {
namespace {

class Buffer final : public DeviceBuffer {
 public:
  DType dtype() const override { return DType::i32; }
  Dims dims() const override { return {1}; }
  std::size_t size_bytes() const override { return 4; }
  Result<HostValue> to_host() const override { return HostValue(); }
};

void token_step(benchmark::State& bench, bool ahead) {
  const decl::Decl model = fixtures::qwen35();
  const auto compiled = CompiledModel::compile(model);
  const auto placed = PlacedModel::place(*compiled, RequestPlacement(*compiled, WorkerId(0)));
  const decl::WalkRef walk = model.find_walk("decode");
  const Value value(std::make_shared<Buffer>());
  PartitionState state(*placed, WorkerId(0), decl::PartitionRef(0));
  StartPass start{.walk = walk, .pass = 1};
  start.inputs = {{model.find_port("new_token"), {value}}};
  start.caps = {{0, 1 << 30}};
  if (!state.start(start)) return bench.SkipWithError("start");
  ReadyNode node = *state.take_ready();
  Effects effects;
  std::array<Values, 1> outputs;
  for (auto _ : bench) {
    outputs[0] = {value};
    if (ahead) {
      const auto step = state.begin_ahead(node.node);
      state.complete(node, outputs, {}, effects);
      state.confirm_ahead(node.node);
      node.ticket = step->ticket;
    } else {
      state.complete(node, outputs, {}, effects);
      node = *state.take_ready();
    }
    benchmark::DoNotOptimize(state.inputs(node.node).data());
  }
}
BENCHMARK_CAPTURE(token_step, plain, false);
BENCHMARK_CAPTURE(token_step, ahead, true);

}  // namespace
}  // namespace mstar::graph

BENCHMARK_MAIN();
