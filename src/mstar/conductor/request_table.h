// Requests by id, where ids count up and most of them end soon: an open table whose neighbours are requests that came
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "mstar/base/check.h"
#include "mstar/base/ids.h"

namespace mstar::conductor {

// Owns what it holds, which stays where it is. A look-up reads one or two neighbouring slots and nothing else of other
// requests. Amortised O(1) each; a few very old requests cost the others nothing. One owner thread.
template <class T>
class RequestTable {
 public:
  // Null where there is none of this id; any id may be asked for.
  T* find(RequestId id) const {
    if (slots_.empty()) return nullptr;
    for (std::size_t at = home(id); slots_[at].value; at = next(at))
      if (slots_[at].id == id) return slots_[at].value.get();
    return nullptr;
  }
  // There is none of this id yet.
  void insert(RequestId id, std::unique_ptr<T> value) {
    MSTAR_CHECK(value != nullptr, "a request's slot without a request");
    if (2 * (size_ + 1) > slots_.size()) grow();
    place({id, std::move(value)});
    ++size_;
  }
  // Whoever stands behind moves up, so that no search ends too early.
  void erase(RequestId id) {
    if (slots_.empty()) return;
    std::size_t hole = home(id);
    while (slots_[hole].value && slots_[hole].id != id) hole = next(hole);
    if (!slots_[hole].value) return;
    const std::unique_ptr<T> gone = std::exchange(slots_[hole].value, nullptr);
    --size_;
    for (std::size_t at = next(hole); slots_[at].value; at = next(at)) {
      if (distance(home(slots_[at].id), at) < distance(hole, at)) continue;
      slots_[hole] = std::move(slots_[at]);
      slots_[at].value = nullptr;
      hole = at;
    }
  }
  std::size_t size() const { return size_; }
  void clear() {
    slots_.clear();
    size_ = 0;
  }
  // Calls visit(id, value) for each; it must not change the table.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_)
      if (slot.value) visit(slot.id, *slot.value);
  }

 private:
  static constexpr std::size_t kFewest = 64;
  struct Slot {
    RequestId id;
    std::unique_ptr<T> value;
  };
  std::size_t home(RequestId id) const { return static_cast<std::size_t>(id.value) & (slots_.size() - 1); }
  std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }
  std::size_t distance(std::size_t from, std::size_t to) const { return (to - from) & (slots_.size() - 1); }
  void place(Slot slot) {
    std::size_t at = home(slot.id);
    while (slots_[at].value) at = next(at);
    slots_[at] = std::move(slot);
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? kFewest : 2 * slots_.size());
    old.swap(slots_);
    for (Slot& slot : old)
      if (slot.value) place(std::move(slot));
  }

  std::vector<Slot> slots_;  // a power of two of them, at most half of them taken
  std::size_t size_ = 0;
};

}  // namespace mstar::conductor
