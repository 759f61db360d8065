#include "mstar/device/device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/cpu/huge_pages.h"
#include "mstar/device/cuda/cuda_device.h"

namespace mstar {
namespace {

TEST(CpuDevice, CountsAllocationsAndRefusesWhatCannotBe) {
  auto device = make_cpu_device();
  EXPECT_EQ(device->num_allocations(), 0);
  auto memory = device->allocate(100);
  ASSERT_TRUE(memory);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*memory) % 256, 0u);
  EXPECT_EQ(device->num_allocations(), 1);
  device->release(*memory);
  const auto huge = device->allocate(std::size_t{1} << 62);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, Code::exhausted);
  EXPECT_FALSE(device->supports_capture());
  EXPECT_FALSE(device->is_asynchronous());
  EXPECT_FALSE(device->begin_capture({}));
}

TEST(HugePages, PiecesLieApartAndChunksGoBackWithTheLast) {
  HugePages pages;
  std::vector<std::span<unsigned char>> pieces;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{1000}, std::size_t{60} << 20, std::size_t{5} << 20, std::size_t{70} << 20}) {
    auto* const at = static_cast<unsigned char*>(pages.take(bytes));
    ASSERT_NE(at, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % 256, 0u);
    pieces.emplace_back(at, bytes);
    for (std::size_t i = 0; i < bytes; i += 4096) at[i] = static_cast<unsigned char>(pieces.size());
    at[bytes - 1] = static_cast<unsigned char>(pieces.size());
  }
  EXPECT_EQ(pages.num_chunks(), 3u);  // 60 MiB and the small ones, 5 MiB, 70 MiB
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].front(), i + 1);
    EXPECT_EQ(pieces[i].back(), i + 1);
    pages.give_back(pieces[i].data());
  }
  EXPECT_EQ(pages.num_chunks(), 0u);
  EXPECT_EQ(pages.take(SIZE_MAX - 4096), nullptr);
}

TEST(CpuDevice, AContainersLimitCounts) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  EXPECT_EQ(usable_memory_bytes(64 * kGiB, "", ""), 64 * kGiB);
  EXPECT_EQ(usable_memory_bytes(64 * kGiB, "max", ""), 64 * kGiB);
  EXPECT_EQ(usable_memory_bytes(64 * kGiB, "2147483648", ""), 2 * kGiB);
  EXPECT_EQ(usable_memory_bytes(64 * kGiB, "", "2147483648"), 2 * kGiB);
  EXPECT_EQ(usable_memory_bytes(64 * kGiB, "", "9223372036854771712"), 64 * kGiB);  // v1 without a limit
  EXPECT_EQ(usable_memory_bytes(64 * kGiB, "12 GiB", "0"), 64 * kGiB);
  EXPECT_EQ(usable_memory_bytes(kGiB, "2147483648", ""), kGiB);
}

TEST(CpuDevice, EventsAreReachedAndMeasureTime) {
  auto device = make_cpu_device();
  auto first = device->make_event(true), second = device->make_event(true);
  ASSERT_TRUE(first && second);
  (*first)->record({});
  (*second)->record({});
  EXPECT_TRUE((*first)->reached());
  EXPECT_GE((*second)->us_since(**first), 0);
}

// On a machine without a GPU this is all that can be said of it; with one, the rest of the test runs.
TEST(CpuFeatures, WhatAnOlderProcessorLacksIsNamed) {
  const CpuFeatures all{true, true, true, true};
  EXPECT_TRUE(check_cpu_features(all).ok());
  EXPECT_EQ(missing_cpu_features(all), "");
  EXPECT_EQ(missing_cpu_features({}), "AVX2, FMA, F16C, BMI2");
  CpuFeatures ivy_bridge;
  ivy_bridge.f16c = true;
  const Status refused = check_cpu_features(ivy_bridge);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::unavailable);
  EXPECT_NE(refused.error().message.find("needs a processor with AVX2"), std::string::npos);
  EXPECT_NE(refused.error().message.find("lacks AVX2, FMA, BMI2"), std::string::npos) << refused.error().message;
}

TEST(CudaDevice, IsUnavailableWithAReasonOrWorks) {
  const auto beyond = make_cuda_device(num_cuda_devices());
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, Code::unavailable);
  EXPECT_FALSE(beyond.error().message.empty());
  EXPECT_FALSE(make_cuda_device(-1));
  if (num_cuda_devices() == 0) GTEST_SKIP() << beyond.error().message;

  auto made = make_cuda_device(0);
  ASSERT_TRUE(made) << made.error().message;
  Device& device = **made;
  const Stream stream = device.default_stream();
  auto on_device = device.allocate(4096), pinned = device.allocate_host(4096);
  ASSERT_TRUE(on_device && pinned);
  std::memset(*pinned, 7, 4096);
  device.copy_to_device(*on_device, *pinned, 4096, stream);
  std::memset(*pinned, 0, 4096);
  device.copy_to_host(*pinned, *on_device, 4096, stream);
  device.synchronize(stream);
  EXPECT_EQ(static_cast<const char*>(*pinned)[4095], 7);
  const auto huge = device.allocate(std::size_t{1} << 50);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, Code::exhausted);

  ASSERT_TRUE(device.begin_capture(stream));
  EXPECT_FALSE(device.allocate(16));
  device.fill_zero(*on_device, 4096, stream);
  device.copy_to_host(*pinned, *on_device, 4096, stream);
  auto graph = device.end_capture(stream);
  ASSERT_TRUE(graph) << graph.error().message;
  EXPECT_EQ((*graph)->num_nodes(), 2u);
  EXPECT_EQ(static_cast<const char*>(*pinned)[4095], 7);
  ASSERT_TRUE((*graph)->launch(stream));
  device.synchronize(stream);
  EXPECT_EQ(static_cast<const char*>(*pinned)[4095], 0);
  device.release(*on_device);
  device.release_host(*pinned);
}

}  // namespace
}  // namespace mstar
