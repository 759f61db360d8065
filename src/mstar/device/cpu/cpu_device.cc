#include "mstar/device/cpu/cpu_device.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <system_error>

#include "mstar/device/cpu/huge_pages.h"

namespace mstar {
namespace {

class ReachedEvent final : public Event {
 public:
  void record(Stream) override { at_ = std::chrono::steady_clock::now(); }
  void wait() override {}
  bool reached() const override { return true; }
  void wait_on(Stream) override {}
  double us_since(const Event& earlier) const override {
    return std::chrono::duration<double, std::micro>(at_ - static_cast<const ReachedEvent&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "cpu";
}

std::string first_word_of(const char* path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

class CpuDevice final : public Device {
 public:
  DeviceId id() const override { return {Backend::cpu, 0}; }
  std::string description() const override {
    return processor_name() + ", " + std::to_string(total_bytes() >> 20) + " MiB";
  }
  std::size_t total_bytes() const override {
    const auto physical =
        static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
    return usable_memory_bytes(physical, first_word_of("/sys/fs/cgroup/memory.max"),
                               first_word_of("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  }
  Result<void*> allocate(std::size_t bytes) override {
    void* pointer = ::operator new (bytes ? bytes : 1, std::align_val_t{256}, std::nothrow);
    if (!pointer)
      return exhausted("no memory for " + std::to_string(bytes) + " bytes; lower --memory or the limits in the config");
    num_allocations_.fetch_add(1, std::memory_order_relaxed);
    return pointer;
  }
  void release(void* pointer) override { ::operator delete (pointer, std::align_val_t{256}); }
  Result<void*> allocate_weights(std::size_t bytes) override {
    void* const pointer = weights_.take(bytes);
    if (!pointer)
      return exhausted("no memory for weights of " + std::to_string(bytes) + " bytes; take a smaller model or format");
    num_allocations_.fetch_add(1, std::memory_order_relaxed);
    return pointer;
  }
  void release_weights(void* pointer) override { weights_.give_back(pointer); }
  Result<void*> allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(void* pointer) override { release(pointer); }
  std::int64_t num_allocations() const override { return num_allocations_.load(std::memory_order_relaxed); }
  Stream default_stream() override { return {}; }
  Result<std::unique_ptr<Event>> make_event(bool) override { return std::unique_ptr<Event>(new ReachedEvent); }
  void copy_to_device(void* to, const void* from, std::size_t bytes, Stream) override { move(to, from, bytes); }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream) override { move(to, from, bytes); }
  void copy_within(void* to, const void* from, std::size_t bytes, Stream) override { move(to, from, bytes); }
  void fill_zero(void* to, std::size_t bytes, Stream) override {
    if (bytes) std::memset(to, 0, bytes);
  }
  void synchronize(Stream) override {}

 private:
  static void move(void* to, const void* from, std::size_t bytes) {
    if (bytes) std::memmove(to, from, bytes);
  }
  std::atomic<std::int64_t> num_allocations_{0};
  HugePages weights_;
};

}  // namespace

std::size_t usable_memory_bytes(std::size_t physical_bytes, std::string_view v2_limit, std::string_view v1_limit) {
  std::size_t out = physical_bytes;
  for (const std::string_view limit : {v2_limit, v1_limit}) {
    std::uint64_t bytes = 0;
    const auto [end, error] = std::from_chars(limit.data(), limit.data() + limit.size(), bytes);
    if (error == std::errc() && end == limit.data() + limit.size() && bytes > 0)
      out = std::min<std::size_t>(out, bytes);
  }
  return out;
}

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

CpuFeatures cpu_features() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_leaf = __get_cpuid(1, &a, &b, &c, &d) != 0;
  return {.avx2 = __builtin_cpu_supports("avx2") != 0,
          .fma = __builtin_cpu_supports("fma") != 0,
          .f16c = has_leaf && (c & bit_F16C) != 0,
          .bmi2 = __builtin_cpu_supports("bmi2") != 0};
#else
  return {true, true, true, true};
#endif
}

std::string missing_cpu_features(const CpuFeatures& features) {
  std::string missing;
  const auto need = [&](bool has, const char* name) {
    if (!has) missing += std::string(missing.empty() ? "" : ", ") + name;
  };
  need(features.avx2, "AVX2");
  need(features.fma, "FMA");
  need(features.f16c, "F16C");
  need(features.bmi2, "BMI2");
  return missing;
}

Status check_cpu_features(const CpuFeatures& features) {
  const std::string missing = missing_cpu_features(features);
  if (missing.empty()) return ok_status();
  return unavailable(
      "mstar needs a processor with AVX2, FMA, F16C and BMI2 (x86-64-v3: Intel since Haswell, AMD since "
      "Zen); this one, or the virtual machine on it, lacks " +
      missing);
}

}  // namespace mstar
