// The null engine's resources: what rows claim, and how each row ends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "mstar/decl/refs.h"

namespace mstar::graph::sim {

// Pages of one worker. A row claims some when it begins (or is prepared ahead); its commit makes them the request's,
// its rollback gives them back. Every call keeps free + claimed + owned = total, and every row ends exactly once.
class Ledger {
 public:
  explicit Ledger(std::int64_t num_pages = 1 << 24) : total_(num_pages), free_(num_pages) {}

  void admit(decl::PartitionRef partition, std::uint32_t ticket);
  bool in_flight(decl::PartitionRef partition, std::uint32_t ticket) const;
  void commit(decl::PartitionRef partition, std::uint32_t ticket);
  void roll_back(decl::PartitionRef partition, std::uint32_t ticket);
  // The request is gone: rows in flight are rolled back, what it owns comes back.
  void remove();

  std::int64_t num_committed() const { return num_committed_; }
  std::int64_t num_in_flight() const { return static_cast<std::int64_t>(rows_.size()); }
  bool whole() const { return free_ == total_; }
  // The first broken rule; empty: none.
  const std::string& fault() const { return fault_; }

 private:
  using Row = std::tuple<decl::PartitionRef, std::uint32_t>;
  std::int64_t end(Row row);
  void check();

  std::int64_t total_, free_, claimed_ = 0, owned_ = 0, num_committed_ = 0;
  std::map<Row, std::int64_t> rows_;  // in flight, with their pages
  std::map<Row, bool> ended_;
  std::string fault_;
};

}  // namespace mstar::graph::sim
