#include "mstar/conductor/prefix_directory.h"

#include <algorithm>

namespace mstar::conductor {
namespace {

constexpr std::uint64_t kPrime = 0x100000001b3u;

// splitmix64's finish: every bit of the ids moves every bit of the number.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

PrefixBlocks prefix_blocks(std::span<const std::int32_t> ids, std::string_view salt, int block_tokens) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : salt) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  const auto size = static_cast<std::size_t>(std::max(1, block_tokens));
  PrefixBlocks out;
  out.reserve(ids.size() / size);
  for (std::size_t begin = 0; begin + size <= ids.size(); begin += size) {
    for (const std::int32_t id : ids.subspan(begin, size)) hash = (hash ^ static_cast<std::uint32_t>(id)) * kPrime;
    out.push_back(hash = mix(hash));
  }
  return out;
}

std::size_t PrefixDirectory::num_known(const PrefixBlocks& blocks, WorkerId replica) const {
  std::size_t out = 0;
  while (out < blocks.size() && places_.count({blocks[out], replica})) ++out;
  return out;
}

// The last block first, so that a prompt is forgotten from its end.
void PrefixDirectory::note(const PrefixBlocks& blocks, WorkerId replica) {
  for (std::size_t i = blocks.size(); i-- > 0;) {
    const Key key{blocks[i], replica};
    const auto found = places_.find(key);
    if (found != places_.end()) {
      order_.splice(order_.begin(), order_, found->second);
      continue;
    }
    order_.push_front(key);
    places_.emplace(key, order_.begin());
  }
  while (places_.size() > max_blocks_) {
    places_.erase(order_.back());
    order_.pop_back();
  }
}

void PrefixDirectory::forget(WorkerId replica) {
  for (auto it = order_.begin(); it != order_.end();) {
    if (it->replica != replica) {
      ++it;
      continue;
    }
    places_.erase(*it);
    it = order_.erase(it);
  }
}

}  // namespace mstar::conductor
