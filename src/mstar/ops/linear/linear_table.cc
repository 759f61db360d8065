#include "mstar/ops/linear/linear_table.h"

#include <cublasLt.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mstar/base/log.h"

namespace mstar {
namespace {

constexpr std::size_t
#include "mstar/ops/linear/linear_table.inc"

    std::optional<DType>
    dtype_of(const char* name) {
  if (std::string(name) == "bf16") return DType::bf16;
  if (std::string(name) == "f16") return DType::f16;
  if (std::string(name) == "f32") return DType::f32;
  return std::nullopt;
}

// One line as linear_tune writes it; nothing for other lines.
std::optional<LinearChoice> choice_of(const std::string& line) {
  LinearChoice out;
  char in[8] = {}, to[8] = {};
  auto& a = out.algorithm;
  const int read =
      std::sscanf(line.c_str(),
                  " {%" SCNd64 ", %" SCNd64 ", DType::%7[a-z0-9], DType::%7[a-z0-9], %" SCNd64 ", %d, %d, {%" SCNx64
                  ", %" SCNx64 ", %" SCNx64 ", %" SCNx64 ", %" SCNx64 ", %" SCNx64 ", %" SCNx64 ", %" SCNx64 "}}",
                  &out.n, &out.k, in, to, &out.m, &out.split, &out.fragments, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5],
                  &a[6], &a[7]);
  const auto in_type = dtype_of(in), out_type = dtype_of(to);
  if (read < 7 || !in_type || !out_type || out.n < 1 || out.k < 1 || out.m < 1 || out.split < 0) return std::nullopt;
  constexpr int kMostSplit = 8;  // blocks of a cluster
  if (out.split > kMostSplit || (out.split & (out.split - 1)) != 0) return std::nullopt;
  if (out.split == 0 ? read < 15 : out.fragments != 1 && out.fragments != 2) return std::nullopt;
  out.in = *in_type;
  out.out = *out_type;
  return out;
}

struct Table {
  std::vector<LinearChoice> choices;
  std::size_t version = 0;
};

// What linear_tune made for this machine, where MSTAR_LINEAR_TABLE names it.
Table read_table() {
  Table out;
  const char* const path = std::getenv("MSTAR_LINEAR_TABLE");
  if (!path || !*path) return out;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (const auto choice = choice_of(line)) out.choices.push_back(*choice);
    (void)std::sscanf(line.c_str(), "kLinearTableVersion = %zu", &out.version);
  }
  if (out.choices.empty()) log_warn("MSTAR_LINEAR_TABLE: '{}' holds no table of linear_tune's", path);
  return out;
}

const LinearChoice* find_choice(std::span<const LinearChoice> table, std::size_t version, std::int64_t m,
                                std::int64_t n, std::int64_t k, DType in, DType out) {
  const LinearChoice* best = nullptr;
  for (const LinearChoice& each : table)
    if (each.n == n && each.k == k && each.in == in && each.out == out && each.m >= m && (!best || each.m < best->m))
      best = &each;
  static const std::size_t running_version = cublasLtGetVersion();
  return best && (best->streams() || running_version == version) ? best : nullptr;
}

}  // namespace

const LinearChoice* linear_choice(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out) {
  static const Table own = read_table();
  if (const auto* const choice = find_choice(own.choices, own.version, m, n, k, in, out)) return choice;
  return find_choice(kLinearTable, kLinearTableVersion, m, n, k, in, out);
}

bool streams_faster(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out) {
  constexpr std::int64_t kNarrowOutputs = 2048;
  const LinearChoice* const choice = linear_choice(m, n, k, in, out);
  return choice ? choice->streams() : n <= kNarrowOutputs;
}

}  // namespace mstar
