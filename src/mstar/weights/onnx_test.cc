#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "mstar/weights/formats.h"

namespace mstar::weights {
namespace {

using testing::HasSubstr;

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>((value & 127) | 128);
  return out + static_cast<char>(value);
}
std::string number(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string bytes(int field, const std::string& value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}
std::string tensor(const std::string& name, std::vector<std::uint64_t> dims, int type, const std::string& data) {
  std::string out;
  for (const std::uint64_t dim : dims) out += number(1, dim);
  return out + number(2, static_cast<std::uint64_t>(type)) + bytes(8, name) + bytes(9, data);
}
std::string model(const std::string& graph) {
  return number(1, 8) + bytes(2, "maker") + bytes(7, graph) + number(5, 1);
}
Result<std::vector<StoredWeight>> read(const std::string& text) {
  return read_onnx(std::as_bytes(std::span(text)), "model.onnx");
}

TEST(Onnx, InitialisersComeOut) {
  const float values[2] = {1.5f, -2};
  const std::string data(reinterpret_cast<const char*>(values), sizeof values);
  const std::string text = model(bytes(1, "a node") + bytes(5, tensor("w", {1, 2}, 1, data)) +
                                 bytes(5, tensor("shape", {1}, 7, std::string(8, 0))) +  // i64: none of ours
                                 bytes(5, tensor("b", {2}, 10, std::string(4, 1))) + bytes(2, "name"));
  const auto got = read(text);
  ASSERT_TRUE(got) << got.error().message;
  ASSERT_EQ(got->size(), 2u);
  EXPECT_EQ((*got)[0].name, "w");
  EXPECT_EQ((*got)[0].shape, (Shape{1, 2}));
  float first = 0;
  std::memcpy(&first, (*got)[0].bytes.data(), sizeof first);
  EXPECT_EQ(first, 1.5f);
  EXPECT_EQ((*got)[1].type.dtype(), DType::f16);
}

TEST(Onnx, WhatIsNoneIsRefused) {
  EXPECT_THAT(read("").error().message, HasSubstr("no ONNX model"));
  EXPECT_THAT(read("hello, this is no model at all").error().message, HasSubstr("no ONNX model"));
  const std::string whole = model(bytes(5, tensor("w", {2}, 1, std::string(8, 0))));
  ASSERT_TRUE(read(whole));
  for (std::size_t size = 1; size < whole.size() - 2; ++size) EXPECT_FALSE(read(whole.substr(0, size))) << size;
  EXPECT_FALSE(read(model(bytes(5, tensor("w", {3}, 1, std::string(8, 0))))));
  EXPECT_FALSE(read(model(bytes(5, tensor("", {2}, 1, std::string(8, 0))))));
  EXPECT_FALSE(read(model(bytes(5, tensor("w", {std::uint64_t{1} << 62, 8}, 1, std::string(8, 0))))));
  EXPECT_THAT(read(model(bytes(5, tensor("w", {2}, 1, std::string(8, 0)) + number(14, 1)))).error().message,
              HasSubstr("another file"));
}

}  // namespace
}  // namespace mstar::weights
