// Any bytes decode to an error or to a frame that encodes and decodes to itself.
#include <cstdint>
#include <cstdlib>

#include "mstar/wire/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto frame = mstar::wire::decode(std::as_bytes(std::span(data, size)));
  if (!frame) return 0;
  const auto bytes = mstar::wire::encode(*frame);
  if (!bytes) std::abort();
  const auto again = mstar::wire::decode(std::as_bytes(std::span(*bytes)));
  if (!again) std::abort();
  const auto same = mstar::wire::encode(*again);
  if (!same || *same != *bytes) std::abort();
  return 0;
}
