// Unigram language model: the split of a text whose pieces' scores sum highest.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/byte_trie.h"
#include "mstar/text/tokenizer_spec.h"
#include "mstar/text/vocabulary.h"

namespace mstar::text {

// Room for one encode call.
struct UnigramScratch {
  struct Node {
    double score = 0;
    std::int32_t id = -1;
    std::int32_t begin = -1;  // where the piece that ends here begins; -1: unreachable
  };
  std::vector<Node> nodes;
  std::vector<std::int32_t> reversed;
};

// Thread: const methods from any thread. Move-only.
class Unigram {
 public:
  // bad_model without an unknown token (unless bytes stand in) and on an id that is out of range.
  static Result<Unigram> build(const ModelSpec& spec, const Vocabulary& vocabulary);

  // Appends the ids of valid UTF-8 of at most INT32_MAX bytes. A character that no piece covers costs the lowest score
  // less 10; a run of them is one unknown token, or the tokens of its bytes. Special tokens are never chosen.
  // O(bytes · longest piece).
  void encode(std::string_view text, UnigramScratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  double add(double a, double b) const { return single_precision_ ? static_cast<float>(a + b) : a + b; }
  void find_best(std::string_view text, std::vector<UnigramScratch::Node>& nodes) const;

  ByteTrie pieces_;
  std::vector<double> scores_;  // by id
  double unknown_score_ = 0;
  std::int32_t unknown_id_ = -1;
  std::array<std::int32_t, 256> byte_ids_{};
  bool byte_fallback_ = false;
  bool single_precision_ = false;
};

}  // namespace mstar::text
