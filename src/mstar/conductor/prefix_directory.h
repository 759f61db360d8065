// Which replicas were given which beginnings of prompts: what their prefix caches probably hold.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mstar/base/ids.h"

namespace mstar::conductor {

// A prompt's whole blocks as numbers, each of which stands for all ids up to its end.
using PrefixBlocks = std::vector<std::uint64_t>;
// Prompts of different salts have nothing in common. Cost: O(ids).
PrefixBlocks prefix_blocks(std::span<const std::int32_t> ids, std::string_view salt, int block_tokens);

// A guess: the replica may have let pages go since. Blocks that were used longest ago are forgotten first. Thread: one.
class PrefixDirectory {
 public:
  explicit PrefixDirectory(std::size_t max_blocks = 1 << 16) : max_blocks_(max_blocks) {}
  // How many of the blocks, from the first on, the replica was given.
  std::size_t num_known(const PrefixBlocks& blocks, WorkerId replica) const;
  void note(const PrefixBlocks& blocks, WorkerId replica);
  // Its caches are gone.
  void forget(WorkerId replica);
  std::size_t size() const { return places_.size(); }

 private:
  struct Key {
    std::uint64_t block;
    WorkerId replica;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const { return key.block ^ (0x9e3779b97f4a7c15u * (key.replica.value + 1)); }
  };
  const std::size_t max_blocks_;
  std::list<Key> order_;  // used last at the front
  std::unordered_map<Key, std::list<Key>::iterator, Hash> places_;
};

}  // namespace mstar::conductor
