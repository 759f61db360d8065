// The printable alphabet of byte-level BPE: each byte has one character, so that any text can be spelt in a vocabulary.
// Source: bytes_to_unicode of GPT-2. Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mstar::text {

// The character that stands for a byte; at most U+0143.
char32_t byte_level_char(std::uint8_t byte);
// `bytes` spelt in the alphabet, as UTF-8.
std::string spell_bytes(std::string_view bytes);
// Appends the bytes that `token` spells and returns true; on a character outside of the alphabet, appends nothing and
// returns false.
bool append_spelt_bytes(std::string_view token, std::string& out);

}  // namespace mstar::text
