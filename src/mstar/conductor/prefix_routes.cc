#include "mstar/conductor/prefix_routes.h"

namespace mstar::conductor {
namespace {

// FNV-1a, whose low bits are then spread (the finaliser of MurmurHash3).
struct Hash {
  std::uint64_t state = 0xcbf29ce484222325u;
  void add(std::uint64_t value) { state = (state ^ value) * 0x100000001b3u; }
  std::uint64_t number() const {
    std::uint64_t x = state;
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
  }
};

}  // namespace

PrefixRoutes::Chain PrefixRoutes::chain_of(std::string_view salt, std::span<const std::int32_t> ids, int block_tokens) {
  Hash hash;
  for (const char each : salt) hash.add(static_cast<unsigned char>(each));
  hash.add(salt.size());
  Chain out;
  const auto block = static_cast<std::size_t>(block_tokens);
  out.reserve(ids.size() / block);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    hash.add(static_cast<std::uint32_t>(ids[i]));
    if ((i + 1) % block == 0) out.push_back(hash.number());
  }
  return out;
}

int PrefixRoutes::num_known(WorkerId replica, const Chain& chain) const {
  const auto table = tables_.find(replica);
  if (table == tables_.end()) return 0;
  int known = 0;
  for (const std::uint64_t number : chain) {
    if (!table->second.at.count(number)) break;
    ++known;
  }
  return known;
}

std::optional<WorkerId> PrefixRoutes::find(const Chain& chain, const std::function<bool(WorkerId)>& may) const {
  std::vector<const Holders*> known;
  known.reserve(chain.size());
  for (const std::uint64_t number : chain) {
    const auto holders = holders_.find(number);
    if (holders == holders_.end()) break;
    known.push_back(&holders->second);
  }
  for (auto holders = known.rbegin(); holders != known.rend(); ++holders) {
    const Holder* latest = nullptr;
    for (const Holder& each : **holders)
      if ((!latest || each.had_at > latest->had_at) && may(each.replica)) latest = &each;
    if (latest) return latest->replica;
  }
  return std::nullopt;
}

void PrefixRoutes::note(WorkerId replica, const Chain& chain) {
  if (chain.empty()) return;
  Table& table = tables_[replica];
  ++clock_;
  // From the end: the first blocks of a prompt outlive its last ones.
  for (auto number = chain.rbegin(); number != chain.rend(); ++number) {
    if (const auto known = table.at.find(*number); known != table.at.end()) {
      table.by_age.splice(table.by_age.begin(), table.by_age, known->second);
      (*known->second->holders)[known->second->place].had_at = clock_;
      continue;
    }
    Holders& holders = holders_[*number];
    table.by_age.push_front({*number, &holders, holders.size()});
    holders.push_back({replica, clock_});
    table.at.emplace(*number, table.by_age.begin());
  }
  while (table.by_age.size() > max_blocks_) {
    drop(table.by_age.back());
    table.at.erase(table.by_age.back().number);
    table.by_age.pop_back();
  }
}

// Out of the block's holders.
void PrefixRoutes::drop(const Block& block) {
  Holders& holders = *block.holders;
  const Holder last = holders.back();
  holders[block.place] = last;
  tables_.at(last.replica).at.at(block.number)->place = block.place;
  holders.pop_back();
  if (holders.empty()) holders_.erase(block.number);
}

void PrefixRoutes::forget(WorkerId replica) {
  const auto table = tables_.find(replica);
  if (table == tables_.end()) return;
  for (const Block& block : table->second.by_age) drop(block);
  tables_.erase(table);
}

std::size_t PrefixRoutes::num_blocks(WorkerId replica) const {
  const auto table = tables_.find(replica);
  return table == tables_.end() ? 0 : table->second.by_age.size();
}

}  // namespace mstar::conductor
