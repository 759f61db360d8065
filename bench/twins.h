// Runs calls on the CPU and on the GPU and compares what they wrote.
#pragma once

#include <functional>
#include <random>

#include "cuda_slice.h"
#include "mstar/device/cpu/cpu_device.h"
#include "twin.h"

namespace mstar::bench {

inline std::vector<float> draw(std::int64_t count, std::uint32_t seed, float spread = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& value : out) value = normal(generator);
  return out;
}

// The CPU and the GPU side by side.
class Twins {
 public:
  Twins(Report& report, Device& cuda, int cpu_threads = 2)
      : report_(report), cpu_(make_cpu_device()), pool_(cpu_threads), cuda_(cuda) {
    for (Side* side : {&cpu_side_, &cuda_side_}) {
      Device& device = side == &cpu_side_ ? *cpu_ : cuda_;
      auto memory = device.allocate(kArenaBytes);
      MSTAR_CHECK(memory.has_value(), "no memory for the arena");
      side->memory = *memory;
      side->arena = Arena(*memory, kArenaBytes);
    }
  }
  ~Twins() {
    cpu_->release(cpu_side_.memory);
    cuda_.release(cuda_side_.memory);
  }
  using Call = std::function<Status(OpContext&, Place&)>;
  // Runs the call on both and adds what they wrote to `difference`. `cuda_outputs` gets the GPU's, `cpu_outputs` the
  // CPU's. A case that the report does not take runs on the CPU alone, whose outputs stand for both.
  bool run(const Call& call, Difference& difference, std::vector<float>* cuda_outputs = nullptr,
           std::vector<float>* cpu_outputs = nullptr) {
    Place cpu_place(*cpu_), cuda_place(cuda_);
    OpContext cpu_context{*cpu_, {}, cpu_side_.arena, &pool_};
    OpContext cuda_context{cuda_, cuda_.default_stream(), cuda_side_.arena};
    for (auto* each : {&cpu_context, &cuda_context}) {
      const bool on_cpu = each == &cpu_context;
      if (!on_cpu && !report_.takes(static_cast<std::int64_t>(cpu_place.bytes()))) {
        for (auto* outputs : {cuda_outputs, cpu_outputs})
          if (outputs) *outputs = cpu_place.outputs();
        return true;
      }
      if (Status ran = call(*each, on_cpu ? cpu_place : cuda_place); !ran)
        return report_.check(false, on_cpu ? "call on the CPU" : "call on the GPU", ran.error().message);
    }
    const auto got = cuda_place.outputs();
    const auto expected = cpu_place.outputs();
    difference.add(got, expected);
    if (cpu_outputs) *cpu_outputs = expected;
    if (cuda_outputs) *cuda_outputs = got;
    return true;
  }
  // Runs the call on the GPU alone, whatever its size. What it wrote; empty after a fault, which is reported.
  std::vector<float> run_on_gpu(const Call& call) {
    Place place(cuda_);
    OpContext context{cuda_, cuda_.default_stream(), cuda_side_.arena};
    if (Status ran = call(context, place); !ran) {
      report_.check(false, "call on the GPU", ran.error().message);
      return {};
    }
    return place.outputs();
  }
  // The worst element may differ by `tolerance` of max(1, itself), a whole case's outputs by `relative` of their norm.
  void judge(const std::string& name, const Difference& d, double tolerance, double relative = 1e-5) {
    if (d.num_cases == 0 && report_.small)
      return void(std::printf("skip  %s: no case is small enough\n", name.c_str()));
    report_.check(d.same_places && d.largest <= tolerance && d.relative <= relative && d.num_cases > 0, name,
                  text("%d cases, error %.2e, relative %.2e%s", d.num_cases, d.largest, d.relative,
                       d.same_places ? "" : ", a guard or an infinity differs"));
  }
  Report& report() { return report_; }
  Device& cpu() { return *cpu_; }
  Device& cuda() { return cuda_; }

 private:
  static constexpr std::size_t kArenaBytes = std::size_t{64} << 20;
  struct Side {
    void* memory = nullptr;
    Arena arena;
  };
  Report& report_;
  std::unique_ptr<Device> cpu_;
  ThreadPool pool_;
  Device& cuda_;
  Side cpu_side_, cuda_side_;
};

// Heads of a fused projection, from column `first` on: [tokens, heads, d].
inline TensorView part_of(TensorView fused, std::int64_t first, int heads, int d) {
  fused.pointer = fused.data<std::byte>() + first * static_cast<std::int64_t>(dtype_bytes(fused.dtype));
  const std::int64_t stride = fused.stride(0);
  fused.shape = {fused.dim(0), heads, d};
  fused.strides = {stride, d, 1};
  return fused;
}

}  // namespace mstar::bench
