#include <algorithm>
#include <chrono>

#include "cuda_slice.h"
#include "mstar/engine/toy_decoder_fixture.h"

namespace mstar::bench {
namespace {

using namespace engine;

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

struct Column {
  double p50 = 0, p95 = 0;
};
template <class Get>
Column column(const std::vector<StepTimes>& times, int rows, Get get) {
  std::vector<double> values;
  int skipped = 0;
  for (const StepTimes& each : times)
    if (each.rows == rows && skipped++ >= 20)
      values.push_back(get(each));  // the prompts and the first steps are warm-up
  return {quantile(values, 0.5), quantile(values, 0.95)};
}

std::vector<DecodeRequest> requests_of(int count, int num_tokens) {
  std::vector<DecodeRequest> out;
  for (int i = 0; i < count; ++i)
    out.push_back({.prompt = {5 + i, 9, 200 + i, 17, 3, 8, 101, 44}, .max_tokens = num_tokens});
  return out;
}

double wall_us(DecoderEngine& decoder, Device& cuda, const std::vector<DecodeRequest>& requests, bool ahead) {
  const auto begin = std::chrono::steady_clock::now();
  const auto results = decode(decoder, cuda, requests, {.run_ahead = ahead});
  const auto end = std::chrono::steady_clock::now();
  return results ? std::chrono::duration<double, std::micro>(end - begin).count() : 0;
}

void measure(Report& report, Device& cuda, DecoderEngine& decoder, const char* name, int rows, int num_tokens) {
  const auto requests = requests_of(rows, num_tokens);
  wall_us(decoder, cuda, requests, true);  // warm
  const std::int64_t allocations = cuda.num_allocations();
  const StepCounters before = decoder.engine->counters();
  std::vector<StepTimes> apart;
  if (auto ran = decode(decoder, cuda, requests, {.run_ahead = false, .times = &apart}); !ran) {
    report.check(false, "timing", ran.error().message);
    return;
  }
  // Twice, so that the spread can be seen.
  const double in_step = wall_us(decoder, cuda, requests, false) / num_tokens;
  const double ahead = wall_us(decoder, cuda, requests, true) / num_tokens;
  const double again = wall_us(decoder, cuda, requests, true) / num_tokens;
  const StepCounters& after = decoder.engine->counters();
  const auto prepare = column(apart, rows, [](const StepTimes& t) { return t.prepare_us; });
  const auto launch = column(apart, rows, [](const StepTimes& t) { return t.launch_us; });
  const auto finish = column(apart, rows, [](const StepTimes& t) { return t.finish_us; });
  const auto host = column(apart, rows, [](const StepTimes& t) { return t.prepare_us + t.launch_us + t.finish_us; });
  const auto device = column(apart, rows, [](const StepTimes& t) { return t.device_us; });
  report.table.push_back(
      text("%-8s %4d | %6.1f %6.1f | %6.1f %6.1f | %6.1f %6.1f | %6.1f %6.1f | %7.1f %7.1f | %7.1f %7.1f %7.1f", name,
           rows, prepare.p50, prepare.p95, launch.p50, launch.p95, finish.p50, finish.p95, host.p50, host.p95,
           device.p50, device.p95, in_step, ahead, again));
  const std::string what = text("%s, %d rows: ", name, rows);
  report.check(cuda.num_allocations() == allocations && after.num_allocations == before.num_allocations,
               what + "no allocation once warm",
               text("%lld", static_cast<long long>(cuda.num_allocations() - allocations)));
  report.check(after.num_host_syncs - before.num_host_syncs == after.num_steps - before.num_steps,
               what + "one wait a step");
  if (decoder.engine->buckets().size() > 0)
    report.check(after.num_eager - before.num_eager == 4, what + "only the four prompt steps were eager",
                 text("%lld", static_cast<long long>(after.num_eager - before.num_eager)));
}

}  // namespace

void measure_steps(Report& report, Device& cuda, int num_tokens) {
  const ToyConfig c;
  report.table.push_back("step of the toy decoder (4 layers, 256 wide, vocabulary 1000), microseconds");
  report.table.push_back(
      "            | prepare       | launch        | finish        | host, sum     | device          | wall per step: "
      "in turn, ahead, ahead");
  report.table.push_back(
      "mode   rows |    p50    p95 |    p50    p95 |    p50    p95 |    p50    p95 |     p50     p95 |");
  for (const bool captured : {false, true}) {
    auto decoder = DecoderEngine::create(
        declare_toy_decoder(c, captured ? std::vector<int>{1, 2, 4, 8, 16, 32} : std::vector<int>{}, 32, false),
        {.max_requests = 32, .max_rows = 32, .max_tokens = 1024}, cuda);
    if (!decoder) {
      report.check(false, "an engine to time", decoder.error().message);
      return;
    }
    for (const int rows : {1, 8, 32})
      measure(report, cuda, *decoder, captured ? "captured" : "eager", rows, num_tokens);
    if (captured && decoder->engine->buckets().size() > 0)
      report.table.push_back(text("nodes of a captured step: %zu; activation arena %.1f MiB; weights %.1f MiB",
                                  decoder->engine->num_graph_nodes(0),
                                  static_cast<double>(decoder->engine->arena_bytes()) / 1048576.0,
                                  static_cast<double>(decoder->engine->weight_bytes()) / 1048576.0));
  }
}

}  // namespace mstar::bench
