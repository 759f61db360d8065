#include "mstar/resource/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace mstar::resource {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(PrefixIndex, FindsWhatContinuesANodeAndNothingElse) {
  PrefixIndex index(2, 10);
  const auto root = index.take_root("");
  const auto other = index.take_root("salt");
  const Ids a = {1, 2}, b = {3, 4};
  const auto first = index.add(root, a, 5);
  const auto second = index.add(first, b, 6);
  EXPECT_EQ(index.find(root, a), 5);
  EXPECT_EQ(index.find(first, b), 6);
  EXPECT_EQ(index.find(root, b), 0);
  EXPECT_EQ(index.find(other, a), 0);
  EXPECT_EQ(index.find(second, a), 0);
  EXPECT_EQ(index.node_of(6), second);
  EXPECT_EQ(index.node_of(7), PrefixIndex::kNone);
}

TEST(PrefixIndex, ARootLivesWhileSomebodyHoldsItOrPagesAreBelow) {
  PrefixIndex index(1, 10);
  const auto root = index.take_root("s");
  EXPECT_EQ(index.take_root("s"), root);
  index.add(root, Ids{1}, 3);
  index.let_go(root);
  index.let_go(root);
  EXPECT_EQ(index.take_root("s"), root);
  index.let_go(root);
  index.set_idle(3, true);
  EXPECT_EQ(index.evict(), 3);
  EXPECT_NE(index.take_root("s"), root);
}

TEST(PrefixIndex, EvictsLeavesThatHaveRestedLongest) {
  PrefixIndex index(1, 10);
  const auto root = index.take_root("");
  const auto a = index.add(root, Ids{1}, 1);
  index.add(a, Ids{2}, 2);
  index.add(root, Ids{3}, 3);
  EXPECT_EQ(index.evict(), 0);
  index.set_idle(1, true);  // the oldest, but something continues it
  EXPECT_EQ(index.evict(), 0);
  index.set_idle(3, true);
  index.set_idle(2, true);
  EXPECT_EQ(index.num_idle(), 3);
  EXPECT_EQ(index.evict(), 3);
  EXPECT_EQ(index.evict(), 2);
  EXPECT_EQ(index.evict(), 1);
  EXPECT_EQ(index.evict(), 0);
  EXPECT_EQ(index.num_idle(), 0);
}

int add_snapshot(PrefixIndex& index, std::int32_t page) {
  const int taken = index.take_snapshot();
  index.give_snapshot(taken, page);
  return taken;
}

TEST(PrefixIndex, SnapshotsGoInTheOrderOfTheirUseAndWithTheirPages) {
  PrefixIndex index(1, 10, 2);
  const auto root = index.take_root("");
  for (int page = 1; page <= 4; ++page) index.add(root, Ids{page}, page);
  EXPECT_EQ(index.snapshot_of(1), -1);
  EXPECT_EQ(add_snapshot(index, 1), 0);
  EXPECT_EQ(add_snapshot(index, 2), 1);
  EXPECT_EQ(index.num_snapshots(), 2);
  EXPECT_FALSE(index.was_used(1));
  index.use_snapshot(1);
  EXPECT_TRUE(index.was_used(1));
  EXPECT_EQ(add_snapshot(index, 3), 1);
  EXPECT_EQ(index.snapshot_of(2), -1);
  EXPECT_EQ(index.snapshot_of(1), 0);
  index.drop_snapshot(1);
  EXPECT_EQ(index.num_snapshots(), 1);
  EXPECT_EQ(add_snapshot(index, 4), 0);
  index.set_idle(3, true);
  EXPECT_EQ(index.evict(), 3);
  EXPECT_EQ(index.snapshot_of(3), -1);
  EXPECT_EQ(index.num_snapshots(), 1);
  EXPECT_TRUE(index.snapshots_add_up());
}

TEST(PrefixIndex, ASnapshotThatIsTakenIsNobodysUntilItIsGiven) {
  PrefixIndex index(1, 10, 2);
  const auto root = index.take_root("");
  for (int page = 1; page <= 3; ++page) index.add(root, Ids{page}, page);
  add_snapshot(index, 1);
  const int free = index.take_snapshot();
  EXPECT_EQ(index.snapshot_of(1), 0) << "there was a free one";
  const int taken = index.take_snapshot();
  EXPECT_EQ(index.snapshot_of(1), -1);
  EXPECT_EQ((std::set<int>{free, taken}), (std::set<int>{0, 1}));
  EXPECT_EQ(index.take_snapshot(), -1);
  EXPECT_EQ(index.num_snapshots(), 0);
  EXPECT_TRUE(index.snapshots_add_up());
  index.give_snapshot(taken, 2);
  EXPECT_EQ(index.snapshot_of(2), taken);
  EXPECT_EQ(index.num_snapshots(), 1);
  EXPECT_EQ(index.take_snapshot(), taken) << "of a page, not one that is taken";
  index.give_back_snapshot(free);
  EXPECT_EQ(index.take_snapshot(), free);
  index.give_back_snapshot(free);
  index.give_back_snapshot(taken);
  EXPECT_TRUE(index.snapshots_add_up());
  EXPECT_EQ(PrefixIndex(1, 2, 0).take_snapshot(), -1);
}

// Beside a map from whole texts to pages, and one from pages to snapshots.
TEST(PrefixIndex, AgreesWithAMapOfWholeTexts) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  constexpr int kPages = 40;
  constexpr int kSnapshots = 6;
  PrefixIndex index(2, kPages + 1, kSnapshots);
  const auto root = index.take_root("");
  std::map<Ids, std::int32_t> shadow;
  struct Snapshot {
    int number = 0;
    std::int64_t used_at = 0;
  };
  std::map<std::int32_t, Snapshot> snapshots;
  const auto snap = [&](std::int32_t page, std::int64_t now) {
    if (const auto it = snapshots.find(page); it != snapshots.end()) {
      ASSERT_EQ(index.snapshot_of(page), it->second.number);
      if (below(4) == 0) {
        index.drop_snapshot(page);
        snapshots.erase(it);
      } else {
        index.use_snapshot(page);
        it->second.used_at = now;
      }
      return;
    }
    ASSERT_EQ(index.snapshot_of(page), -1);
    if (snapshots.size() == kSnapshots)
      snapshots.erase(std::min_element(snapshots.begin(), snapshots.end(), [](const auto& a, const auto& b) {
        return a.second.used_at < b.second.used_at;
      }));
    const int number = add_snapshot(index, page);
    for (const auto& [other, each] : snapshots) ASSERT_NE(each.number, number) << other;
    ASSERT_TRUE(number >= 0 && number < kSnapshots);
    snapshots[page] = {number, now};
  };
  std::map<std::int32_t, std::int64_t> rests;
  std::vector<std::int32_t> free;
  for (int page = kPages; page > 0; --page) free.push_back(page);
  std::int64_t clock = 0;
  int num_evicted = 0;
  for (int event = 0; event < 20000; ++event) {
    Ids text;
    PrefixIndex::Node node = root;
    for (int depth = 0; depth < 5; ++depth) {
      const Ids ids = {below(2), below(2)};
      text.insert(text.end(), ids.begin(), ids.end());
      const auto known = shadow.find(text);
      const std::int32_t found = index.find(node, ids);
      ASSERT_EQ(found, known == shadow.end() ? 0 : known->second);
      if (found) {
        node = index.node_of(found);
        if (below(3) == 0) snap(found, ++clock);
        if (below(2)) {
          index.set_idle(found, true);
          rests.try_emplace(found, ++clock);
        } else if (below(2)) {
          index.set_idle(found, false);
          rests.erase(found);
        }
        continue;
      }
      if (free.empty()) {
        // The longest at rest of those that nothing continues.
        std::int32_t expected = 0;
        for (const auto& [ids_of, page] : shadow) {
          const bool continued = std::any_of(shadow.begin(), shadow.end(), [&, from = ids_of](const auto& each) {
            return each.first.size() == from.size() + 2 && std::equal(from.begin(), from.end(), each.first.begin());
          });
          if (continued || !rests.contains(page)) continue;
          if (!expected || rests[page] < rests[expected]) expected = page;
        }
        ASSERT_EQ(index.evict(), expected);
        if (expected) {
          ++num_evicted;
          rests.erase(expected);
          snapshots.erase(expected);
          std::erase_if(shadow, [&](const auto& each) { return each.second == expected; });
          free.push_back(expected);
        }
        break;
      }
      const std::int32_t page = free.back();
      free.pop_back();
      node = index.add(node, ids, page);
      shadow[text] = page;
    }
    ASSERT_EQ(index.num_idle(), static_cast<int>(rests.size()));
    ASSERT_EQ(index.num_snapshots(), static_cast<int>(snapshots.size()));
    ASSERT_TRUE(index.snapshots_add_up());
  }
  EXPECT_GT(num_evicted, 500);
}

}  // namespace
}  // namespace mstar::resource
