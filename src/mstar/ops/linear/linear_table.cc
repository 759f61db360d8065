#include "mstar/ops/linear/linear_table.h"

#include <cstdlib>
#include <fstream>
#include <span>

#include "mstar/base/log.h"
#include "mstar/ops/linear/cublas_lt.h"
#include "mstar/ops/linear/linear_table_file.h"

namespace mstar {
namespace {

constexpr std::size_t
#include "mstar/ops/linear/linear_table.inc"

    // What MSTAR_LINEAR_TABLE names.
    LinearTableFile
    own_table() {
  const char* const path = std::getenv("MSTAR_LINEAR_TABLE");
  if (!path || !*path) return {};
  std::ifstream file(path);
  LinearTableFile out = read_linear_table(file);
  if (out.choices.empty()) log_warn("MSTAR_LINEAR_TABLE: '{}' holds no table of linear_tune's", path);
  if (out.num_refused > 0) log_warn("MSTAR_LINEAR_TABLE: {} entries of '{}' are refused", out.num_refused, path);
  return out;
}

const LinearChoice* find_choice(std::span<const LinearChoice> table, std::size_t version, std::int64_t m,
                                std::int64_t n, std::int64_t k, DType in, DType out) {
  const LinearChoice* best = nullptr;
  for (const LinearChoice& each : table)
    if (each.n == n && each.k == k && each.in == in && each.out == out && each.m >= m && (!best || each.m < best->m))
      best = &each;
  static const std::size_t running_version = [] {
    const auto library = CublasLt::load();
    return library ? (*library)->version() : 0;
  }();
  return best && (best->streams() || running_version == version) ? best : nullptr;
}

}  // namespace

const LinearChoice* linear_choice(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out) {
  static const LinearTableFile own = own_table();
  if (const auto* const choice = find_choice(own.choices, own.version, m, n, k, in, out)) return choice;
  return find_choice(kLinearTable, kLinearTableVersion, m, n, k, in, out);
}

bool streams_faster(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out) {
  constexpr std::int64_t kFewRows = 32, kNarrowOutputs = 2048, kSmallWeight = std::int64_t{16} << 20;
  const LinearChoice* const choice = linear_choice(m, n, k, in, out);
  return choice ? choice->streams() : n <= kNarrowOutputs || (m <= kFewRows && n * k <= kSmallWeight);
}

}  // namespace mstar
