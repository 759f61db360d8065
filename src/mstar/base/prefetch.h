// Asking for memory before it is needed. The state of a thousand requests does not fit into a core's own cache: whoever
// walks over it asks for what comes a few requests later, first for the objects and then for what these point to.
#pragma once

#include <cstddef>

namespace mstar {

// Hints only; any address is allowed, null too.
inline void prefetch_bytes(const void* begin, std::size_t num_bytes) {
  constexpr std::size_t kLineBytes = 64;
  if (!begin) return;
  for (std::size_t at = 0; at < num_bytes; at += kLineBytes) __builtin_prefetch(static_cast<const char*>(begin) + at);
}
template <class T>
void prefetch(const T* object) {
  prefetch_bytes(object, sizeof(T));
}

}  // namespace mstar
