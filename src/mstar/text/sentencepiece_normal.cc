#include "mstar/text/sentencepiece_normal.h"

#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581

std::uint32_t read_u32(std::string_view bytes, std::size_t at) {
  std::uint32_t out = 0;
  for (std::size_t i = 4; i-- > 0;) out = out << 8 | static_cast<std::uint8_t>(bytes[at + i]);
  return out;
}

// The fields of a unit of the double array.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFFu; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FFu; }
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Result<SentencePieceNormal> SentencePieceNormal::compile(const NormalStepSpec& spec) {
  SentencePieceNormal out;
  out.dummy_prefix_ = spec.dummy_prefix;
  out.merge_spaces_ = spec.merge_spaces;
  out.space_ = spec.escape_spaces ? kEscapedSpace : " ";
  if (spec.char_map.empty()) return out;
  const Error damaged = bad_model("tokenizer: the normaliser's character map is damaged");
  if (spec.char_map.size() < 4) return damaged;
  const std::size_t num_bytes = read_u32(spec.char_map, 0);
  if (num_bytes > spec.char_map.size() - 4 || num_bytes % 4 != 0 || num_bytes == 0) return damaged;
  out.units_.reserve(num_bytes / 4);
  for (std::size_t at = 4; at < 4 + num_bytes; at += 4) out.units_.push_back(read_u32(spec.char_map, at));
  out.strings_ = spec.char_map.substr(4 + num_bytes);
  if (!is_valid_utf8(out.strings_)) return damaged;
  out.strings_.push_back('\0');
  return out;
}

SentencePieceNormal::Prefix SentencePieceNormal::first_prefix(std::string_view text) const {
  std::size_t best = 0, where = 0;
  if (!units_.empty()) {
    std::size_t node = offset_of(units_[0]);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<std::uint8_t>(text[i]);
      node ^= byte;
      if (node >= units_.size() || label_of(units_[node]) != byte) break;
      const std::uint32_t unit = units_[node];
      node ^= offset_of(unit);
      if (!has_leaf(unit)) continue;
      if (node >= units_.size()) break;
      best = i + 1;
      where = value_of(units_[node]);
    }
  }
  const bool ends_whole = best == text.size() || (static_cast<std::uint8_t>(text[best]) & 0xC0) != 0x80;
  const bool starts_whole = where == 0 || (where < strings_.size() && strings_[where - 1] == '\0');
  if (best > 0 && ends_whole && starts_whole) return {best, std::string_view(strings_.c_str() + where)};
  const std::size_t length = utf8_step(text).length_bytes;
  return {length, text.substr(0, length)};
}

std::string SentencePieceNormal::apply(std::string_view text, bool prefix_allowed) const {
  std::string out;
  if (merge_spaces_) {
    while (!text.empty()) {
      const Prefix prefix = first_prefix(text);
      if (prefix.normal != " ") break;
      text.remove_prefix(prefix.length_bytes);
    }
  }
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 4 + 4);
  if (dummy_prefix_ && prefix_allowed) out.append(space_);
  bool after_space = merge_spaces_;
  while (!text.empty()) {
    Prefix prefix = first_prefix(text);
    text.remove_prefix(prefix.length_bytes);
    while (after_space && prefix.normal.starts_with(' ')) prefix.normal.remove_prefix(1);
    for (const char c : prefix.normal) {
      if (c == ' ') {
        out.append(space_);
      } else {
        out.push_back(c);
      }
    }
    if (!prefix.normal.empty()) after_space = merge_spaces_ && prefix.normal.ends_with(' ');
  }
  while (merge_spaces_ && out.ends_with(space_)) out.resize(out.size() - space_.size());
  return out;
}

}  // namespace mstar::text
