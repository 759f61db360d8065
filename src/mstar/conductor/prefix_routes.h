// Which replica had the beginning of which prompts most recently: what `routing: prefix` chooses by.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mstar/base/ids.h"

namespace mstar::conductor {

// A guess at the prefix caches of replicas, which the conductor does not see: what was sent there last is likely to be
// there still. Numbers of blocks are trusted: when two texts have one, a request goes to a replica that does not know
// its text, and nothing else. One owner thread; no errors. Cost: O(blocks of the prompt).
class PrefixRoutes {
 public:
  // A number for each whole block of a prompt: of the block, of all that is before it, and of the salt.
  using Chain = std::vector<std::uint64_t>;
  static Chain chain_of(std::string_view salt, std::span<const std::int32_t> ids, int block_tokens);

  static constexpr std::size_t kMaxBlocks = 32768;
  PrefixRoutes() = default;
  explicit PrefixRoutes(std::size_t max_blocks) : max_blocks_(max_blocks) {}

  // Blocks, the first of the chain, that the replica had.
  int num_known(WorkerId replica, const Chain& chain) const;
  // Of the replicas that `may` takes the one that had most of the chain's blocks, and of several the one that had them
  // last; none when no such replica had the first one. Asked of a replica at most once for each block of the chain.
  // Cost: O(blocks of the chain + replicas that had those blocks, from the last one on that any had to the one that is
  // enough).
  std::optional<WorkerId> find(const Chain& chain, const std::function<bool(WorkerId)>& may) const;
  // The replica gets a prompt. Of its blocks beyond max_blocks those that it had longest ago are forgotten, of one
  // prompt the last ones first.
  void note(WorkerId replica, const Chain& chain);
  // Its cache is gone.
  void forget(WorkerId replica);
  std::size_t num_blocks(WorkerId replica) const;

 private:
  // Who had a block. Whoever had it had all those before it in its chain: they are noted together, and forgotten from
  // the end.
  struct Holder {
    WorkerId replica;
    std::uint64_t had_at = 0;
  };
  using Holders = std::vector<Holder>;
  struct Block {
    std::uint64_t number = 0;
    Holders* holders = nullptr;
    std::size_t place = 0;  // in them
  };
  struct Table {
    std::list<Block> by_age;  // the latest first
    std::unordered_map<std::uint64_t, std::list<Block>::iterator> at;
  };
  void drop(const Block& block);

  std::size_t max_blocks_ = kMaxBlocks;
  std::unordered_map<std::uint64_t, Holders> holders_;  // by the block's number; never empty
  std::unordered_map<WorkerId, Table> tables_;
  std::uint64_t clock_ = 0;
};

}  // namespace mstar::conductor
