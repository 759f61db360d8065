#include "mstar/weights/loaded_weight.h"

#include <gtest/gtest.h>

#include <limits>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/weights/checkpoint_writer_test.h"

namespace mstar::weights {
namespace {

using namespace testing;  // NOLINT: the writers of this directory

// A device that only copies reach: what is written to its memory otherwise would not be seen as copied bytes.
class CopyingDevice final : public Device {
 public:
  DeviceId id() const override { return {Backend::cuda, 0}; }
  std::string description() const override { return "copying"; }
  std::size_t total_bytes() const override { return 0; }
  Result<void*> allocate(std::size_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* pointer) override { cpu_->release(pointer); }
  Result<void*> allocate_host(std::size_t bytes) override {
    ++num_host_blocks;
    return cpu_->allocate(bytes);
  }
  void release_host(void* pointer) override {
    --num_host_blocks;
    cpu_->release(pointer);
  }
  Stream default_stream() override { return {}; }
  Result<std::unique_ptr<Event>> make_event(bool timed) override { return cpu_->make_event(timed); }
  std::int64_t num_allocations() const override { return cpu_->num_allocations(); }
  void copy_to_device(void* to, const void* from, std::size_t bytes, Stream) override {
    ++num_copies;
    copied_bytes += bytes;
    std::memcpy(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream) override { std::memcpy(to, from, bytes); }
  void copy_within(void* to, const void* from, std::size_t bytes, Stream) override { std::memmove(to, from, bytes); }
  void fill_zero(void* to, std::size_t bytes, Stream) override { std::memset(to, 0, bytes); }
  void synchronize(Stream) override {}

  int num_host_blocks = 0;
  int num_copies = 0;
  std::size_t copied_bytes = 0;

 private:
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

WeightPart part_of(const std::string& storage, std::size_t offset, DType dtype, std::int64_t rows,
                   std::int64_t columns) {
  return {.source = "s",
          .type = dtype,
          .num_rows = rows,
          .row_elements = columns,
          .row_stride_bytes = columns * static_cast<std::int64_t>(dtype_bytes(dtype)),
          .rows = reinterpret_cast<const std::byte*>(storage.data() + offset)};
}

TEST(LoadedWeight, WidensEveryDTypeAtAnyAddress) {
  const struct {
    DType dtype;
    std::string bytes;
  } cases[] = {{DType::f32, raw_list<float>({1, -2, 3, 4})},
               {DType::f16, f16_list({1, -2, 3, 4})},
               {DType::bf16, bf16_list({1, -2, 3, 4})},
               {DType::i8, raw_list<std::int8_t>({1, -2, 3, 4})},
               {DType::i16, raw_list<std::int16_t>({1, -2, 3, 4})},
               {DType::i32, raw_list<std::int32_t>({1, -2, 3, 4})},
               {DType::i64, raw_list<std::int64_t>({1, -2, 3, 4})}};
  for (const auto& each : cases)
    for (std::size_t offset = 0; offset < 9; ++offset) {
      const std::string storage = std::string(offset, '?') + each.bytes;
      const LoadedWeight weight("h", {2, 2}, {part_of(storage, offset, each.dtype, 2, 2)});
      EXPECT_EQ(weight.to_f32(), (std::vector<float>{1, -2, 3, 4})) << dtype_name(each.dtype) << " " << offset;
      EXPECT_EQ(weight.stored_type(), each.dtype);
    }
}

// q / divisor is what the converter of CTranslate2 undoes; the product with 1 / divisor differs in the last bit.
TEST(LoadedWeight, DividesByTheScale) {
  const std::string storage = raw_list<std::int8_t>({127, -7, 3, 1});
  WeightPart part = part_of(storage, 0, DType::i8, 2, 2);
  part.divisors = {49.0f, 3.0f};
  const LoadedWeight weight("h", {2, 2}, {part});
  EXPECT_EQ(weight.to_f32(), (std::vector<float>{127.0f / 49.0f, -7.0f / 49.0f, 3.0f / 3.0f, 1.0f / 3.0f}));
  const AlignedParts aligned = weight.aligned();
  ASSERT_EQ(aligned.parts().size(), 1u);
  EXPECT_EQ(aligned.parts()[0].row_scale[0], 1.0f / 49.0f);
  EXPECT_EQ(aligned.parts()[0].row_scale[1], 1.0f / 3.0f);
}

LoadedWeight three_parts(const std::string& first, const std::string& second) {
  WeightPart zeros{.num_rows = 2, .row_elements = 2};
  return LoadedWeight("h", {5, 2}, {part_of(first, 0, DType::f32, 1, 2), zeros, part_of(second, 1, DType::f16, 2, 2)});
}

TEST(LoadedWeight, CutsRowsAcrossParts) {
  const std::string first = raw_list<float>({1, 2});
  const std::string second = "?" + f16_list({3, 4, 5, 6});
  const LoadedWeight weight = three_parts(first, second);
  const std::vector<float> all = {1, 2, 0, 0, 0, 0, 3, 4, 5, 6};
  EXPECT_EQ(weight.to_f32(), all);
  EXPECT_EQ(weight.stored_type(), DType::f32);
  for (std::int64_t begin = 0; begin <= 5; ++begin)
    for (std::int64_t end = begin; end <= 5; ++end) {
      const LoadedWeight cut = weight.rows(begin, end);
      EXPECT_EQ(cut.shape(), (Shape{end - begin, 2}));
      EXPECT_EQ(cut.to_f32(), std::vector<float>(all.begin() + begin * 2, all.begin() + end * 2));
      std::vector<float> into(static_cast<std::size_t>(end - begin) * 2);
      weight.rows_to_f32(begin, end, into);
      EXPECT_EQ(into, cut.to_f32());
    }
}

TEST(LoadedWeight, AlignsWhatIsNot) {
  const std::string first = raw_list<float>({1, 2});
  const std::string second = "?" + f16_list({3, 4, 5, 6});
  const LoadedWeight weight = three_parts(first, second);
  const AlignedParts aligned = weight.aligned();
  ASSERT_EQ(aligned.parts().size(), 3u);
  EXPECT_EQ(aligned.parts()[0].weight.pointer, first.data()) << "aligned bytes stay in the file";
  EXPECT_EQ(aligned.parts()[1].weight.at(1).data<float>()[1], 0.0f);
  const TensorView halves = aligned.parts()[2].weight;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(halves.pointer) % 2, 0u);
  EXPECT_EQ(to_float(halves.at(1).data<Half>()[1]), 6.0f);
  EXPECT_EQ(aligned.parts()[2].row_scale, nullptr);
}

TEST(LoadedWeight, BecomesTensorsOnBothKindsOfDevice) {
  const std::string first = raw_list<float>({1, 2.0001f});
  const std::string second = "?" + f16_list({3, 4, 5, 6});
  const LoadedWeight weight = three_parts(first, second);
  const auto cpu = make_cpu_device();
  CopyingDevice gpu;
  for (Device* device : {cpu.get(), static_cast<Device*>(&gpu)}) {
    const auto wide = weight.to_tensor(*device, DType::f32);
    ASSERT_TRUE(wide) << wide.error().message;
    EXPECT_EQ(wide->view().shape, (Shape{5, 2}));
    EXPECT_EQ(std::vector<float>(wide->view().data<float>(), wide->view().data<float>() + 10), weight.to_f32());
    const auto half = weight.to_tensor(*device, DType::f16);
    const auto brain = weight.to_tensor(*device, DType::bf16);
    for (std::size_t i = 0; i < 10; ++i) {
      EXPECT_EQ(half->view().data<Half>()[i].bits, to_half(weight.to_f32()[i]).bits);
      EXPECT_EQ(brain->view().data<BFloat16>()[i].bits, to_bfloat16(weight.to_f32()[i]).bits);
    }
    EXPECT_FALSE(weight.to_tensor(*device, DType::i32));
  }
  EXPECT_EQ(gpu.num_host_blocks, 0);
  EXPECT_EQ(gpu.copied_bytes, 40u + 20 + 20);
}

TEST(LoadedWeight, StagesLargeTensorsInBlocks) {
  constexpr std::int64_t kRows = 3000, kColumns = 4096;  // 48 MiB in f32
  std::string storage(static_cast<std::size_t>(kRows * kColumns), '\0');
  for (std::size_t i = 0; i < storage.size(); ++i) storage[i] = static_cast<char>(i * 2654435761u >> 24);
  const LoadedWeight weight("h", {kRows, kColumns}, {part_of(storage, 0, DType::i8, kRows, kColumns)});
  CopyingDevice gpu;
  const auto tensor = weight.to_tensor(gpu, DType::f32);
  ASSERT_TRUE(tensor);
  EXPECT_EQ(gpu.num_copies, 3);
  int wrong = 0;
  for (std::int64_t i = 0; i < kRows * kColumns; ++i)
    wrong += tensor->view().data<float>()[i] !=
             static_cast<float>(static_cast<signed char>(storage[static_cast<std::size_t>(i)]));
  EXPECT_EQ(wrong, 0);
}

TEST(LoadedWeight, KeepsIntegersAsTheyAre) {
  const auto cpu = make_cpu_device();
  const std::string storage = raw_list<std::int64_t>({std::numeric_limits<std::int64_t>::max(), -1});
  const LoadedWeight weight("h", {2}, {part_of(storage, 0, DType::i64, 2, 1)});
  const auto tensor = weight.to_tensor(*cpu, DType::i64);
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->view().data<std::int64_t>()[0], std::numeric_limits<std::int64_t>::max());
  WeightPart scaled = part_of(storage, 0, DType::i8, 2, 1);
  scaled.divisors = {1, 2};
  EXPECT_FALSE(LoadedWeight("h", {2}, {scaled}).to_tensor(*cpu, DType::i8));
}

TEST(LoadedWeight, ScalarsAndEmptyOnes) {
  const std::string storage = raw(2.5f);
  const LoadedWeight scalar("h", {}, {part_of(storage, 0, DType::f32, 1, 1)});
  EXPECT_EQ(scalar.to_f32(), std::vector<float>{2.5f});
  // No elements but as many rows as an outside number says: nothing may loop over them.
  const LoadedWeight empty("h", {std::int64_t{1} << 60, 0},
                           {part_of(storage, 0, DType::f32, std::int64_t{1} << 60, 0)});
  EXPECT_TRUE(empty.to_f32().empty());
  CopyingDevice gpu;
  EXPECT_TRUE(empty.to_tensor(gpu, DType::f16));
  EXPECT_EQ(empty.aligned().parts().size(), 1u);
}

}  // namespace
}  // namespace mstar::weights
