// Any bytes as a GGUF file: an error, or arrays, strings and blocks inside of the bytes.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "mstar/weights/formats.h"

namespace {

std::uint64_t touch(const mstar::weights::MetadataArray& array) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; !array.numbers.empty() && i < array.count; ++i)
    sum += array.number(i).has_value() + static_cast<std::uint64_t>(array.integer(i).value_or(0));
  for (const auto& text : array.strings)
    for (const char c : text) sum += static_cast<unsigned char>(c);
  for (const auto& inner : array.arrays) sum += touch(inner);
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = mstar::weights::read_gguf({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
  if (!read) return 0;
  std::uint64_t sum = 0;
  for (const auto& weight : read->weights) {
    for (const std::byte byte : weight.bytes) sum += static_cast<unsigned>(byte);
    if (!weight.type.is_blocks() || weight.bytes.empty()) continue;
    std::vector<float> values(static_cast<std::size_t>(weight.shape.num_elements()));
    mstar::dequantise(weight.type.blocks(), weight.bytes.data(), weight.shape.num_elements(), values.data());
    for (const float value : values) sum += value > 0;
  }
  for (const auto& entry : read->metadata.entries())
    if (const auto array = read->metadata.array(entry.key)) sum += touch(**array);
  if (sum == 0xffffffffffffffffu) std::abort();  // keeps the reads
  return 0;
}
