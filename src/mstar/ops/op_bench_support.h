// What the benches of ops share: fastest-of-N timing that prints time and rate, with the arms of a case interleaved.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "mstar/ops/op_test_support.h"

namespace mstar::op_test {

// Registers `run` under `name`, reporting the fastest repetition, by the thread's processor time when one thread runs
// it. The machine is shared: a mean of wall time would measure the neighbours. flop and bytes are of one run; 0 leaves
// the rate out.
template <class Run>
void register_bench(const std::string& name, double flop, double bytes, int num_threads, Run run) {
  auto* bench = benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    for (auto _ : state) run();
    if (flop > 0)
      state.counters["GFLOP/s"] = benchmark::Counter(flop * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
    if (bytes > 0)
      state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  });
  const auto fastest = [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); };
  const auto largest = [](const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); };
  bench->Unit(benchmark::kMicrosecond)->MinTime(0.02)->Repetitions(15);
  if (num_threads > 1) bench->UseRealTime();
  bench->ReportAggregatesOnly()->ComputeStatistics("min", fastest)->ComputeStatistics("max", largest);
}

}  // namespace mstar::op_test
