#include "mstar/ops/linear/linear_table.h"

#include <cublasLt.h>

namespace mstar {
namespace {

constexpr std::size_t
#include "mstar/ops/linear/linear_table.inc"

}  // namespace

const LinearChoice* linear_choice(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out) {
  const LinearChoice* best = nullptr;
  for (const LinearChoice& each : kLinearTable)
    if (each.n == n && each.k == k && each.in == in && each.out == out && each.m >= m && (!best || each.m < best->m))
      best = &each;
  static const bool same_version = cublasLtGetVersion() == kLinearTableVersion;
  return best && (best->streams() || same_version) ? best : nullptr;
}

bool streams_faster(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out) {
  constexpr std::int64_t kNarrowOutputs = 2048;
  const LinearChoice* const choice = linear_choice(m, n, k, in, out);
  return choice ? choice->streams() : n <= kNarrowOutputs;
}

}  // namespace mstar
