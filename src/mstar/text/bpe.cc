#include "mstar/text/bpe.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "mstar/text/byte_level.h"
#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

using Candidate = BpeScratch::Candidate;
using Symbol = BpeScratch::Symbol;

// For the standard heap, whose top is the greatest.
bool less_urgent(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

Error unknown_merge(std::string_view token) {
  std::string message = "tokenizer.json: model.merges: the vocabulary lacks ";
  message.append(token);
  return bad_model(std::move(message));
}

}  // namespace

MergeTable::MergeTable(std::size_t num_merges) {
  const std::size_t num_slots = std::bit_ceil(2 * num_merges + 2);
  slots_.resize(num_slots);
  mask_ = num_slots - 1;
  shift_ = 64 - std::countr_zero(num_slots);
}

void MergeTable::insert(std::int32_t left, std::int32_t right, Merge merge) {
  std::size_t at = first_slot(left, right);
  while (slots_[at].merge.product >= 0 && (slots_[at].left != left || slots_[at].right != right)) at = (at + 1) & mask_;
  slots_[at] = {left, right, merge};
}

void CharacterTable::insert(char32_t c, std::int32_t id) {
  // Half a MiB at most; what comes after is rare.
  constexpr char32_t kLowEnd = 0x20000;
  if (c >= kLowEnd) {
    high_[c] = id;
    return;
  }
  if (c >= low_.size()) low_.resize(std::max<std::size_t>(c + 1, 2 * low_.size()), -1);
  low_[c] = id;
}

Status Bpe::add_alphabet(const ModelSpec& spec, const Vocabulary& vocabulary) {
  over_bytes_ = spec.kind == ModelKind::byte_bpe;
  bool whole_alphabet = over_bytes_;
  for (std::size_t byte = 0; over_bytes_ && byte < 256; ++byte) {
    std::string symbol;
    append_utf8(byte_level_char(static_cast<std::uint8_t>(byte)), symbol);
    symbol_of_byte_[byte] = vocabulary.find(symbol).value_or(-1);
    symbol.append(spec.end_of_word_suffix);
    last_symbol_of_byte_[byte] = vocabulary.find(symbol).value_or(-1);
    whole_alphabet = whole_alphabet && symbol_of_byte_[byte] >= 0 && last_symbol_of_byte_[byte] >= 0;
  }
  if (!over_bytes_) add_characters(spec);
  byte_fallback_ = spec.byte_fallback && !over_bytes_ && find_byte_tokens(vocabulary, byte_ids_);
  if (spec.byte_fallback && over_bytes_ && !whole_alphabet) {
    return bad_model("tokenizer.json: model: byte_fallback is not supported with an alphabet of bytes");
  }
  fuse_unknown_ = spec.fuse_unknown;
  if (!spec.unknown_token.empty() && !whole_alphabet) {
    const auto id = vocabulary.find(spec.unknown_token);
    if (!id) return bad_model("tokenizer.json: model.unk_token: the vocabulary lacks it");
    unknown_id_ = *id;
  }
  return {};
}

void Bpe::add_characters(const ModelSpec& spec) {
  const auto only_character = [](std::string_view text) -> std::optional<char32_t> {
    if (text.empty() || !is_valid_utf8(text)) return std::nullopt;
    const Utf8Step step = utf8_step(text);
    return step.length_bytes == text.size() ? std::optional(step.code_point) : std::nullopt;
  };
  for (const auto& [token, id] : spec.vocab) {
    if (const auto c = only_character(token)) {
      characters_.insert(*c, id);
      if (spec.end_of_word_suffix.empty()) last_characters_.insert(*c, id);
    }
    if (spec.end_of_word_suffix.empty() || !token.ends_with(spec.end_of_word_suffix)) continue;
    if (const auto c = only_character(token.substr(0, token.size() - spec.end_of_word_suffix.size())))
      last_characters_.insert(*c, id);
  }
}

Status Bpe::add_merges(const ModelSpec& spec, const Vocabulary& vocabulary) {
  merges_ = MergeTable(spec.merges.size());
  std::string product;
  for (std::size_t i = 0; i < spec.merges.size(); ++i) {
    const auto& [left, right] = spec.merges[i];
    const auto left_id = vocabulary.find(left), right_id = vocabulary.find(right);
    if (!left_id || !right_id) return unknown_merge(left_id ? right : left);
    product.assign(left).append(right);
    const auto product_id = vocabulary.find(product);
    if (!product_id) return unknown_merge(product);
    const std::int32_t rank = spec.merge_ranks.empty() ? static_cast<std::int32_t>(i) : spec.merge_ranks[i];
    if (!vocabulary.is_special(*product_id)) merges_.insert(*left_id, *right_id, {rank, *product_id});
  }
  return {};
}

void Bpe::add_whole_words(const ModelSpec& spec, const Vocabulary& vocabulary) {
  for (const auto& [token, id] : spec.vocab) {
    if (vocabulary.is_special(id)) continue;
    if (!over_bytes_) {
      // The vocabulary's own copy lives as long as this model.
      if (vocabulary.token(id) == token) whole_words_.emplace(vocabulary.token(id), id);
      continue;
    }
    std::string bytes;
    const bool spelt = append_spelt_bytes(token, bytes);
    if (spelt && vocabulary.bytes(id) == bytes) whole_words_.emplace(vocabulary.bytes(id), id);
  }
}

Result<Bpe> Bpe::build(const ModelSpec& spec, const Vocabulary& vocabulary) {
  Bpe out;
  MSTAR_TRY(out.add_alphabet(spec, vocabulary));
  MSTAR_TRY(out.add_merges(spec, vocabulary));
  if (spec.ignore_merges) out.add_whole_words(spec, vocabulary);
  return out;
}

void Bpe::load_characters(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  bool after_unknown = false;
  const auto push = [&](std::int32_t id) {
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  };
  while (!word.empty()) {
    const Utf8Step step = utf8_step(word);
    const bool is_last = step.length_bytes == word.size();
    const std::int32_t id = (is_last ? last_characters_ : characters_).find(step.code_point);
    const bool unknown = id < 0 && !byte_fallback_;
    if (id >= 0) {
      push(id);
    } else if (byte_fallback_) {
      for (const char c : word.substr(0, step.length_bytes)) push(byte_ids_[static_cast<std::uint8_t>(c)]);
    } else if (unknown_id_ >= 0 && !(after_unknown && fuse_unknown_)) {
      push(unknown_id_);
    }
    after_unknown = unknown;
    word.remove_prefix(step.length_bytes);
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::load_bytes(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  bool after_unknown = false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(word[i]);
    std::int32_t id = (i + 1 == word.size() ? last_symbol_of_byte_ : symbol_of_byte_)[byte];
    const bool unknown = id < 0;
    if (unknown) {
      if (unknown_id_ < 0 || (after_unknown && fuse_unknown_)) continue;
      id = unknown_id_;
    }
    after_unknown = unknown;
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::offer(std::int32_t position, BpeScratch& scratch) const {
  const Symbol& left = scratch.symbols[static_cast<std::size_t>(position)];
  const Symbol& right = scratch.symbols[static_cast<std::size_t>(left.next)];
  if (const MergeTable::Merge* merge = merges_.find(left.id, right.id)) {
    scratch.heap.push_back({merge->rank, position, merge->product});
  }
}

void Bpe::merge_all(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) offer(static_cast<std::int32_t>(i), scratch);
  std::make_heap(heap.begin(), heap.end(), less_urgent);
  const auto push = [&](std::int32_t position) {
    const std::size_t before = heap.size();
    offer(position, scratch);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), less_urgent);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), less_urgent);
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<std::size_t>(top.position)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    // A neighbour may have merged away since the candidate was offered.
    const MergeTable::Merge* merge = merges_.find(left.id, right.id);
    if (!merge || merge->product != top.product) continue;
    left.id = top.product;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.position;
    if (left.previous >= 0) push(left.previous);
    if (left.next >= 0) push(top.position);
  }
}

void Bpe::encode(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& ids) const {
  if (!whole_words_.empty()) {
    if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  if (over_bytes_) {
    load_bytes(word, scratch.symbols);
  } else {
    load_characters(word, scratch.symbols);
  }
  merge_all(scratch);
  for (const Symbol& symbol : scratch.symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

}  // namespace mstar::text
