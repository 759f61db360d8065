#include "mstar/text/word_piece.h"

#include <algorithm>
#include <string>

namespace mstar::text {

Result<WordPiece> WordPiece::build(const ModelSpec& spec, const Vocabulary& vocabulary) {
  WordPiece out;
  const auto unknown = vocabulary.find(spec.unknown_token);
  if (!unknown)
    return bad_model("tokenizer: the vocabulary lacks the unknown token " + std::string(spec.unknown_token));
  out.unknown_id_ = *unknown;
  out.max_word_characters_ = static_cast<std::size_t>(spec.max_word_characters);
  for (const auto& [token, id] : spec.vocab) {
    if (token.empty() || vocabulary.is_special(id)) continue;
    // "##" alone, and what begins with it, can be spelt out by a word as well.
    out.starting_.insert(token, id);
    if (token.starts_with(spec.continuing_prefix) && token.size() > spec.continuing_prefix.size())
      out.continuing_.insert(token.substr(spec.continuing_prefix.size()), id);
  }
  return out;
}

void WordPiece::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  const auto num_characters = static_cast<std::size_t>(
      std::count_if(word.begin(), word.end(), [](char c) { return (static_cast<std::uint8_t>(c) & 0xC0) != 0x80; }));
  const std::size_t before = ids.size();
  bool whole = num_characters <= max_word_characters_;
  for (std::size_t at = 0; whole && at < word.size();) {
    std::size_t best = 0;
    std::int32_t best_id = -1;
    (at == 0 ? starting_ : continuing_).each_prefix(word.substr(at), [&](std::size_t length, std::int32_t id) {
      best = length;
      best_id = id;
    });
    whole = best > 0;
    ids.push_back(best_id);
    at += best;
  }
  if (whole) return;
  ids.resize(before);
  ids.push_back(unknown_id_);
}

}  // namespace mstar::text
