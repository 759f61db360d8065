// Byte-pair encoding over bytes or characters: the most urgent merge first, the leftmost of equals.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/tokenizer_spec.h"
#include "mstar/text/vocabulary.h"

namespace mstar::text {

// (left id, right id) -> rank and product. Open addressing over a power of two, at most half full; read-only once
// built.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t product = -1;
  };
  explicit MergeTable(std::size_t num_merges = 0);
  // A pair that comes again takes the later rank.
  void insert(std::int32_t left, std::int32_t right, Merge merge);
  const Merge* find(std::int32_t left, std::int32_t right) const {
    for (std::size_t at = first_slot(left, right);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.merge.product < 0) return nullptr;
      if (slot.left == left && slot.right == right) return &slot.merge;
    }
  }

 private:
  struct Slot {
    std::int32_t left = 0;
    std::int32_t right = 0;
    Merge merge;  // product < 0: empty
  };
  std::size_t first_slot(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key =
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 0;
};

// Room for one encode call; kept between words so that a word allocates nothing.
struct BpeScratch {
  struct Symbol {
    std::int32_t id;  // -1: merged into the symbol before it
    std::int32_t previous;
    std::int32_t next;
  };
  struct Candidate {
    std::int32_t rank;
    std::int32_t position;
    std::int32_t product;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

// Character -> id. Thread: const methods from any thread.
class CharacterTable {
 public:
  void insert(char32_t c, std::int32_t id);
  // -1: none.
  std::int32_t find(char32_t c) const {
    if (c < low_.size()) return low_[c];
    if (high_.empty()) return -1;
    const auto found = high_.find(c);
    return found == high_.end() ? -1 : found->second;
  }

 private:
  std::vector<std::int32_t> low_;
  std::unordered_map<char32_t, std::int32_t> high_;
};

// Thread: const methods from any thread. Move-only.
class Bpe {
 public:
  // bad_model when a merge names a token that `vocabulary` lacks. Merges that make a special token are left out, so
  // that no text can spell one (a special token that is one symbol long is the exception: it is a part of the
  // alphabet).
  static Result<Bpe> build(const ModelSpec& spec, const Vocabulary& vocabulary);

  // Appends the ids of one piece of text, at most INT32_MAX bytes: any bytes where the model is over bytes, else valid
  // UTF-8. O(n log n). A byte or character that the vocabulary lacks becomes the tokens of its bytes if there is byte
  // fallback, else the unknown token, or nothing when there is none.
  void encode(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  Status add_alphabet(const ModelSpec& spec, const Vocabulary& vocabulary);
  void add_characters(const ModelSpec& spec);
  Status add_merges(const ModelSpec& spec, const Vocabulary& vocabulary);
  void add_whole_words(const ModelSpec& spec, const Vocabulary& vocabulary);
  void load_bytes(std::string_view word, std::vector<BpeScratch::Symbol>& symbols) const;
  void load_characters(std::string_view word, std::vector<BpeScratch::Symbol>& symbols) const;
  void merge_all(BpeScratch& scratch) const;
  void offer(std::int32_t position, BpeScratch& scratch) const;

  std::array<std::int32_t, 256> symbol_of_byte_{};       // -1: none
  std::array<std::int32_t, 256> last_symbol_of_byte_{};  // with the end-of-word suffix
  bool over_bytes_ = true;
  CharacterTable characters_, last_characters_;
  std::array<std::int32_t, 256> byte_ids_{};  // of "<0x0A>" and the like
  bool byte_fallback_ = false;
  std::int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false;
  MergeTable merges_;
  // Filled for ignore_merges only: a piece that is a token as a whole is that token. Views into the vocabulary.
  std::unordered_map<std::string_view, std::int32_t> whole_words_;
};

}  // namespace mstar::text
