#include "mstar/text/utf8.h"

namespace mstar {
namespace {

// How many bytes a lead byte announces and what its second byte may be; 0 for a byte that leads nothing.
struct Lead {
  std::uint8_t length;
  std::uint8_t second_low;
  std::uint8_t second_high;
};

Lead lead_of(std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

std::size_t ascii_prefix(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && static_cast<std::uint8_t>(text[n]) < 0x80) ++n;
  return n;
}

// Where the last character of a valid, non-empty text starts; a stray continuation byte counts as a character.
std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && text.size() - at < 4 && (static_cast<std::uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  if (byte(0) < 0x80) return {Utf8Kind::valid, 1, byte(0)};
  const Lead lead = lead_of(byte(0));
  if (lead.length == 0) return {Utf8Kind::invalid, 1, 0};
  char32_t code_point = byte(0) & (0x7Fu >> lead.length);
  for (std::uint8_t i = 1; i < lead.length; ++i) {
    if (i >= text.size()) return {Utf8Kind::incomplete, i, 0};
    const std::uint8_t low = i == 1 ? lead.second_low : 0x80;
    const std::uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8Kind::invalid, i, 0};
    code_point = (code_point << 6) | (byte(i) & 0x3Fu);
  }
  return {Utf8Kind::valid, lead.length, code_point};
}

std::size_t append_complete_utf8(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    if (const std::size_t ascii = ascii_prefix(bytes); ascii > 0) {
      out.append(bytes.substr(0, ascii));
      bytes.remove_prefix(ascii);
      continue;
    }
    const Utf8Step step = utf8_step(bytes);
    if (step.kind == Utf8Kind::incomplete) return bytes.size();
    out.append(step.kind == Utf8Kind::valid ? bytes.substr(0, step.length_bytes) : kReplacementUtf8);
    bytes.remove_prefix(step.length_bytes);
  }
  return 0;
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    if (const std::size_t ascii = ascii_prefix(text); ascii > 0) {
      text.remove_prefix(ascii);
      continue;
    }
    const Utf8Step step = utf8_step(text);
    if (step.kind != Utf8Kind::valid) return false;
    text.remove_prefix(step.length_bytes);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (append_complete_utf8(text, out) > 0) out.append(kReplacementUtf8);
  return out;
}

void append_utf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<std::uint8_t>(byte))); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_unicode_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_python_space(char32_t c) { return is_unicode_space(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view strip_spaces(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.kind != Utf8Kind::valid || !is_python_space(step.code_point)) break;
    text.remove_prefix(step.length_bytes);
  }
  while (!text.empty()) {
    const std::size_t at = last_character(text);
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Kind::valid || at + step.length_bytes != text.size() || !is_python_space(step.code_point))
      break;
    text.remove_suffix(step.length_bytes);
  }
  return text;
}

}  // namespace mstar
