// Any bytes as a CTranslate2 model.bin: an error, or arrays inside of the bytes.
#include <cstdint>
#include <cstdlib>

#include "mstar/weights/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto read = mstar::weights::read_ctranslate2(bytes, "fuzz")) {
    unsigned sum = 0;
    for (const auto& weight : read->weights) {
      for (const std::byte byte : weight.bytes) sum += static_cast<unsigned>(byte);
      if (weight.divisor && weight.divisor->bytes.size() % 4 != 0) std::abort();
    }
    if (sum == 0xffffffffu) std::abort();  // keeps the reads
  }
  return 0;
}
