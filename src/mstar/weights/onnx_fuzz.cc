// Any bytes as an ONNX model: an error, or arrays inside of the bytes.
#include <cstdint>
#include <cstdlib>

#include "mstar/weights/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto read = mstar::weights::read_onnx(bytes, "fuzz");
  if (!read) return 0;
  unsigned sum = 0;
  for (const auto& weight : *read)
    for (const std::byte byte : weight.bytes) sum += static_cast<unsigned>(byte);
  if (sum == 0xffffffffu) std::abort();  // keeps the reads
  return 0;
}
