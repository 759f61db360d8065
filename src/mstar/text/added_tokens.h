// Finds added tokens in a text before (or after) it is normalised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// A part of a text: an added token, or plain text (id < 0).
struct TokenSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t id = -1;
};

// Which added tokens a search takes.
enum class TakeTokens : std::uint8_t { all, all_but_special, none };

// Leftmost-longest search for many strings. Thread: const methods from any thread.
class AddedTokenFinder {
 public:
  AddedTokenFinder();
  // `pattern` is what to look for: the token's content or its normalised form. An empty pattern, or one that is there
  // already, is left out.
  void add(std::string_view pattern, const AddedTokenSpec& token);
  bool empty() const { return tokens_.empty(); }

  bool has_special() const;
  // Whether a special token is spelt out at `at`, all or with flags that would leave it out.
  bool special_at(std::string_view text, std::size_t at) const;

  // Replaces `out` by non-empty spans that cover `text` (valid UTF-8). A token that `take` leaves out hides what is
  // inside of it, and stays plain text. A token of spaces is found even where the token before it took those spaces
  // along: the two spans then overlap. O(text · longest token).
  void split(std::string_view text, TakeTokens take, std::vector<TokenSpan>& out) const;

 private:
  struct Node {
    std::int32_t first_child = -1;
    std::int32_t next_sibling = -1;
    std::int32_t token = -1;  // index into tokens_
    std::uint8_t byte = 0;
  };
  struct Token {
    std::int32_t id;
    bool special, single_word, strip_left, strip_right;
  };
  struct Match {
    std::size_t length = 0;
    std::int32_t token = -1;
  };
  std::int32_t child(std::int32_t node, std::uint8_t byte) const;
  Match longest_at(std::string_view text, std::size_t at) const;

  std::vector<Node> nodes_;          // 0 is the root
  std::vector<std::int32_t> roots_;  // the root's children by byte
  std::vector<Token> tokens_;
};

}  // namespace mstar::text
