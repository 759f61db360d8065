#include "mstar/server/base64.h"

#include <array>
#include <cstdint>

namespace mstar::server {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::int8_t, 256> reverse_alphabet() {
  std::array<std::int8_t, 256> table{};
  for (auto& each : table) each = -1;
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::int8_t>(i);
  return table;
}

}  // namespace

void append_base64(std::string& out, std::string_view bytes) {
  out.reserve(out.size() + (bytes.size() + 2) / 3 * 4);
  const auto at = [&](std::size_t i) -> std::uint32_t {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0;
  };
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::uint32_t group = at(i) << 16 | at(i + 1) << 8 | at(i + 2);
    out += kAlphabet[group >> 18];
    out += kAlphabet[group >> 12 & 63];
    out += i + 1 < bytes.size() ? kAlphabet[group >> 6 & 63] : '=';
    out += i + 2 < bytes.size() ? kAlphabet[group & 63] : '=';
  }
}

std::optional<std::string> base64_decode(std::string_view text) {
  static constexpr auto kReverse = reverse_alphabet();
  std::size_t num_pads = 0;
  while (num_pads < 2 && !text.empty() && text.back() == '=') {
    text.remove_suffix(1);
    ++num_pads;
  }
  if (text.size() % 4 == 1) return std::nullopt;
  if (num_pads && (text.size() + num_pads) % 4 != 0) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t group = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int value = kReverse[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    group = (group << 6 | static_cast<std::uint32_t>(value)) & 0xFFFFFF;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out += static_cast<char>(group >> num_bits & 0xFF);
    }
  }
  return out;
}

}  // namespace mstar::server
