#include "mstar/resource/prefix_index.h"

#include <algorithm>
#include <utility>

#include "mstar/base/check.h"

namespace mstar::resource {

PrefixIndex::PrefixIndex(int page_tokens, int num_pages, int num_snapshots)
    : page_tokens_(page_tokens),
      pages_(static_cast<std::size_t>(num_pages)),
      snapshots_(static_cast<std::size_t>(num_snapshots)) {
  for (int i = num_snapshots - 1; i >= 0; --i) free_snapshots_.push_back(i);
}

PrefixIndex::Node PrefixIndex::take_root(const std::string& salt) {
  Root& root = roots_[salt];
  if (root.node == kNone) {
    root.node = ++last_node_;
    salt_of_.emplace(root.node, salt);
  }
  ++root.num_holders;
  return root.node;
}

void PrefixIndex::let_go(Node root) {
  const auto it = salt_of_.find(root);
  MSTAR_CHECK(it != salt_of_.end(), "a root was let go that nobody holds");
  const std::string salt = it->second;
  --roots_[salt].num_holders;
  drop_if_unused(salt);
}

void PrefixIndex::drop_if_unused(const std::string& salt) {
  const auto it = roots_.find(salt);
  if (it->second.num_holders > 0 || it->second.num_children > 0) return;
  salt_of_.erase(it->second.node);
  roots_.erase(it);
}

std::uint64_t PrefixIndex::key(Node parent, std::span<const std::int32_t> ids) const {
  std::uint64_t hash = parent * 0x9e3779b97f4a7c15u;
  for (const std::int32_t id : ids) {
    hash ^= static_cast<std::uint32_t>(id);
    hash *= 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

std::int32_t PrefixIndex::find(Node parent, std::span<const std::int32_t> ids) const {
  const auto [begin, end] = by_key_.equal_range(key(parent, ids));
  for (auto it = begin; it != end; ++it) {
    const Page& page = pages_[static_cast<std::size_t>(it->second)];
    if (page.parent == parent && std::equal(ids.begin(), ids.end(), page.ids.begin(), page.ids.end()))
      return it->second;
  }
  return 0;
}

PrefixIndex::Node PrefixIndex::add(Node parent, std::span<const std::int32_t> ids, std::int32_t page) {
  MSTAR_CHECK(static_cast<int>(ids.size()) == page_tokens_ && node_of(page) == kNone);
  Page& added = at(page);
  added = {.node = ++last_node_, .parent = parent, .ids = {ids.begin(), ids.end()}};
  by_key_.emplace(key(parent, ids), page);
  page_of_.emplace(added.node, page);
  count_child(parent, 1);
  return added.node;
}

void PrefixIndex::count_child(Node parent, int by) {
  if (const auto above = page_of_.find(parent); above != page_of_.end()) {
    const bool was_leaf = is_idle_leaf(above->second);
    at(above->second).num_children += by;
    return update(above->second, was_leaf);
  }
  const auto salt = salt_of_.find(parent);
  MSTAR_CHECK(salt != salt_of_.end(), "a page continues one that is gone");
  roots_[salt->second].num_children += by;
  if (by < 0) drop_if_unused(std::string(salt->second));
}

void PrefixIndex::update(std::int32_t page, bool was_leaf) {
  const bool is_leaf = is_idle_leaf(page);
  if (was_leaf == is_leaf) return;
  if (is_leaf) {
    leaves_.emplace(at(page).rests_since, page);
  } else {
    leaves_.erase({at(page).rests_since, page});
  }
}

void PrefixIndex::set_idle(std::int32_t page, bool idle) {
  Page& changed = at(page);
  if (changed.idle == idle) return;
  const bool was_leaf = is_idle_leaf(page);
  if (!idle) {  // leaves under the time at which it came to rest
    changed.idle = false;
    update(page, was_leaf);
  } else {
    changed.rests_since = ++clock_;
    changed.idle = true;
    update(page, was_leaf);
  }
  num_idle_ += idle ? 1 : -1;
}

std::int32_t PrefixIndex::evict() {
  if (leaves_.empty()) return 0;
  const std::int32_t page = leaves_.begin()->second;
  leaves_.erase(leaves_.begin());
  --num_idle_;
  if (snapshot_of(page) >= 0) drop_snapshot(page);
  Page gone = std::move(at(page));
  at(page) = {};
  const auto [begin, end] = by_key_.equal_range(key(gone.parent, gone.ids));
  for (auto it = begin; it != end; ++it)
    if (it->second == page) {
      by_key_.erase(it);
      break;
    }
  page_of_.erase(gone.node);
  count_child(gone.parent, -1);
  return page;
}

int PrefixIndex::take_snapshot() {
  if (free_snapshots_.empty()) {
    const auto age = [](const Snapshot& each) { return each.page ? each.used_at : ~std::uint64_t{0}; };
    const auto oldest = std::min_element(snapshots_.begin(), snapshots_.end(),
                                         [&](const Snapshot& a, const Snapshot& b) { return age(a) < age(b); });
    if (oldest == snapshots_.end() || oldest->page == 0) return -1;
    drop_snapshot(oldest->page);
  }
  const int taken = free_snapshots_.back();
  free_snapshots_.pop_back();
  ++num_taken_snapshots_;
  return taken;
}

void PrefixIndex::give_back_snapshot(int snapshot) {
  MSTAR_CHECK(num_taken_snapshots_ > 0 && snapshots_[static_cast<std::size_t>(snapshot)].page == 0);
  --num_taken_snapshots_;
  free_snapshots_.push_back(snapshot);
}

void PrefixIndex::give_snapshot(int snapshot, std::int32_t page) {
  Snapshot& given = snapshots_[static_cast<std::size_t>(snapshot)];
  MSTAR_CHECK(num_taken_snapshots_ > 0 && given.page == 0 && node_of(page) != kNone && snapshot_of(page) < 0);
  --num_taken_snapshots_;
  given = {.page = page, .used_at = ++clock_};
  at(page).snapshot = snapshot;
}

void PrefixIndex::use_snapshot(std::int32_t page) {
  Snapshot& used = snapshots_[static_cast<std::size_t>(snapshot_of(page))];
  used.used_at = ++clock_;
  used.was_used = true;
}

bool PrefixIndex::was_used(std::int32_t page) const {
  return snapshots_[static_cast<std::size_t>(snapshot_of(page))].was_used;
}

void PrefixIndex::drop_snapshot(std::int32_t page) {
  const int dropped = std::exchange(at(page).snapshot, -1);
  snapshots_[static_cast<std::size_t>(dropped)] = {};
  free_snapshots_.push_back(dropped);
}

bool PrefixIndex::snapshots_add_up() const {
  std::vector<int> named(snapshots_.size());
  for (std::int32_t page = 0; page < static_cast<std::int32_t>(pages_.size()); ++page) {
    const int snapshot = snapshot_of(page);
    if (snapshot < 0) continue;
    if (node_of(page) == kNone || snapshots_[static_cast<std::size_t>(snapshot)].page != page) return false;
    ++named[static_cast<std::size_t>(snapshot)];
  }
  for (const int snapshot : free_snapshots_) ++named[static_cast<std::size_t>(snapshot)];
  const bool once = std::all_of(named.begin(), named.end(), [](int count) { return count <= 1; });
  return once && std::count(named.begin(), named.end(), 0) == num_taken_snapshots_;
}

}  // namespace mstar::resource
