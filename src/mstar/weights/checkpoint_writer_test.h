// Writers of small checkpoint files for the tests of this directory, with every field open to be written wrongly.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mstar/base/dtype.h"

namespace mstar::weights::testing {

template <class T>
std::string raw(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
template <class T>
std::string raw_list(const std::vector<T>& values) {
  std::string out;
  for (const T& value : values) out += raw(value);
  return out;
}
inline std::string f16_list(const std::vector<float>& values) {
  std::string out;
  for (const float value : values) out += raw(to_half(value).bits);
  return out;
}
inline std::string bf16_list(const std::vector<float>& values) {
  std::string out;
  for (const float value : values) out += raw(to_bfloat16(value).bits);
  return out;
}
inline std::vector<float> counting(int count, float first = 0) {
  std::vector<float> out;
  for (int i = 0; i < count; ++i) out.push_back(first + static_cast<float>(i));
  return out;
}
inline std::span<const std::byte> as_span(const std::string& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

struct TestWeight {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::uint64_t> dims;
  std::string bytes;
};
inline TestWeight f32(std::string name, std::vector<std::uint64_t> dims, const std::vector<float>& values) {
  return {std::move(name), DType::f32, std::move(dims), raw_list(values)};
}
inline TestWeight f16(std::string name, std::vector<std::uint64_t> dims, const std::vector<float>& values) {
  return {std::move(name), DType::f16, std::move(dims), f16_list(values)};
}
inline TestWeight bf16(std::string name, std::vector<std::uint64_t> dims, const std::vector<float>& values) {
  return {std::move(name), DType::bf16, std::move(dims), bf16_list(values)};
}
inline TestWeight i8(std::string name, std::vector<std::uint64_t> dims, const std::vector<std::int8_t>& values) {
  return {std::move(name), DType::i8, std::move(dims), raw_list(values)};
}

// Length, header and data as given.
inline std::string safetensors_raw(const std::string& header, const std::string& data) {
  return raw(static_cast<std::uint64_t>(header.size())) + header + data;
}
inline std::string safetensors_entry(const std::string& name, const std::string& dtype, const std::string& shape,
                                     const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}
inline std::string safetensors_file(const std::vector<TestWeight>& weights) {
  constexpr std::pair<DType, const char*> kNames[] = {
      {DType::f32, "F32"}, {DType::f16, "F16"}, {DType::bf16, "BF16"}, {DType::i8, "I8"},       {DType::u8, "U8"},
      {DType::i16, "I16"}, {DType::i32, "I32"}, {DType::i64, "I64"},   {DType::boolean, "BOOL"}};
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::string data;
  for (const TestWeight& weight : weights) {
    std::string shape, dtype;
    for (const std::uint64_t dim : weight.dims) shape += (shape.empty() ? "" : ",") + std::to_string(dim);
    for (const auto& [each, name] : kNames)
      if (each == weight.dtype) dtype = name;
    const std::size_t begin = data.size();
    data += weight.bytes;
    header += "," + safetensors_entry(weight.name, dtype, "[" + shape + "]",
                                      "[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]");
  }
  return safetensors_raw(header + "}", data);
}

inline std::string ct2_string(const std::string& text) {
  return raw(static_cast<std::uint16_t>(text.size() + 1)) + text + std::string(1, '\0');
}
inline std::string ct2_variable(const TestWeight& weight) {
  constexpr DType kDTypes[] = {DType::f32, DType::i8, DType::i16, DType::i32, DType::f16, DType::bf16};
  std::string out = ct2_string(weight.name) + raw(static_cast<std::uint8_t>(weight.dims.size()));
  for (const std::uint64_t dim : weight.dims) out += raw(static_cast<std::uint32_t>(dim));
  std::uint8_t dtype = 0;
  while (dtype < std::size(kDTypes) && kDTypes[dtype] != weight.dtype) ++dtype;
  return out + raw(dtype) + raw(static_cast<std::uint32_t>(weight.bytes.size())) + weight.bytes;
}
using TestAliases = std::vector<std::pair<std::string, std::string>>;
inline std::string ct2_file(const std::vector<TestWeight>& weights, const TestAliases& aliases = {},
                            std::uint32_t version = 6) {
  std::string out = raw(version) + ct2_string("TestSpec") + raw(std::uint32_t{3});
  out += raw(static_cast<std::uint32_t>(weights.size()));
  for (const TestWeight& weight : weights) out += ct2_variable(weight);
  out += raw(static_cast<std::uint32_t>(aliases.size()));
  for (const auto& [name, target] : aliases) out += ct2_string(name) + ct2_string(target);
  return out;
}

// A directory that goes away with the test.
class TestDirectory {
 public:
  TestDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "mstar_weights_XXXXXX").string();
    if (::mkdtemp(name.data())) path_ = name;
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace mstar::weights::testing
