#include "mstar/text/bpe.h"

#include <algorithm>
#include <bit>
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

Result<Bpe> Bpe::build(const BpeSpec& spec, const Vocabulary& vocabulary) {
  Bpe out;
  bool whole_alphabet = true;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string symbol;
    append_utf8(byte_level_char(static_cast<std::uint8_t>(byte)), symbol);
    out.symbol_of_byte_[byte] = vocabulary.find(symbol).value_or(-1);
    symbol.append(spec.end_of_word_suffix);
    out.last_symbol_of_byte_[byte] = vocabulary.find(symbol).value_or(-1);
    whole_alphabet = whole_alphabet && out.symbol_of_byte_[byte] >= 0 && out.last_symbol_of_byte_[byte] >= 0;
  }
  if (spec.byte_fallback && !whole_alphabet) {
    return bad_model("tokenizer.json: model: byte_fallback is not supported");
  }
  out.fuse_unknown_ = spec.fuse_unknown;
  if (!spec.unknown_token.empty() && !whole_alphabet) {
    const auto id = vocabulary.find(spec.unknown_token);
    if (!id) return bad_model("tokenizer.json: model.unk_token: the vocabulary lacks it");
    out.unknown_id_ = *id;
  }

  out.merges_ = MergeTable(spec.merges.size());
  std::string product;
  std::int32_t rank = 0;
  for (const auto& [left, right] : spec.merges) {
    const auto left_id = vocabulary.find(left), right_id = vocabulary.find(right);
    if (!left_id || !right_id) return unknown_merge(left_id ? right : left);
    product.assign(left).append(right);
    const auto product_id = vocabulary.find(product);
    if (!product_id) return unknown_merge(product);
    if (!vocabulary.is_special(*product_id)) out.merges_.insert(*left_id, *right_id, {rank, *product_id});
    ++rank;
  }
  if (spec.ignore_merges) {
    for (const auto& [token, id] : spec.vocab) {
      std::string bytes;
      const bool spelt = append_spelt_bytes(token, bytes);
      if (spelt && !vocabulary.is_special(id) && vocabulary.bytes(id) == bytes) {
        out.whole_words_.emplace(vocabulary.bytes(id), id);
      }
    }
  }
  return out;
}

void Bpe::load_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
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
  load_symbols(word, scratch.symbols);
  merge_all(scratch);
  for (const Symbol& symbol : scratch.symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

}  // namespace mstar::text
