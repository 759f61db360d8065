// How fast step threads read memory: the floor under batch-1 decode, which reads every weight once a token.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "mstar/device/cpu/huge_pages.h"
#include "mstar/device/thread_pool.h"

namespace mstar {
namespace {

// Four chains of additions, so that loads and not latencies are measured; the compiler makes vectors of them.
std::uint64_t sum(const std::uint64_t* from, std::size_t count) {
  std::uint64_t sums[32] = {};
  for (std::size_t i = 0; i + 32 <= count; i += 32)
    for (std::size_t lane = 0; lane < 32; ++lane) sums[lane] += from[i + lane];
  std::uint64_t out = 0;
  for (const std::uint64_t each : sums) out += each;
  return out;
}

// Arguments: MiB, threads, whether in huge pages as weights are.
void read_memory(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0)) << 17;
  const auto num_threads = static_cast<int>(state.range(1));
  HugePages pages;
  std::unique_ptr<std::uint64_t[]> small;
  if (!state.range(2)) small = std::make_unique_for_overwrite<std::uint64_t[]>(count);
  auto* const memory =
      state.range(2) ? static_cast<std::uint64_t*>(pages.take(count * sizeof(std::uint64_t))) : small.get();
  if (!memory) return state.SkipWithError("no memory");
  std::fill_n(memory, count, 1);
  ThreadPool pool(num_threads);
  for (auto _ : state)
    pool.parallel_for(num_threads, [&](std::int64_t part, int) {
      const std::size_t share = count / static_cast<std::size_t>(num_threads);
      benchmark::DoNotOptimize(sum(memory + static_cast<std::size_t>(part) * share, share));
    });
  state.SetBytesProcessed(state.iterations() * state.range(0) << 20);
}

BENCHMARK(read_memory)
    ->ArgsProduct({{16, 96, 512}, {1, 2, 4, 8}, {0, 1}})
    ->ArgNames({"MiB", "threads", "huge"})
    ->UseRealTime();

}  // namespace
}  // namespace mstar
