// What the parts of the CUDA slice's check share.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "mstar/device/device.h"

namespace mstar::bench {

// Prints each check as it comes and counts. Thread: one.
class Report {
 public:
  void section(const char* title) { std::printf("\n== %s\n", title); }
  bool check(bool good, const std::string& what, const std::string& detail = {}) {
    std::printf("%s  %s%s%s\n", good ? "ok  " : "FAIL", what.c_str(), detail.empty() ? "" : ": ", detail.c_str());
    std::fflush(stdout);
    ++(good ? num_passed : num_failed);
    if (!good) failures.push_back(what);
    return good;
  }
  // Cases that a tool which slows kernels down a thousandfold gets through (compute-sanitizer's racecheck): their
  // kernels and paths, at small sizes. `work`: bytes placed, or multiplications and additions.
  bool takes(std::int64_t work) const { return !small || work <= kSmallWork; }
  static constexpr std::int64_t kSmallWork = std::int64_t{1} << 21;
  bool small = false;
  int num_passed = 0, num_failed = 0;
  std::vector<std::string> failures;
  std::vector<std::string> table;  // printed last
};

template <class... Args>
std::string text(const char* format, Args... args) {
  char out[512];
  std::snprintf(out, sizeof(out), format, args...);
  return out;
}

// Every CUDA kernel against the CPU's on the ops' case lists, and the same bits for a row in any batch.
void check_ops(Report& report, Device& cuda);
// The same for paged attention on tensor cores, and its times.
void check_attention_tiles(Report& report, Device& cuda);
void time_attention(Report& report, Device& cuda);
// The ops that decoders of text are made of, in f32 and bf16.
void check_row_ops(Report& report, Device& cuda);
// The delta rule and what goes before it.
void check_delta_ops(Report& report, Device& cuda);
void check_delta_mix(Report& report, Device& cuda);
// Matrix products of every dtype, epilogue and kernel.
void check_linear_products(Report& report, Device& cuda);
void time_linear_products(Report& report, Device& cuda);
// Norms that pass between two products; what the products and norms of a layer take one after another.
void check_passed_norms(Report& report, Device& cuda);
void time_layers(Report& report, Device& cuda);
// What these ops take at the shapes of Qwen3.5, beside the time that their bytes take.
void measure_ops(Report& report, Device& cuda);
// Draws against the CPU's with the same random numbers, and their times.
void check_draws(Report& report, Device& cuda);
void time_draws(Report& report, Device& cuda);
// What Whisper's encoder, cross attention and rules call, and their times at large-v3's sizes.
void check_whisper_ops(Report& report, Device& cuda);
void time_whisper_ops(Report& report, Device& cuda);
// What its word times call: scores of alignment heads; the way through them and the probabilities of tokens.
void check_alignment(Report& report, Device& cuda);
void time_alignment(Report& report, Device& cuda);
void check_words(Report& report, Device& cuda);
void time_words(Report& report, Device& cuda);
// What ranks say to each other through each other's memory, and its times.
void check_group(Report& report, Device& cuda);
void time_group(Report& report, Device& cuda);
// The toy decoder: CPU, eager CUDA, captured CUDA.
void check_decoder(Report& report, Device& cuda);
// Host and device time of a step. `num_tokens` per request.
void measure_steps(Report& report, Device& cuda, int num_tokens);
// The same decoder behind a worker: the same tokens with and without running ahead, and what that gains.
void check_worker(Report& report, Device& cuda, int num_tokens);

}  // namespace mstar::bench
