#include "mstar/graph/stream_buffer.h"

#include <algorithm>

namespace mstar::graph {

bool StreamBuffer::push(std::int64_t index, Value item) {
  if (index < end_ || (total_ >= 0 && index >= total_)) return false;
  if (index > end_) {
    const auto at = std::lower_bound(ahead_.begin(), ahead_.end(), index,
                                     [](const auto& a, std::int64_t i) { return a.first < i; });
    if (at != ahead_.end() && at->first == index) return false;
    ahead_.emplace(at, index, std::move(item));
    return true;
  }
  items_.push_back(std::move(item));
  ++end_;
  std::size_t n = 0;
  for (; n < ahead_.size() && ahead_[n].first <= end_; ++n) {
    if (ahead_[n].first < end_) continue;
    items_.push_back(std::move(ahead_[n].second));
    ++end_;
  }
  if (n) ahead_.erase(ahead_.begin(), ahead_.begin() + static_cast<std::ptrdiff_t>(n));
  return true;
}

void StreamBuffer::finish(std::int64_t num_items) {
  if (total_ < 0) total_ = std::max<std::int64_t>(num_items, end_);
}

const StreamChunk* StreamBuffer::peek() {
  if (!held_ && !final_made_) held_ = make_chunk();
  return held_ ? &*held_ : nullptr;
}

std::optional<StreamChunk> StreamBuffer::take() {
  if (!peek()) return std::nullopt;
  std::optional<StreamChunk> chunk = std::move(held_);
  held_.reset();
  consumed_ += static_cast<std::int64_t>(chunk->items.size()) - chunk->num_seen;
  final_taken_ = final_taken_ || chunk->is_final;
  return chunk;
}

void StreamBuffer::discard_to(std::int64_t end) {
  if (held_ && held_->is_final) final_made_ = false;
  held_.reset();
  while (!ahead_.empty() && ahead_.front().first < end) ahead_.erase(ahead_.begin());
  if (end_ < end) end_ = end;
  seen_ = std::max(seen_, end);
  drop_before(seen_);
  while (!ahead_.empty() && ahead_.front().first == end_) {
    items_.push_back(std::move(ahead_.front().second));
    ++end_;
    ahead_.erase(ahead_.begin());
  }
  num_chunks_ = 0;
}

std::optional<StreamChunk> StreamBuffer::make_chunk() {
  const std::int64_t unseen = end_ - seen_;
  const bool done = total_ >= 0 && end_ >= total_;
  std::optional<StreamChunk> chunk =
      std::visit([&](const auto& policy) { return make_chunk(policy, unseen, done); }, policy_);
  if (chunk) {
    final_made_ = chunk->is_final;
    ++num_chunks_;
  }
  return chunk;
}

std::optional<StreamChunk> StreamBuffer::make_chunk(const decl::FixedChunks& policy, std::int64_t unseen, bool done) {
  const bool last = done && unseen <= policy.items && !policy.continue_after_done;
  if (unseen < policy.items && !done) return std::nullopt;
  const std::int64_t to = seen_ + std::min<std::int64_t>(unseen, policy.items);
  StreamChunk chunk = copy_items(seen_, to, last);
  seen_ = to;
  drop_before(seen_);
  return chunk;
}

std::optional<StreamChunk> StreamBuffer::make_chunk(const decl::SlidingWindow& policy, std::int64_t, bool done) {
  // begin_ is where the next window starts; items before seen_ were in the window before it.
  const std::int64_t size = end_ - begin_;
  if (size < policy.window && !done) return std::nullopt;
  const std::int64_t to = begin_ + std::min<std::int64_t>(size, policy.window);
  const bool last = done && to == end_;
  if (last && to == seen_) return copy_items(to, to, true);
  StreamChunk chunk = copy_items(begin_, to, last);
  seen_ = std::max(seen_, to);
  drop_before(std::min(begin_ + policy.stride, to));
  return chunk;
}

std::optional<StreamChunk> StreamBuffer::make_chunk(const decl::LeftContext& policy, std::int64_t unseen, bool done) {
  const auto nth = static_cast<std::size_t>(num_chunks_);
  const std::int64_t fresh = nth < policy.ramp.size() ? policy.ramp[nth] : policy.items;
  if (unseen < fresh && !done) return std::nullopt;
  const bool last = done && unseen <= fresh;
  if (unseen == 0) return copy_items(end_, end_, last);
  const std::int64_t to = seen_ + std::min(unseen, fresh);
  StreamChunk chunk = copy_items(begin_, to, last);
  seen_ = to;
  drop_before(seen_ - policy.context);
  return chunk;
}

StreamChunk StreamBuffer::copy_items(std::int64_t from, std::int64_t to, bool is_final) const {
  StreamChunk chunk;
  chunk.is_final = is_final;
  chunk.num_seen = static_cast<int>(std::clamp<std::int64_t>(seen_ - from, 0, to - from));
  chunk.items.assign(items_.begin() + (from - begin_), items_.begin() + (to - begin_));
  return chunk;
}

void StreamBuffer::drop_before(std::int64_t index) {
  while (begin_ < index && !items_.empty()) {
    items_.pop_front();
    ++begin_;
  }
  begin_ = std::max(begin_, std::min(index, end_));
}

}  // namespace mstar::graph
