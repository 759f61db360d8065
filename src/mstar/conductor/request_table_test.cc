#include "mstar/conductor/request_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace mstar::conductor {
namespace {

TEST(RequestTable, IsEmptyAtFirst) {
  RequestTable<int> table;
  EXPECT_EQ(table.find(RequestId(1)), nullptr);
  EXPECT_EQ(table.find(RequestId()), nullptr);
  table.erase(RequestId(1));
  EXPECT_EQ(table.size(), 0u);
}

// Beside a map: ids that count up, most of which go soon and some never, and ids that were never there.
TEST(RequestTable, HoldsWhatAMapHolds) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    RequestTable<std::uint64_t> table;
    std::map<std::uint64_t, const std::uint64_t*> plain;  // where it is: it must not move
    const std::size_t most = 1 + random() % 200;
    std::uint64_t next = random() % 1000;
    for (int turn = 0; turn < 3000; ++turn) {
      if (plain.size() < most && random() % 2) {
        next += random() % 8 == 0 ? 1 + random() % 300 : 1;  // some are of other tables
        auto value = std::make_unique<std::uint64_t>(next);
        plain[next] = value.get();
        table.insert(RequestId(next), std::move(value));
      } else if (!plain.empty()) {
        auto gone = std::next(plain.begin(), static_cast<std::ptrdiff_t>(random() % plain.size()));
        if (gone->first % 16 == 0) continue;  // stays for good
        table.erase(RequestId(gone->first));
        plain.erase(gone);
      }
      ASSERT_EQ(table.size(), plain.size());
      const std::uint64_t any = next - random() % 400;
      const auto known = plain.find(any);
      const std::uint64_t* const found = table.find(RequestId(any));
      ASSERT_EQ(found, known == plain.end() ? nullptr : known->second);
      if (turn % 100 > 0) continue;
      std::map<std::uint64_t, const std::uint64_t*> all;
      table.for_each([&](RequestId id, const std::uint64_t& value) { all[id.value] = &value; });
      ASSERT_EQ(all, plain);
      for (const auto& [id, value] : plain) ASSERT_EQ(table.find(RequestId(id)), value);
    }
    table.clear();
    EXPECT_EQ(table.size(), 0u);
    EXPECT_EQ(table.find(RequestId(next)), nullptr);
  }
}

}  // namespace
}  // namespace mstar::conductor
