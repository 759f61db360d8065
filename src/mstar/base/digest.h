// A number that two places which did the same have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mstar {

// Of what was added, in its order. Not for keys or secrets: it finds differences that nobody made on purpose.
class Digest {
 public:
  void add(std::uint64_t number) {  // a step of splitmix64
    std::uint64_t x = (value_ ^ number) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    value_ = x ^ (x >> 31);
  }
  void add(std::span<const std::byte> bytes) {
    add(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      for (std::size_t b = i; b < std::min(bytes.size(), i + sizeof(word)); ++b)
        word = word << 8 | static_cast<std::uint64_t>(bytes[b]);
      add(word);
    }
  }
  std::uint64_t value() const { return value_; }
  friend bool operator==(const Digest&, const Digest&) = default;

 private:
  std::uint64_t value_ = 0;
};

}  // namespace mstar
