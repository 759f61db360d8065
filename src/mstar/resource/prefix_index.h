// Which page holds the keys and values of which tokens: a tree of full pages, by the ids before and in them.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mstar::resource {

// A node is a full page of one text; its parent is the page before it, and the root of a text is its salt. Ids are
// compared at each step down, and a node's number is never used twice, so that what is found is the same text from its
// beginning: no hash is trusted. A page without an owner stays until its memory is asked for; whoever owns a page owns
// all those above it. Some pages have a snapshot: the number of a place, elsewhere, that holds what else a model keeps
// after the page's last token. Pure host logic; no errors. Cost of a step: O(page_tokens); of a snapshot: O(snapshots).
class PrefixIndex {
 public:
  using Node = std::uint64_t;
  static constexpr Node kNone = 0;

  PrefixIndex(int page_tokens, int num_pages, int num_snapshots = 0);

  // The root of texts with this salt, held until it is let go as often as it was taken.
  Node take_root(const std::string& salt);
  void let_go(Node root);

  // The page that continues `parent` with these ids, or 0.
  std::int32_t find(Node parent, std::span<const std::int32_t> ids) const;
  // Puts a page there. `parent` is a node or a taken root, and nothing continues it with these ids.
  Node add(Node parent, std::span<const std::int32_t> ids, std::int32_t page);
  // Of a page; kNone when it is not in the tree.
  Node node_of(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)].node; }
  // Whether other pages continue it.
  bool is_continued(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)].num_children > 0; }
  // What tells a place below `parent` from others, nearly always.
  std::uint64_t key(Node parent, std::span<const std::int32_t> ids) const;

  // A page of the tree that lost its last owner, or got its first one again.
  void set_idle(std::int32_t page, bool idle);
  int num_idle() const { return num_idle_; }
  // Forgets the idle page that has rested longest of those that nothing continues; 0 when there is none.
  std::int32_t evict();

  // ---- snapshots, numbered from 0
  // Of a page; -1: it has none.
  int snapshot_of(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)].snapshot; }
  // Takes a free number, or else that of the page's whose was used longest ago: no page's until it is given to one or
  // back. -1: all are taken.
  int take_snapshot();
  void give_back_snapshot(int snapshot);
  // To a page of the tree that has none.
  void give_snapshot(int snapshot, std::int32_t page);
  // It was found by another text, or again: it is the last to go.
  void use_snapshot(std::int32_t page);
  // Whether it has been since it was added.
  bool was_used(std::int32_t page) const;
  void drop_snapshot(std::int32_t page);
  // Of pages.
  int num_snapshots() const {
    return static_cast<int>(snapshots_.size() - free_snapshots_.size()) - num_taken_snapshots_;
  }
  int num_taken_snapshots() const { return num_taken_snapshots_; }
  // Whether each is free, taken, or of one page of the tree that names it. Cost: O(pages).
  bool snapshots_add_up() const;

 private:
  struct Page {
    Node node = kNone;
    Node parent = kNone;
    std::vector<std::int32_t> ids;
    int num_children = 0;
    int snapshot = -1;
    bool idle = false;
    std::uint64_t rests_since = 0;
  };
  struct Root {
    Node node = kNone;
    int num_holders = 0;
    int num_children = 0;
  };
  struct Snapshot {
    std::int32_t page = 0;  // 0: free or taken
    std::uint64_t used_at = 0;
    bool was_used = false;
  };
  Page& at(std::int32_t page) { return pages_[static_cast<std::size_t>(page)]; }
  void count_child(Node parent, int by);
  // Keeps leaves_ true after a change of the page.
  void update(std::int32_t page, bool was_leaf);
  bool is_idle_leaf(std::int32_t page) { return at(page).idle && at(page).num_children == 0; }
  void drop_if_unused(const std::string& salt);

  int page_tokens_;
  std::vector<Page> pages_;
  std::unordered_multimap<std::uint64_t, std::int32_t> by_key_;
  std::unordered_map<Node, std::int32_t> page_of_;
  std::unordered_map<std::string, Root> roots_;
  std::unordered_map<Node, std::string> salt_of_;
  std::set<std::pair<std::uint64_t, std::int32_t>> leaves_;  // idle ones, the longest at rest first
  std::vector<Snapshot> snapshots_;
  std::vector<int> free_snapshots_;
  int num_taken_snapshots_ = 0;
  Node last_node_ = kNone;
  std::uint64_t clock_ = 0;
  int num_idle_ = 0;
};

}  // namespace mstar::resource
