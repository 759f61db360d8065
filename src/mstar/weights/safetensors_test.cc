#include <gtest/gtest.h>

#include <random>

#include "mstar/weights/checkpoint_writer_test.h"
#include "mstar/weights/formats.h"

namespace mstar::weights {
namespace {

using namespace testing;  // NOLINT: the writers of this directory
using ::testing::Test;

std::vector<TestWeight> sample() {
  return {f32("a.weight", {2, 3}, counting(6)),
          f16("a.bias", {2}, {0.5f, -2}),
          bf16("b", {1, 2, 1}, {3, 4}),
          i8("c", {3}, {-1, 0, 127}),
          {"d", DType::i64, {}, raw(std::int64_t{-5})},
          {"e", DType::boolean, {2}, std::string("\x01\x00", 2)},
          {"empty", DType::u8, {0, 4}, ""},
          {"f", DType::i32, {1}, raw(std::int32_t{9})},
          {"g", DType::i16, {1}, raw(std::int16_t{9})}};
}

std::string error_of(const std::string& file) {
  const auto read = read_safetensors(as_span(file), "m.safetensors");
  if (read) return "";
  EXPECT_EQ(read.error().code, Code::bad_model);
  EXPECT_NE(read.error().message.find("m.safetensors"), std::string::npos) << read.error().message;
  return read.error().message;
}
std::string error_of_entry(const std::string& dtype, const std::string& shape, const std::string& offsets,
                           std::size_t data_bytes = 8) {
  const std::string message = error_of(
      safetensors_raw("{" + safetensors_entry("the.name", dtype, shape, offsets) + "}", std::string(data_bytes, 'x')));
  EXPECT_TRUE(message.empty() || message.find("JSON") != std::string::npos ||
              message.find("the.name") != std::string::npos)
      << message;
  return message;
}
void expect_has(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}

TEST(Safetensors, RoundTripsEveryDType) {
  const std::string file = safetensors_file(sample());
  const auto read = read_safetensors(as_span(file), "m.safetensors");
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->size(), sample().size());
  for (std::size_t i = 0; i < read->size(); ++i) {
    const TestWeight wanted = sample()[i];
    const StoredWeight& got = (*read)[i];
    EXPECT_EQ(got.name, wanted.name);
    EXPECT_EQ(got.type, wanted.dtype);
    ASSERT_EQ(got.shape.rank(), static_cast<int>(wanted.dims.size()));
    for (int axis = 0; axis < got.shape.rank(); ++axis)
      EXPECT_EQ(got.shape[axis], static_cast<std::int64_t>(wanted.dims[static_cast<std::size_t>(axis)]));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(got.bytes.data()), got.bytes.size()), wanted.bytes);
  }
}

TEST(Safetensors, ReadsPaddedAndEmptyHeaders) {
  EXPECT_EQ(error_of(safetensors_raw("{}", "")), "");
  EXPECT_EQ(error_of(safetensors_raw("{}      ", "")), "");
  EXPECT_EQ(error_of(safetensors_raw("{\"__metadata__\":{\"a\":\"b\"}}", "")), "");
}

TEST(Safetensors, RefusesDamagedHeaders) {
  expect_has(error_of(""), "header length");
  expect_has(error_of("1234567"), "header length");
  expect_has(error_of(raw(std::uint64_t{1000}) + "{}"), "the header");
  for (const std::uint64_t length :
       {~std::uint64_t{0}, ~std::uint64_t{0} - 7, std::uint64_t{1} << 63, std::uint64_t{100'000'001}})
    expect_has(error_of(raw(length) + "{}"), "over the limit");
  expect_has(error_of(safetensors_raw("", "")), "JSON");
  expect_has(error_of(safetensors_raw("{\"a\":", "")), "JSON");
  expect_has(error_of(safetensors_raw("[]", "")), "not an object");
  expect_has(error_of(safetensors_raw("{\"\xff\xfe\":{}}", "")), "JSON");
  expect_has(error_of(safetensors_raw("{\"a\":7}", "")), "not an object");
  expect_has(error_of(safetensors_raw(std::string(5000, '['), "")), "JSON");
  expect_has(error_of(safetensors_raw("{} {}", "")), "JSON");
}

TEST(Safetensors, RefusesDamagedEntries) {
  EXPECT_EQ(error_of_entry("F32", "[2]", "[0,8]"), "");
  expect_has(error_of_entry("F64", "[1]", "[0,8]"), "F64");
  expect_has(error_of_entry("F32", "[3]", "[0,8]"), "12 bytes, but it holds 8");
  expect_has(error_of_entry("F32", "[-2]", "[0,8]"), "whole numbers");
  expect_has(error_of_entry("F32", "[2.0]", "[0,8]"), "whole numbers");
  expect_has(error_of_entry("F32", "2", "[0,8]"), "no list");
  expect_has(error_of_entry("F32", "[1,1,1,1,1,1,2]", "[0,8]"), "more than 6");
  expect_has(error_of_entry("F32", "[2]", "[0]"), "two numbers");
  expect_has(error_of_entry("F32", "[2]", "[0,8,8]"), "more than 2");
  expect_has(error_of_entry("F32", "[2]", "[8,0]"), "outside");
  expect_has(error_of_entry("F32", "[2]", "[8,16]"), "outside");
  expect_has(error_of_entry("F32", "[2]", "[0,18446744073709551615]"), "outside");
  expect_has(error_of_entry("F32", "[2]", "[18446744073709551608,18446744073709551615]"), "outside");
  expect_has(error_of_entry("F32", "[2]", "[0,18446744073709551616]"), "JSON");
  // Products that wrap to the right count, and zero times the unthinkable.
  expect_has(error_of_entry("U8", "[4294967296,4294967296,8]", "[0,8]"), "any memory");
  expect_has(error_of_entry("U8", "[9223372036854775808,2]", "[0,8]"), "any memory");
  expect_has(error_of_entry("F32", "[0,18446744073709551615]", "[0,0]", 0), "any memory");
  expect_has(error_of_entry("F32", "[4611686018427387904,4]", "[0,0]", 0), "any memory");
}

TEST(Safetensors, RefusesMissingKeysAndNames) {
  expect_has(error_of(safetensors_raw("{\"n\":{\"shape\":[],\"data_offsets\":[0,0]}}", "")), "dtype");
  expect_has(error_of(safetensors_raw("{\"n\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", "")), "shape");
  expect_has(error_of(safetensors_raw("{\"n\":{\"dtype\":\"U8\",\"shape\":[0]}}", "")), "data_offsets");
  expect_has(error_of(safetensors_raw("{" + safetensors_entry("", "U8", "[1]", "[0,1]") + "}", "x")), "empty name");
  expect_has(
      error_of(safetensors_raw("{" + safetensors_entry(std::string(2000, 'n'), "U8", "[1]", "[0,1]") + "}", "x")),
      "name of 2000 bytes");
  const std::string one = safetensors_entry("n", "U8", "[1]", "[0,1]");
  expect_has(error_of(safetensors_raw("{" + one + "," + one + "}", "x")), "twice");
}

TEST(Safetensors, EveryByteOfTheDataHasOneOwner) {
  const auto two = [](const std::string& first, const std::string& second, std::size_t data_bytes) {
    return error_of(safetensors_raw(
        "{" + safetensors_entry("a", "U8", "[4]", first) + "," + safetensors_entry("b", "U8", "[4]", second) + "}",
        std::string(data_bytes, 'x')));
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "");
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "");
  expect_has(two("[0,4]", "[3,7]", 8), "overlap");
  expect_has(two("[0,4]", "[0,4]", 4), "overlap");
  expect_has(two("[0,4]", "[5,9]", 9), "no weight owns the 1 bytes before it");
  expect_has(two("[0,4]", "[4,8]", 9), "last 1 bytes");
}

// A damaged file is an error or a list whose spans stay inside of the file; nothing else.
void expect_sound(const std::string& file) {
  const auto read = read_safetensors(as_span(file), "m");
  if (!read) return;
  for (const StoredWeight& weight : *read) {
    ASSERT_EQ(weight.bytes.size(), weight.type.row_bytes(weight.shape.num_elements()));
    if (weight.bytes.empty()) continue;
    ASSERT_GE(weight.bytes.data(), as_span(file).data());
    ASSERT_LE(weight.bytes.data() + weight.bytes.size(), as_span(file).data() + file.size());
  }
}

TEST(Safetensors, SurvivesTruncationAndBitFlips) {
  const std::string file = safetensors_file(sample());
  for (std::size_t length = 0; length < file.size(); ++length) {
    const std::string cut = file.substr(0, length);
    EXPECT_FALSE(read_safetensors(as_span(cut), "m")) << length;
  }
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string flipped = file;
    for (auto flips = 1 + random() % 3; flips > 0; --flips)
      flipped[random() % flipped.size()] ^= static_cast<char>(1 << (random() % 8));
    expect_sound(flipped);
  }
}

TEST(ShardIndex, ReadsFilesOnceAndRefusesPaths) {
  const std::string good =
      R"({"metadata":{"total_size":8},"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors","c":"x-1.safetensors"}})";
  const auto index = read_shard_index(as_span(good), "i");
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(index->files, (std::vector<std::string>{"x-1.safetensors", "x-2.safetensors"}));
  ASSERT_EQ(index->weights.size(), 3u);
  EXPECT_EQ(index->weights[2], (std::pair<std::string, std::size_t>{"c", 0}));
  for (const char* shard : {"../x.safetensors", "/etc/passwd", "..", ".", "", "a\\\\b", "x\\u0000y"}) {
    const std::string bad = std::string(R"({"weight_map":{"a":")") + shard + "\"}}";
    const auto read = read_shard_index(as_span(bad), "i");
    ASSERT_FALSE(read) << shard;
    expect_has(read.error().message, "plain file name");
  }
  for (const char* bad : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})"})
    EXPECT_FALSE(read_shard_index(as_span(bad), "i")) << bad;
}

}  // namespace
}  // namespace mstar::weights
