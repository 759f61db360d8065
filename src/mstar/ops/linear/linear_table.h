// Which kernel and which algorithm of cuBLASLt a shape takes on an H200, as bench/linear_tune measured them (ADR 0004).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "mstar/base/dtype.h"

namespace mstar {

struct LinearChoice {
  std::int64_t n = 0, k = 0;
  DType in = DType::bf16, out = DType::bf16;  // of x and W; of y
  std::int64_t m = 0;                         // and fewer, down to the next entry's
  int split = 0, fragments = 0;               // of our own kernel (StreamCut); split 0: the library's algorithm
  std::array<std::uint64_t, 8> algorithm = {};

  bool streams() const { return split > 0; }
};

// The entry of the shape with the least m that is not below `m`, from the file of linear_tune that MSTAR_LINEAR_TABLE
// names, else from the committed table; null when there is none, or when it names an algorithm of another version of
// cuBLASLt than the one that runs.
const LinearChoice* linear_choice(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out);
// Whether our own kernel takes few rows of the shape: as measured; of shapes that were not, narrow ones and up to 32
// rows of weights of at most 16 M numbers (of the measured ones ours is ahead there).
bool streams_faster(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out);

}  // namespace mstar
