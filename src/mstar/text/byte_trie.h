// Finds the known strings that a text begins with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mstar::text {

// A trie over bytes in one open-addressing table: (node, byte) -> child. Thread: const methods from any thread.
class ByteTrie {
 public:
  explicit ByteTrie(std::size_t num_bytes_expected = 0);
  // `value` must be 0 or more. A string that comes again takes the later value.
  void insert(std::string_view text, std::int32_t value);

  // Calls found(length, value) for each known string that `text` begins with, the shortest first. O(longest).
  template <class Found>
  void each_prefix(std::string_view text, Found found) const {
    std::int32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<std::uint8_t>(text[i]));
      if (node < 0) return;
      const std::int32_t value = values_[static_cast<std::size_t>(node)];
      if (value >= 0) found(i + 1, value);
    }
  }

 private:
  struct Slot {
    std::int32_t node = -1;  // -1: empty
    std::int32_t child = -1;
    std::uint8_t byte = 0;
  };
  std::size_t first_slot(std::int32_t node, std::uint8_t byte) const {
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 8 | byte;
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }
  std::int32_t child(std::int32_t node, std::uint8_t byte) const {
    for (std::size_t at = first_slot(node, byte);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.node < 0) return -1;
      if (slot.node == node && slot.byte == byte) return slot.child;
    }
  }
  void resize(std::size_t num_slots);
  void place(const Slot& slot);

  std::vector<std::int32_t> values_;  // by node; -1: none. 0 is the root
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace mstar::text
