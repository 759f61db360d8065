// Any bytes as a .safetensors file and as an index: an error, or arrays inside of the bytes.
#include <cstdint>
#include <cstdlib>

#include "mstar/weights/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto read = mstar::weights::read_safetensors(bytes, "fuzz")) {
    unsigned sum = 0;
    for (const auto& weight : *read)
      for (const std::byte byte : weight.bytes) sum += static_cast<unsigned>(byte);
    if (sum == 0xffffffffu) std::abort();  // keeps the reads
  }
  if (!mstar::weights::read_shard_index(bytes, "fuzz")) return 0;
  return 0;
}
