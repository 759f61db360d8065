// Stop strings in text that comes in pieces.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mstar {

// Holds back what may be the beginning of a stop string: an Aho-Corasick automaton that keeps its state between pieces.
// Thread: one owner. Cost: to build, a few ns and 24 bytes of memory a byte of the strings; to push, amortised a few
// steps a byte, whatever is held back and however many strings there are (only strings that go on differently at the
// same place are looked at one after the other).
class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(const std::vector<std::string>& strings);

  // The text that is certain now; everything before the stop string that is whole first, once one is (matched() is true
  // then, and what follows is dropped); of two that are whole at the same place, the longer. Cuts only where `text` or
  // a stop string begins, so whole characters stay whole.
  std::string push(std::string_view text);
  // What was held back; the text has ended.
  std::string finish();
  bool matched() const { return matched_; }

 private:
  // A beginning of stop strings.
  struct Node {
    std::int32_t first_child = -1, next_sibling = -1;
    std::int32_t fallback = 0;  // the longest other beginning that this one ends with
    std::int32_t length = 0;
    std::int32_t match = 0;  // length of the longest stop string that this one ends with; 0: none
    std::uint8_t byte = 0;
  };
  Node& at(std::int32_t node) { return nodes_[static_cast<std::size_t>(node)]; }
  std::int32_t child(std::int32_t node, std::uint8_t byte) const;
  std::int32_t step(std::int32_t node, std::uint8_t byte) const;
  void add(std::string_view text);
  void link();
  std::string give(std::size_t num_bytes);

  std::vector<Node> nodes_;               // 0 is the empty beginning
  std::array<std::int32_t, 256> firsts_;  // its children by byte
  std::int32_t state_ = 0;
  std::string held_;             // given up to given_; the rest is the beginning that state_ is
  std::size_t given_bytes_ = 0;  // of held_
  bool matched_ = false;
};

}  // namespace mstar
