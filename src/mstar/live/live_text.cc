#include "mstar/live/live_text.h"

#include <algorithm>
#include <utility>

namespace mstar {
namespace {

// From here on a sign is a word: CJK and what stands around it in Unicode.
constexpr unsigned kFirstOfSigns = 0x2E80;

struct Piece {
  std::string_view text;  // with the blanks before it
  std::string word;       // as compared
};

std::size_t sign_bytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t count = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(count, text.size());
}

bool is_sign(std::string_view text) {
  if (sign_bytes(text) < 3) return false;
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[i])); };
  return sign_bytes(text) > 3 || ((at(0) & 15) << 12 | (at(1) & 63) << 6 | (at(2) & 63)) >= kFirstOfSigns;
}

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string compared(std::string_view word) {
  std::string out;
  for (const char c : word)
    if (static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) {
      out += c;
    } else if (c >= 'A' && c <= 'Z') {
      out += static_cast<char>(c - 'A' + 'a');
    }
  return out.empty() ? std::string(word) : out;
}

std::vector<Piece> pieces_of(std::string_view text) {
  std::vector<Piece> out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t begin = at;
    while (at < text.size() && is_blank(text[at])) ++at;
    const std::size_t word = at;
    if (at == text.size()) break;
    if (is_sign(text.substr(at))) {
      at += sign_bytes(text.substr(at));
    } else {
      while (at < text.size() && !is_blank(text[at]) && !is_sign(text.substr(at))) at += sign_bytes(text.substr(at));
    }
    out.push_back({text.substr(begin, at - begin), compared(text.substr(word, at - word))});
  }
  return out;
}

}  // namespace

std::string LiveText::hear(std::string_view hypothesis) {
  const std::vector<Piece> now = pieces_of(hypothesis);
  std::size_t agreed = 0;
  while (agreed < std::min(now.size(), last_.size()) && now[agreed].word == last_[agreed]) ++agreed;
  std::string out;
  for (std::size_t i = told_.size(); i < agreed; ++i) {
    out += now[i].text;
    told_.push_back(now[i].word);
  }
  last_.clear();
  for (const Piece& each : now) last_.push_back(each.word);
  return out;
}

std::string LiveText::settle(std::string_view hypothesis) {
  const std::vector<Piece> now = pieces_of(hypothesis);
  // Where the last word that was told stands in it: at its place, or near it if words came or went.
  std::size_t from = std::min(told_.size(), now.size());
  if (!told_.empty()) {
    constexpr std::size_t kNear = 3;
    for (std::size_t off = 0; off <= kNear; ++off) {
      const auto ends_there = [&](std::size_t count) {
        return count > 0 && count <= now.size() && now[count - 1].word == told_.back();
      };
      if (ends_there(told_.size() + off)) {
        from = told_.size() + off;
        break;
      }
      if (told_.size() > off && ends_there(told_.size() - off)) {
        from = told_.size() - off;
        break;
      }
    }
  }
  std::string out;
  for (std::size_t i = from; i < now.size(); ++i) out += now[i].text;
  last_.clear();
  told_.clear();
  return out;
}

}  // namespace mstar
