// How the rows of one step share its tokens. Pure host logic.
#pragma once

#include <span>
#include <vector>

namespace mstar::engine {

struct TokenWish {
  int begin = 0;   // position of the row's next token
  int tokens = 0;  // that it has left, or that it wants to run now; at least 1
};
struct StepBudget {
  int tokens = 0;
  int rows = 0;
  int grain = 1;  // at most `tokens`; what does not end a row ends at a multiple of it
  int grid = 0;   // > 0: a multiple of the grain; parts end at multiples of it where that keeps half of them
  // A longer row joins the step, the first ones first, if beside those that did it gets this much or all that it wants:
  // prompts that come together are then done one after the other, not all of them at the end, and short ones need not
  // wait for long ones.
  int least_share = 1;
};

// Of a step that may have `most` tokens, with so many rows of one. From kLongStep on it has 1600, and 16 more for each
// such row: each waits for the step, and so do prompts that come meanwhile, so it is shorter where few rows share what
// it costs whatever is in it.
inline constexpr int kLongStep = 2816;
int tokens_of_step(int most, int num_single_rows);

// Tokens of each row, 0 for those that wait. Rows of one token come first, but for a grain and a row if there are
// longer ones; those that join share the rest max-min fairly: nobody gets more than he wants, and but for the rounding
// nobody less than another who got a part. What rounding leaves goes to the first that can use it. Never all 0. Cost:
// O(n log n).
std::vector<int> share_tokens(std::span<const TokenWish> rows, const StepBudget& budget);

// The most that the row takes of `tokens`: all that it wants, or up to a multiple of the grid or else of the grain.
int largest_part(const TokenWish& row, int tokens, const StepBudget& budget);

// Of what a step has left for a row that did not join it: all that it wants or least_share at least, else 0. A row
// whose part is in flight cannot join the step behind this one, where it would get more.
int late_part(const TokenWish& row, int tokens, const StepBudget& budget);

}  // namespace mstar::engine
