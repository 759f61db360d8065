#include "mstar/text/stop_strings.h"

namespace mstar {

StopStrings::StopStrings(const std::vector<std::string>& strings) : nodes_(1) {
  firsts_.fill(-1);
  for (const std::string& each : strings)
    if (!each.empty()) add(each);
  link();
}

std::int32_t StopStrings::child(std::int32_t node, std::uint8_t byte) const {
  if (node == 0) return firsts_[byte];
  std::int32_t at = nodes_[static_cast<std::size_t>(node)].first_child;
  while (at >= 0 && nodes_[static_cast<std::size_t>(at)].byte != byte)
    at = nodes_[static_cast<std::size_t>(at)].next_sibling;
  return at;
}

void StopStrings::add(std::string_view text) {
  std::int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      Node fresh{.next_sibling = at(node).first_child, .length = at(node).length + 1, .byte = byte};
      at(node).first_child = next;
      if (node == 0) firsts_[byte] = next;
      nodes_.push_back(fresh);
    }
    node = next;
  }
  at(node).match = at(node).length;
}

// From the shorter beginnings to the longer ones.
void StopStrings::link() {
  std::vector<std::int32_t> order = {0};
  order.reserve(nodes_.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int32_t parent = order[i];
    for (std::int32_t node = at(parent).first_child; node >= 0; node = at(node).next_sibling) {
      if (parent != 0) at(node).fallback = step(at(parent).fallback, at(node).byte);
      if (at(node).match == 0) at(node).match = at(at(node).fallback).match;
      order.push_back(node);
    }
  }
}

std::int32_t StopStrings::step(std::int32_t node, std::uint8_t byte) const {
  for (;;) {
    if (const std::int32_t next = child(node, byte); next >= 0) return next;
    if (node == 0) return 0;
    node = nodes_[static_cast<std::size_t>(node)].fallback;
  }
}

std::string StopStrings::push(std::string_view text) {
  if (matched_) return {};
  if (nodes_.size() == 1) return std::string(text);
  const std::size_t before = held_.size();
  held_ += text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    state_ = step(state_, static_cast<std::uint8_t>(text[i]));
    const auto match = static_cast<std::size_t>(at(state_).match);
    if (match == 0) continue;
    matched_ = true;
    return give(before + i + 1 - match - given_bytes_);
  }
  return give(held_.size() - given_bytes_ - static_cast<std::size_t>(at(state_).length));
}

// Takes the bytes out when they are as many as those that stay: each is moved once, in all.
std::string StopStrings::give(std::size_t num_bytes) {
  std::string out = held_.substr(given_bytes_, num_bytes);
  given_bytes_ += num_bytes;
  if (2 * given_bytes_ >= held_.size()) {
    held_.erase(0, given_bytes_);
    given_bytes_ = 0;
  }
  return out;
}

std::string StopStrings::finish() { return matched_ ? std::string() : give(held_.size() - given_bytes_); }

}  // namespace mstar
