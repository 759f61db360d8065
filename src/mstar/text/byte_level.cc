#include "mstar/text/byte_level.h"

#include <array>

#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

constexpr std::size_t kAlphabetEnd = 0x144;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<std::uint16_t, 256> make_chars() {
  std::array<std::uint16_t, 256> chars{};
  std::uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    chars[static_cast<std::size_t>(byte)] = stands_for_itself(byte) ? static_cast<std::uint16_t>(byte) : next++;
  }
  return chars;
}
constexpr auto kChars = make_chars();

constexpr std::array<std::int16_t, kAlphabetEnd> make_bytes() {
  std::array<std::int16_t, kAlphabetEnd> bytes{};
  for (auto& byte : bytes) byte = -1;
  for (std::size_t byte = 0; byte < 256; ++byte) bytes[kChars[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}
constexpr auto kBytes = make_bytes();

}  // namespace

char32_t byte_level_char(std::uint8_t byte) { return kChars[byte]; }

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (const char byte : bytes) append_utf8(kChars[static_cast<std::uint8_t>(byte)], out);
  return out;
}

bool append_spelt_bytes(std::string_view token, std::string& out) {
  const std::size_t start = out.size();
  while (!token.empty()) {
    const Utf8Step step = utf8_step(token);
    const bool known = step.kind == Utf8Kind::valid && step.code_point < kAlphabetEnd && kBytes[step.code_point] >= 0;
    if (!known) {
      out.resize(start);
      return false;
    }
    out.push_back(static_cast<char>(static_cast<std::uint8_t>(kBytes[step.code_point])));
    token.remove_prefix(step.length_bytes);
  }
  return true;
}

}  // namespace mstar::text
