#include "mstar/text/token_decoder.h"

#include <optional>

#include "mstar/text/byte_level.h"

namespace mstar::text {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// "<0x0A>"
std::optional<char> named_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const std::size_t upper = std::string_view("0123456789ABCDEF").find(c);
    const std::size_t digit = upper != std::string_view::npos ? upper : std::string_view("0123456789abcdef").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<int>(digit);
  }
  return static_cast<char>(static_cast<unsigned char>(value));
}

std::string cleaned_up(std::string text) {
  constexpr std::string_view kPairs[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                            {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                            {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& pair : kPairs) replace_all(text, pair[0], pair[1]);
  return text;
}

std::string word_piece(const DecoderSpec& spec, std::string_view token, bool is_first) {
  std::string out(token);
  if (!is_first && token.starts_with(spec.continuing_prefix)) {
    out.erase(0, spec.continuing_prefix.size());
  } else if (!is_first) {
    out.insert(0, " ");
  }
  return spec.clean_up ? cleaned_up(std::move(out)) : out;
}

}  // namespace

std::string decoded_token(const DecoderSpec& spec, std::string_view token, bool is_first) {
  if (spec.kind == DecoderSpec::Kind::word_piece) return word_piece(spec, token, is_first);
  std::string out;
  if (spec.kind == DecoderSpec::Kind::byte_level) {
    if (!append_spelt_bytes(token, out)) out = token;
    return out;
  }
  if (spec.byte_fallback) {
    if (const auto byte = named_byte(token)) return std::string(1, *byte);
  }
  out = token;
  for (const auto& [from, to] : spec.replacements) replace_all(out, from, to);
  if (!spec.metaspace.empty()) replace_all(out, spec.metaspace, is_first && spec.drop_first_space ? "" : " ");
  return out;
}

}  // namespace mstar::text
