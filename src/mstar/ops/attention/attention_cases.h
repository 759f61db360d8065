// Shapes that the test of attention and the CUDA check share.
#pragma once

#include <cstdint>
#include <vector>

namespace mstar::op_test {

struct AttentionCase {
  int heads, kv_heads, d;
  std::vector<std::int32_t> counts;  // query tokens of each row
  std::vector<std::int32_t> before;  // cached tokens of each row (paged), or keys (slots)
};

// One row and many, grouped queries, empty rows, lengths around the blocks of 128 keys and the pages.
inline const std::vector<AttentionCase> kAttentionCases = {
    {1, 1, 16, {1}, {0}},
    {2, 2, 64, {1, 3, 17}, {0, 5, 130}},
    {4, 2, 64, {13, 0, 1, 260}, {15, 4, 300, 0}},
    {6, 1, 32, {5, 25}, {128, 127}},
    {8, 8, 64, {1, 1, 1, 1}, {1, 16, 33, 447}},
    {16, 2, 128, {1, 40}, {511, 3}},
};

}  // namespace mstar::op_test
