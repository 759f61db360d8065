#include "mstar/engine/token_budget.h"

#include <algorithm>
#include <cstdint>

namespace mstar::engine {

int largest_part(const TokenWish& row, int tokens, const StepBudget& budget) {
  if (row.tokens <= tokens) return row.tokens;
  const int end = row.begin + tokens;
  // A grid as wide as a step would else make every other part a tiny one.
  if (budget.grid > 0)
    if (const int on_grid = end / budget.grid * budget.grid - row.begin; on_grid > 0 && 2 * on_grid >= tokens)
      return on_grid;
  return std::max(0, end / budget.grain * budget.grain - row.begin);
}

int late_part(const TokenWish& row, int tokens, const StepBudget& budget) {
  const int part = largest_part(row, tokens, budget);
  return part == row.tokens || part >= budget.least_share ? part : 0;
}

namespace {

// Those of the rows that share `tokens` so that each gets `least` or what it wants: the first one, and who fits in
// beside those before.
std::vector<std::size_t> that_join(std::span<const TokenWish> rows, std::span<const std::size_t> order, int tokens,
                                   int least) {
  std::vector<std::size_t> out;
  std::int64_t left = tokens;
  for (const std::size_t i : order) {
    const int wanted = std::min(rows[i].tokens, least);
    if (!out.empty() && wanted > left) continue;
    left -= wanted;
    out.push_back(i);
  }
  return out;
}

}  // namespace

std::vector<int> share_tokens(std::span<const TokenWish> rows, const StepBudget& budget) {
  std::vector<int> out(rows.size());
  int left = budget.tokens, rows_left = budget.rows;
  std::vector<std::size_t> longer;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].tokens > 1) longer.push_back(i);
  const auto take_more = [&](std::size_t i) {
    const int more = largest_part(rows[i], out[i] + left, budget) - out[i];
    if (more == 0 || (out[i] == 0 && rows_left == 0)) return;
    rows_left -= out[i] == 0;
    out[i] += more;
    left -= more;
  };
  if (budget.tokens <= budget.grain || budget.rows < 2) {  // no room for both kinds: first come, first served
    for (std::size_t i = 0; i < rows.size(); ++i) take_more(i);
    return out;
  }
  const int kept_tokens = longer.empty() ? 0 : budget.grain, kept_rows = longer.empty() ? 0 : 1;
  for (std::size_t i = 0; i < rows.size() && left > kept_tokens && rows_left > kept_rows; ++i) {
    if (rows[i].tokens != 1) continue;
    out[i] = 1;
    --left;
    --rows_left;
  }
  if (static_cast<int>(longer.size()) > rows_left) longer.resize(static_cast<std::size_t>(rows_left));
  longer = that_join(rows, longer, left, budget.least_share);
  std::vector<std::size_t> by_wish = longer;
  std::stable_sort(by_wish.begin(), by_wish.end(),
                   [&](std::size_t a, std::size_t b) { return rows[a].tokens < rows[b].tokens; });
  int unshared = left;
  for (std::size_t k = 0; k < by_wish.size(); ++k) {
    const TokenWish& row = rows[by_wish[k]];
    const int share = std::min(row.tokens, unshared / static_cast<int>(by_wish.size() - k));
    unshared -= share;
    out[by_wish[k]] = largest_part(row, share, budget);
  }
  rows_left -= static_cast<int>(longer.size());
  for (const std::size_t i : longer) {
    left -= out[i];
    rows_left += out[i] == 0;
  }
  for (const std::size_t i : longer) take_more(i);
  return out;
}

int tokens_of_step(int most, int num_single_rows) {
  constexpr int kTokens = 1600, kTokensARow = 16;
  if (most < kLongStep) return most;
  return std::min(most, kTokens + kTokensARow * num_single_rows);
}

}  // namespace mstar::engine
