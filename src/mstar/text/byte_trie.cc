#include "mstar/text/byte_trie.h"

#include <bit>

namespace mstar::text {

ByteTrie::ByteTrie(std::size_t num_bytes_expected) : values_(1, -1) { resize(2 * num_bytes_expected + 64); }

void ByteTrie::place(const Slot& slot) {
  std::size_t at = first_slot(slot.node, slot.byte);
  while (slots_[at].node >= 0) at = (at + 1) & mask_;
  slots_[at] = slot;
}

void ByteTrie::resize(std::size_t num_slots) {
  std::vector<Slot> old(std::bit_ceil(num_slots));
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  shift_ = 64 - std::countr_zero(slots_.size());
  for (const Slot& slot : old) {
    if (slot.node >= 0) place(slot);
  }
}

void ByteTrie::insert(std::string_view text, std::int32_t value) {
  std::int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      if (2 * values_.size() > slots_.size()) resize(2 * slots_.size());
      next = static_cast<std::int32_t>(values_.size());
      values_.push_back(-1);
      place({node, next, byte});
    }
    node = next;
  }
  values_[static_cast<std::size_t>(node)] = value;
}

}  // namespace mstar::text
