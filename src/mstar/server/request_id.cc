#include "mstar/server/request_id.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>

namespace mstar::server {

bool is_sane_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-_.:").find(c) != std::string_view::npos;
  });
}

std::string fresh_request_id() {
  static const std::uint64_t kBase = [] {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  }();
  static std::atomic<std::uint64_t> counter{0};
  // An odd multiplier is a bijection on 64 bits: ids look random and never repeat.
  std::uint64_t value = kBase + counter.fetch_add(1, std::memory_order_relaxed) * 0x9E3779B97F4A7C15ull;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "req-";
  for (int i = 0; i < 16; ++i, value <<= 4) out += kHex[value >> 60];
  return out;
}

}  // namespace mstar::server
