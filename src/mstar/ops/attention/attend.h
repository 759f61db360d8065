// One tile of attention on the CPU: up to kTilePairs (query, head) pairs that share a kv head. What the three forms of
// attention_cpu.cc have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mstar/ops/attention/kv_layout.h"

namespace mstar {

inline constexpr int kTilePairs = 12;
// Keys between two looks at the running maximum. Part of the arithmetic: a change changes bits.
inline constexpr int kKeyBlock = 128;

// Keys and values of one row's one kv head, unit by unit (16 tokens), as kv_layout.h says.
struct KvUnits {
  const void* keys = nullptr;  // of the head: in a page with `pages`, else of the whole row
  const void* values = nullptr;
  DType dtype = DType::f32;
  const std::int32_t* pages = nullptr;
  std::int64_t page_tokens = 0;
  std::int64_t page_stride = 0;  // elements from page to page
  std::int64_t key_stride = 16;  // elements from one dimension of a key to the next
  std::int64_t value_width = 0;  // elements of a value row, a multiple of 16

  // Element offset of a unit's first value; its keys begin key_offset() elements in.
  std::int64_t value_offset(std::int64_t unit) const {
    const std::int64_t token = unit * kKeyUnit;
    if (!pages) return token * value_width;
    return pages[token / page_tokens] * page_stride + token % page_tokens * value_width;
  }
  std::int64_t key_offset(std::int64_t unit, std::int64_t head_dim) const {
    const std::int64_t token = unit * kKeyUnit;
    if (!pages) return token * head_dim;
    return pages[token / page_tokens] * page_stride + token % page_tokens;
  }
};

struct AttendTile {
  KvUnits kv;
  std::int64_t head_dim = 0;
  float scale = 1.0f;
  int num_pairs = 0;
  const float* q[kTilePairs] = {};
  float* out[kTilePairs] = {};
  std::int64_t num_keys[kTilePairs] = {};  // what a pair sees: keys [0, num_keys)
};

// Floats of scratch that a tile needs.
std::size_t attend_scratch_floats(std::int64_t head_dim);
void attend_tile(const AttendTile& tile, float* scratch);

// Writes `count` keys to unit `unit` of a slot-like row: keys are [head_dim] floats, `stride` floats apart.
void pack_key_unit(const float* keys, std::int64_t stride, int count, std::int64_t head_dim, float* to);

}  // namespace mstar
