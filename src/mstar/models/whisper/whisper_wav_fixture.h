// A recording for tests of Whisper's host stages.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "mstar/base/host_value.h"

namespace mstar::models {

// A tone as a WAV file of 16 kHz, 16 bits, one channel.
inline HostValue wav(int num_samples) {
  std::string out = "RIFF????WAVEfmt ";
  const auto put = [&](std::uint32_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) out += static_cast<char>(value >> (8 * i));
  };
  put(16, 4), put(1, 2), put(1, 2), put(16000, 4), put(32000, 4), put(2, 2), put(16, 2);
  out += "data";
  put(static_cast<std::uint32_t>(2 * num_samples), 4);
  for (int i = 0; i < num_samples; ++i)
    put(static_cast<std::uint16_t>(static_cast<std::int16_t>(8000 * std::sin(0.1 * i))), 2);
  const auto size = static_cast<std::uint32_t>(out.size() - 8);
  std::memcpy(out.data() + 4, &size, 4);
  return HostValue::blob(out);
}

}  // namespace mstar::models
