// The CUDA slice in one run: kernels against the CPU's, a toy decoder on the CPU, eager and captured, and what a step
// costs the host. Ends with a short table and "N passed, M failed"; exit status 0 when nothing failed.
#include "cuda_slice.h"

#include <cstdlib>
#include <initializer_list>
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

// A part of it: what is compared, and what is timed.
struct Part {
  std::string_view name;
  std::initializer_list<void (*)(Report&, Device&)> checks, times;
};
const Part kParts[] = {
    {"ops", {check_ops}, {}},
    {"attention", {check_attention_tiles, check_row_ops}, {time_attention}},
    {"delta", {check_delta_ops, check_delta_mix}, {measure_ops}},
    {"linear", {check_linear_products, check_passed_norms}, {time_linear_products}},
    {"layers", {}, {time_layers}},
    {"draws", {check_draws}, {time_draws}},
    {"whisper", {check_whisper_ops}, {time_whisper_ops}},
    {"alignment", {check_alignment}, {time_alignment}},
    {"words", {check_words}, {time_words}},
    {"group", {check_group}, {time_group}},
};

void run_part(Report& report, Device& cuda, const Part& part, bool timed) {
  report.section(std::string(part.name).c_str());
  for (const auto check : part.checks) check(report, cuda);
  if (timed)
    for (const auto time : part.times) time(report, cuda);
}

void run_parts(Report& report, Device& cuda, int num_tokens, std::string_view name, bool timed) {
  for (const Part& part : kParts)
    if (part.name == name) return run_part(report, cuda, part, timed);
  if (!name.empty() && name != "all") {
    std::string names;
    for (const Part& part : kParts) names += std::string(part.name) + ", ";
    report.check(false, "no part '" + std::string(name) + "': " + names + "or all");
    return;
  }
  if (timed) {
    measure_copy(report, cuda);
    measure_node(report, cuda);
  }
  for (const Part& part : kParts) run_part(report, cuda, part, timed);
  report.section("toy decoder");
  check_decoder(report, cuda);
  if (!timed) return;
  report.section("cost of a step");
  measure_steps(report, cuda, num_tokens);
  report.section("a worker");
  check_worker(report, cuda, num_tokens);
}

int run(int num_tokens, std::string_view part, bool timed, bool small) {
  Report report;
  report.small = small;
  report.section("machine");
  std::printf("host: %s\n", make_cpu_device()->description().c_str());
  auto cuda = make_cuda_device(0);
  if (!cuda) {
    report.check(false, "a CUDA device", cuda.error().message);
  } else {
    std::printf("device: %s\n", (*cuda)->description().c_str());
    run_parts(report, **cuda, num_tokens, part, timed);
    std::printf("\n== summary\n");
    for (const std::string& line : report.table) std::printf("%s\n", line.c_str());
  }
  for (const std::string& failure : report.failures) std::printf("failed: %s\n", failure.c_str());
  std::printf("%d passed, %d failed\n", report.num_passed, report.num_failed);
  return report.num_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mstar::bench

// Arguments: tokens per request of the timing (default 300); a part (kParts) or all; "checks" for no times, "small" for
// no large cases either, as beside compute-sanitizer.
int main(int argc, char** argv) {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // see cuda_slice_group.cc
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
           0);  // streams of ranks that share a GPU must not queue behind each other
  const int num_tokens = argc > 1 ? std::atoi(argv[1]) : 300;
  const std::string_view extent = argc > 3 ? argv[3] : "";
  const bool small = extent == "small", timed = !small && extent != "checks";
  return mstar::bench::run(std::min(std::max(num_tokens, 64), 480), argc > 2 ? argv[2] : "", timed, small);
}
