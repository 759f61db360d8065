#include "mstar/graph/sim/ledger.h"

namespace mstar::graph::sim {

void Ledger::admit(decl::PartitionRef partition, std::uint32_t ticket) {
  const Row row{partition, ticket};
  if (rows_.count(row) || ended_.count(row)) fault_ = "a ticket was used for two rows";
  const std::int64_t pages = 1 + ticket % 3;
  rows_[row] = pages;
  free_ -= pages;
  claimed_ += pages;
  check();
}

bool Ledger::in_flight(decl::PartitionRef partition, std::uint32_t ticket) const {
  return rows_.count({partition, ticket}) > 0;
}

std::int64_t Ledger::end(Row row) {
  const auto at = rows_.find(row);
  if (at == rows_.end()) {
    fault_ = ended_.count(row) ? "a row ended twice" : "a row ended that was never admitted";
    return 0;
  }
  const std::int64_t pages = at->second;
  rows_.erase(at);
  ended_[row] = true;
  claimed_ -= pages;
  return pages;
}

void Ledger::commit(decl::PartitionRef partition, std::uint32_t ticket) {
  owned_ += end({partition, ticket});
  ++num_committed_;
  check();
}

void Ledger::roll_back(decl::PartitionRef partition, std::uint32_t ticket) {
  free_ += end({partition, ticket});
  check();
}

void Ledger::remove() {
  while (!rows_.empty()) free_ += end(rows_.begin()->first);
  free_ += owned_;
  owned_ = 0;
  check();
  if (!whole()) fault_ = "pages are lost";
}

void Ledger::check() {
  if (free_ + claimed_ + owned_ != total_ || free_ < 0 || claimed_ < 0) fault_ = "pages are not conserved";
}

}  // namespace mstar::graph::sim
