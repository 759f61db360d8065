// Any bytes as a configuration: an error with a place or settings, never a crash, a hang or an exception.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "config_yaml.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = mstar::apps::parse_config({reinterpret_cast<const char*>(data), size}, "f");
  if (!parsed && parsed.error().message.rfind("f:", 0) != 0) std::abort();
  return 0;
}
