// The consumer's end of one stream of one request: items in, chunks out. Thread: the owner's.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "mstar/base/value.h"
#include "mstar/decl/port.h"

namespace mstar::graph {

struct StreamChunk {
  Values items;
  int num_seen = 0;  // leading items that an earlier chunk held too
  bool is_final = false;
};

// Items carry their index in the stream, because two workers may produce it in turn: gaps wait, repeats are refused.
// After finish(n) and item n-1, exactly one chunk is final: the rest, empty if every item was seen in an earlier chunk.
// With continue_after_done no chunk is final and empty chunks never end.
class StreamBuffer {
 public:
  explicit StreamBuffer(decl::ChunkPolicy policy) : policy_(std::move(policy)) {}

  // False for an index that is already there or past the announced end: the item is dropped.
  bool push(std::int64_t index, Value item);
  // The producer is done after `num_items` in all. The first call counts.
  void finish(std::int64_t num_items);

  // The next chunk without taking it, or nullptr. Once made it stays the same chunk, whatever arrives later: a step
  // that was prepared with it and dropped leaves it for the next one.
  const StreamChunk* peek();
  // Hands out the peeked chunk; nullopt when there is none.
  std::optional<StreamChunk> take();
  // Drops all items with an index < `end`, received or not, and a peeked chunk (barge-in). A finished stream still ends
  // with one final chunk.
  void discard_to(std::int64_t end);

  std::int64_t num_received() const { return end_; }       // without items behind a gap
  std::int64_t num_consumed() const { return consumed_; }  // items that a taken chunk held
  bool producer_done() const { return total_ >= 0; }
  bool final_taken() const { return final_taken_; }
  std::size_t num_values() const { return items_.size() + ahead_.size() + (held_ ? held_->items.size() : 0); }

 private:
  std::optional<StreamChunk> make_chunk();
  std::optional<StreamChunk> make_chunk(const decl::FixedChunks& policy, std::int64_t unseen, bool done);
  std::optional<StreamChunk> make_chunk(const decl::SlidingWindow& policy, std::int64_t unseen, bool done);
  std::optional<StreamChunk> make_chunk(const decl::LeftContext& policy, std::int64_t unseen, bool done);
  StreamChunk copy_items(std::int64_t from, std::int64_t to, bool is_final) const;
  void drop_before(std::int64_t index);

  decl::ChunkPolicy policy_;
  std::deque<Value> items_;  // [begin_, end_)
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  std::int64_t seen_ = 0;  // items before this index were in some chunk
  std::int64_t consumed_ = 0;
  std::int64_t total_ = -1;
  std::int64_t num_chunks_ = 0;
  bool final_made_ = false;
  bool final_taken_ = false;
  std::optional<StreamChunk> held_;
  std::vector<std::pair<std::int64_t, Value>> ahead_;  // items behind a gap, by index
};

}  // namespace mstar::graph
