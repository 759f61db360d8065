// The CUDA slice in one run: kernels against the CPU's, a toy decoder on the CPU, eager and captured, and what a step
// costs the host. Ends with a short table and "N passed, M failed"; exit status 0 when nothing failed.
#include "cuda_slice.h"

#include <cstdlib>
#include <string_view>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/cuda/cuda_device.h"

namespace mstar::bench {
namespace {

// Device-to-device copy rate, bytes read plus bytes written: the ceiling of everything memory-bound.
void measure_copy(Report& report, Device& cuda) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  auto from = cuda.allocate(kBytes), to = cuda.allocate(kBytes);
  auto begin = cuda.make_event(true), end = cuda.make_event(true);
  if (!from || !to || !begin || !end) {
    report.check(false, "memory for the copy test");
    return;
  }
  const Stream stream = cuda.default_stream();
  cuda.fill_zero(*from, kBytes, stream);
  double best_us = 1e30;
  for (int i = 0; i < 5; ++i) {
    (*begin)->record(stream);
    cuda.copy_within(*to, *from, kBytes, stream);
    (*end)->record(stream);
    cuda.synchronize(stream);
    best_us = std::min(best_us, (*end)->us_since(**begin));
  }
  report.table.push_back(text("copy within the device    %8.2f TB/s", 2.0 * kBytes / best_us * 1e-6));
  cuda.release(*from);
  cuda.release(*to);
}

// What a chain of nodes that do nothing costs: the floor of a captured step that is made of small kernels.
void measure_node(Report& report, Device& cuda) {
  constexpr int kNodes = 64, kReplays = 100;
  const Stream stream = cuda.default_stream();
  auto memory = cuda.allocate(256);
  auto begin = cuda.make_event(true), end = cuda.make_event(true);
  if (!memory || !begin || !end) return;
  if (Status started = cuda.begin_capture(stream); !started) {
    report.check(false, "begin_capture", started.error().message);
    return;
  }
  for (int i = 0; i < kNodes; ++i) cuda.fill_zero(*memory, 4, stream);
  auto graph = cuda.end_capture(stream);
  if (!report.check(static_cast<bool>(graph), "capture of a chain of memory sets", graph ? "" : graph.error().message))
    return;
  report.check((*graph)->num_nodes() == kNodes, "nodes of the graph", std::to_string((*graph)->num_nodes()));
  bool launched = true;
  for (int i = 0; i < 10; ++i) launched &= (*graph)->launch(stream).ok();
  (*begin)->record(stream);
  for (int i = 0; i < kReplays; ++i) launched &= (*graph)->launch(stream).ok();
  (*end)->record(stream);
  cuda.synchronize(stream);
  report.check(launched, "replays");
  report.table.push_back(text("one empty graph node      %8.2f us", (*end)->us_since(**begin) / kReplays / kNodes));
  cuda.release(*memory);
}

void check_all(Report& report, Device& cuda, int num_tokens) {
  measure_copy(report, cuda);
  measure_node(report, cuda);
  report.section("kernels against the CPU");
  check_ops(report, cuda);
  check_attention_tiles(report, cuda);
  check_row_ops(report, cuda);
  check_delta_ops(report, cuda);
  check_delta_mix(report, cuda);
  check_linear_products(report, cuda);
  check_passed_norms(report, cuda);
  measure_ops(report, cuda);
  check_draws(report, cuda);
  check_whisper_ops(report, cuda);
  time_linear_products(report, cuda);
  time_layers(report, cuda);
  report.section("toy decoder");
  check_decoder(report, cuda);
  report.section("cost of a step");
  time_attention(report, cuda);
  time_whisper_ops(report, cuda);
  time_draws(report, cuda);
  measure_steps(report, cuda, num_tokens);
  report.section("a worker");
  check_worker(report, cuda, num_tokens);
}

// A part of it by name, or all.
void check_part(Report& report, Device& cuda, int num_tokens, std::string_view part) {
  if (part == "whisper") {
    check_attention_tiles(report, cuda);
    check_row_ops(report, cuda);
    check_whisper_ops(report, cuda);
    time_whisper_ops(report, cuda);
  } else if (part == "layers") {
    time_layers(report, cuda);
  } else if (part == "attention") {
    check_attention_tiles(report, cuda);
    check_row_ops(report, cuda);
    time_attention(report, cuda);
  } else if (part == "delta") {
    check_delta_ops(report, cuda);
    check_delta_mix(report, cuda);
    measure_ops(report, cuda);
  } else if (part == "linear") {
    check_linear_products(report, cuda);
    check_passed_norms(report, cuda);
    time_layers(report, cuda);
  } else if (part.empty()) {
    check_all(report, cuda, num_tokens);
  } else {
    report.check(false,
                 "no part '" + std::string(part) + "': whisper, linear, layers, attention, delta, or none for all");
  }
}

int run(int num_tokens, std::string_view part) {
  Report report;
  report.section("machine");
  std::printf("host: %s\n", make_cpu_device()->description().c_str());
  auto cuda = make_cuda_device(0);
  if (!cuda) {
    report.check(false, "a CUDA device", cuda.error().message);
  } else {
    std::printf("device: %s\n", (*cuda)->description().c_str());
    check_part(report, **cuda, num_tokens, part);
    std::printf("\n== summary\n");
    for (const std::string& line : report.table) std::printf("%s\n", line.c_str());
  }
  for (const std::string& failure : report.failures) std::printf("failed: %s\n", failure.c_str());
  std::printf("%d passed, %d failed\n", report.num_passed, report.num_failed);
  return report.num_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mstar::bench

// Arguments: tokens per request of the timing (default 300); whisper, linear, layers, attention or delta, for a part
// alone.
int main(int argc, char** argv) {
  const int num_tokens = argc > 1 ? std::atoi(argv[1]) : 300;
  return mstar::bench::run(std::min(std::max(num_tokens, 64), 480), argc > 2 ? argv[2] : "");
}
