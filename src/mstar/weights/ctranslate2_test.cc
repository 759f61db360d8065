#include <gtest/gtest.h>

#include <random>

#include "mstar/weights/checkpoint_writer_test.h"
#include "mstar/weights/formats.h"

namespace mstar::weights {
namespace {

using namespace testing;  // NOLINT: the writers of this directory

std::vector<TestWeight> sample() {
  return {f16("enc/weight", {2, 3}, counting(6)),
          bf16("enc/bias", {2}, {0.5f, -2}),
          i8("dec/weight", {2, 2}, {-1, 0, 127, 5}),
          f32("dec/weight_scale", {2}, {2, 4}),
          {"dec/heads", DType::i16, {}, raw(std::int16_t{6})},
          {"dec/ids", DType::i32, {1}, raw(std::int32_t{-9})}};
}

std::string error_of(const std::string& file) {
  const auto read = read_ctranslate2(as_span(file), "model.bin");
  if (read) return "";
  EXPECT_EQ(read.error().code, Code::bad_model);
  EXPECT_EQ(read.error().message.rfind("'model.bin': ", 0), 0u) << read.error().message;
  return read.error().message;
}
void expect_has(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}
// A file with one variable whose fields after the name are given as bytes.
std::string one_variable(const std::string& fields) {
  return raw(std::uint32_t{6}) + ct2_string("S") + raw(std::uint32_t{3}) + raw(std::uint32_t{1}) + ct2_string("v") +
         fields + raw(std::uint32_t{0});
}
template <class... T>
std::string pack(T... values) {
  return (raw(values) + ...);
}

TEST(CTranslate2, RoundTripsEveryDType) {
  const std::string file = ct2_file(sample(), {{"dec/projection", "dec/weight"}});
  const auto read = read_ctranslate2(as_span(file), "model.bin");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->spec_name, "TestSpec");
  ASSERT_EQ(read->aliases.size(), 1u);
  EXPECT_EQ(read->aliases[0].name, "dec/projection");
  EXPECT_EQ(read->aliases[0].target, "dec/weight");
  ASSERT_EQ(read->weights.size(), sample().size());
  for (std::size_t i = 0; i < sample().size(); ++i) {
    const TestWeight wanted = sample()[i];
    const StoredWeight& got = read->weights[i];
    EXPECT_EQ(got.name, wanted.name);
    EXPECT_EQ(got.type, wanted.dtype);
    EXPECT_EQ(got.shape.rank(), static_cast<int>(wanted.dims.size()));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(got.bytes.data()), got.bytes.size()), wanted.bytes);
  }
  EXPECT_EQ(read->weights[2].divisor, &read->weights[3]);
  EXPECT_TRUE(read->weights[3].is_divisor);
  EXPECT_EQ(read->weights[4].divisor, nullptr);
}

TEST(CTranslate2, RefusesOtherVersionsByNumber) {
  for (const std::uint32_t version : {0u, 1u, 5u, 7u, 0xffffffffu})
    expect_has(error_of(ct2_file(sample(), {}, version)), "version " + std::to_string(version) + ";");
}

TEST(CTranslate2, RefusesDamagedVariables) {
  const std::uint8_t rank1 = 1, u8_type = 1, f32_type = 0;
  const std::uint32_t four = 4;
  expect_has(error_of(one_variable(pack(rank1, four, std::uint8_t{6}, four) + "abcd")), "dtype number 6");
  expect_has(error_of(one_variable(pack(rank1, std::uint32_t{3}, f32_type, four) + "abcd")),
             "12 bytes, but it holds 4");
  expect_has(error_of(one_variable(pack(rank1, four, u8_type, std::uint32_t{0xffffffff}) + "abcd")), "'v'");
  expect_has(error_of(one_variable(pack(std::uint8_t{7}, four, four, four, four, four, four, four, u8_type, four))),
             "7 dimensions");
  expect_has(error_of(one_variable(pack(std::uint8_t{255}))), "'v'");
  const std::uint32_t huge = 0xffffffff, zero = 0;
  expect_has(error_of(one_variable(pack(std::uint8_t{2}, huge, huge, f32_type, four) + "abcd")), "any memory");
  expect_has(error_of(one_variable(pack(std::uint8_t{3}, zero, huge, huge, f32_type, zero))), "any memory");
  // 65536^4 wraps to 0.
  expect_has(error_of(one_variable(pack(std::uint8_t{4}, 65536u, 65536u, 65536u, 65536u, u8_type, zero))),
             "any memory");
}

TEST(CTranslate2, RefusesDamagedStringsAndCounts) {
  const std::string head = raw(std::uint32_t{6}) + ct2_string("S") + raw(std::uint32_t{3});
  expect_has(error_of(head + raw(std::uint32_t{0xffffffff})), "number of variables of 4294967295");
  expect_has(error_of(head + raw(std::uint32_t{0}) + raw(std::uint32_t{0xffffffff})), "number of aliases");
  expect_has(error_of(raw(std::uint32_t{6}) + raw(std::uint16_t{0})), "specification name");
  expect_has(error_of(raw(std::uint32_t{6}) + raw(std::uint16_t{2}) + "ab"), "NUL");
  expect_has(error_of(raw(std::uint32_t{6}) + raw(std::uint16_t{3}) + std::string("a\0\0", 3)), "NUL");
  expect_has(error_of(raw(std::uint32_t{6}) + raw(std::uint16_t{0xffff}) + "ab"), "specification name");
  expect_has(error_of(ct2_file({f32("", {1}, {1})})), "empty name");
  expect_has(error_of(ct2_file({f32(std::string(1025, 'n'), {1}, {1})})), "1025 bytes");
  expect_has(error_of(ct2_file({f32("a", {1}, {1}), f32("a", {1}, {2})})), "'a' is there twice");
  expect_has(error_of(ct2_file(sample()) + "x"), "1 bytes follow");
}

TEST(CTranslate2, PairsScalesWithIntegerWeights) {
  expect_has(error_of(ct2_file({i8("a/weight", {1, 1}, {1})})), "'a/weight' is i8 but has no '_scale'");
  EXPECT_EQ(error_of(ct2_file({i8("a/flag", {}, {1})})), "");
  EXPECT_EQ(error_of(ct2_file({i8("a/weight", {2, 1}, {1, 2}), f32("a/weight_scale", {}, {3})})), "");
  EXPECT_EQ(error_of(ct2_file({{"a/weight", DType::i16, {1}, "xy"}, f32("a/weight_scale", {1}, {3})})), "");
  expect_has(error_of(ct2_file({i8("a/weight", {2, 1}, {1, 2}), f32("a/weight_scale", {3}, {1, 2, 3})})),
             "one per row");
  expect_has(error_of(ct2_file({i8("a/weight", {2, 1}, {1, 2}), f16("a/weight_scale", {2}, {1, 2})})), "must be f32");
  expect_has(error_of(ct2_file({i8("a/weight", {0, 1}, {}), f32("a/weight_scale", {0, 3}, {})})), "one per row");
}

void expect_sound(const std::string& file) {
  const auto read = read_ctranslate2(as_span(file), "m");
  if (!read) return;
  for (const StoredWeight& weight : read->weights) {
    ASSERT_EQ(weight.bytes.size(), weight.type.row_bytes(weight.shape.num_elements()));
    if (weight.bytes.empty()) continue;
    ASSERT_GE(weight.bytes.data(), as_span(file).data());
    ASSERT_LE(weight.bytes.data() + weight.bytes.size(), as_span(file).data() + file.size());
  }
}

TEST(CTranslate2, SurvivesTruncationAndBitFlips) {
  const std::string file = ct2_file(sample(), {{"dec/projection", "dec/weight"}});
  for (std::size_t length = 0; length < file.size(); ++length) {
    const std::string cut = file.substr(0, length);
    EXPECT_FALSE(read_ctranslate2(as_span(cut), "m")) << length;
  }
  std::mt19937 random(13);
  for (int round = 0; round < 20000; ++round) {
    std::string flipped = file;
    for (auto flips = 1 + random() % 3; flips > 0; --flips)
      flipped[random() % flipped.size()] ^= static_cast<char>(1 << (random() % 8));
    expect_sound(flipped);
  }
}

}  // namespace
}  // namespace mstar::weights
