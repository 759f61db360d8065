#include "mstar/text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

bool is_word_character(char32_t c) {
  const auto code_point = static_cast<UChar32>(c);
  constexpr std::uint32_t kWordCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_hasBinaryProperty(code_point, UCHAR_ALPHABETIC) || u_hasBinaryProperty(code_point, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(code_point) & kWordCategories) != 0;
}

char32_t first_of(std::string_view text) { return utf8_step(text).code_point; }

std::size_t start_of_last(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<std::uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word_character(first_of(text.substr(start_of_last(text.substr(0, begin)))))) return true;
  return end < text.size() && is_word_character(first_of(text.substr(end)));
}

std::size_t skip_spaces_back(std::string_view text, std::size_t begin, std::size_t least) {
  while (begin > least) {
    const std::size_t at = start_of_last(text.substr(0, begin));
    if (at < least || !is_unicode_space(first_of(text.substr(at)))) break;
    begin = at;
  }
  return begin;
}

std::size_t skip_spaces(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    const Utf8Step step = utf8_step(text.substr(end));
    if (!is_unicode_space(step.code_point)) break;
    end += step.length_bytes;
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder() : nodes_(1), roots_(256, -1) {}

std::int32_t AddedTokenFinder::child(std::int32_t node, std::uint8_t byte) const {
  if (node == 0) return roots_[byte];
  std::int32_t at = nodes_[static_cast<std::size_t>(node)].first_child;
  while (at >= 0 && nodes_[static_cast<std::size_t>(at)].byte != byte)
    at = nodes_[static_cast<std::size_t>(at)].next_sibling;
  return at;
}

void AddedTokenFinder::add(std::string_view pattern, const AddedTokenSpec& token) {
  if (pattern.empty()) return;
  std::int32_t node = 0;
  for (const char c : pattern) {
    const auto byte = static_cast<std::uint8_t>(c);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      Node fresh;
      fresh.byte = byte;
      if (node == 0) {
        roots_[byte] = next;
      } else {
        Node& parent = nodes_[static_cast<std::size_t>(node)];
        fresh.next_sibling = parent.first_child;
        parent.first_child = next;
      }
      nodes_.push_back(fresh);
    }
    node = next;
  }
  Node& end = nodes_[static_cast<std::size_t>(node)];
  if (end.token >= 0) return;
  end.token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.special, token.single_word, token.strip_left, token.strip_right});
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  Match best;
  std::int32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    node = child(node, static_cast<std::uint8_t>(text[i]));
    if (node < 0) break;
    const std::int32_t token = nodes_[static_cast<std::size_t>(node)].token;
    if (token >= 0) best = {i + 1 - at, token};
  }
  return best;
}

bool AddedTokenFinder::has_special() const {
  return std::any_of(tokens_.begin(), tokens_.end(), [](const Token& token) { return token.special; });
}

bool AddedTokenFinder::special_at(std::string_view text, std::size_t at) const {
  std::int32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    node = child(node, static_cast<std::uint8_t>(text[i]));
    if (node < 0) return false;
    const std::int32_t token = nodes_[static_cast<std::size_t>(node)].token;
    if (token >= 0 && tokens_[static_cast<std::size_t>(token)].special) return true;
  }
  return false;
}

void AddedTokenFinder::split(std::string_view text, TakeTokens take, std::vector<TokenSpan>& out) const {
  out.clear();
  std::size_t covered = 0;  // what comes before is in `out`
  const bool search = !tokens_.empty() && take != TakeTokens::none;
  for (std::size_t at = 0; search && at < text.size();) {
    const Match match = longest_at(text, at);
    if (match.token < 0) {
      ++at;
      continue;
    }
    const Token& token = tokens_[static_cast<std::size_t>(match.token)];
    std::size_t begin = at, end = at + match.length;
    at = end;
    if (token.special && take == TakeTokens::all_but_special) continue;
    if (token.single_word && touches_word(text, begin, end)) continue;
    if (token.strip_left) begin = skip_spaces_back(text, begin, covered);
    if (token.strip_right) end = skip_spaces(text, end);
    if (begin > covered) out.push_back({covered, begin, -1});
    out.push_back({begin, end, token.id});
    covered = end;
  }
  if (covered < text.size()) out.push_back({covered, text.size(), -1});
}

}  // namespace mstar::text
