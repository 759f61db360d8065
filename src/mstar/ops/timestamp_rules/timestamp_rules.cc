#include "mstar/ops/timestamp_rules/timestamp_rules.h"

#include <algorithm>

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/timestamp_rules/timestamp_rule.h"
#include "mstar/ops/timestamp_rules/timestamp_rules_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<TimestampRulesArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, timestamp_rules_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, timestamp_rules_cuda},
#endif
};

}  // namespace

Status timestamp_rules(OpContext& context, const TimestampRulesArgs& args) {
  const std::int64_t tokens = args.rows.num_tokens;
  MSTAR_OP_EXPECT("timestamp_rules", is_vector_of(args.ids, DType::i32, tokens));
  MSTAR_OP_EXPECT("timestamp_rules", is_vector_of(args.positions, DType::i32, tokens));
  MSTAR_OP_EXPECT("timestamp_rules", is_vector_of(args.begins, DType::i32, args.rows.num_rows));
  MSTAR_OP_EXPECT("timestamp_rules",
                  args.history.dtype == DType::i32 && args.history.shape.rank() == 2 && args.history.contiguous());
  MSTAR_OP_EXPECT("timestamp_rules", args.history.dim(0) > 0 && args.history.dim(1) > 0);
  MSTAR_OP_EXPECT("timestamp_rules", args.first_row >= 0 && args.num_rows >= 0);
  MSTAR_OP_EXPECT("timestamp_rules", args.first_row + args.num_rows <= args.rows.num_rows);
  MSTAR_OP_EXPECT("timestamp_rules", args.rows.offsets && args.slots && args.wanted && args.lists && args.out);
  if (args.num_rows == 0) return {};
  return run_first_fit(context, args, kKernels, "timestamp_rules");
}

Status timestamp_rules_cpu(OpContext&, const TimestampRulesArgs& args) {
  const auto last_slot = static_cast<std::int32_t>(args.history.dim(0) - 1);
  const auto last_position = static_cast<std::int32_t>(args.history.dim(1) - 1);
  const auto* const positions = args.positions.data<std::int32_t>();
  for (int i = 0; i < args.num_rows; ++i) {
    const int row = args.first_row + i;
    const std::int32_t slot = args.slots[row];
    auto* const held = args.history.at(slot < 0 || slot > last_slot ? 0 : slot).data<std::int32_t>();
    std::int32_t length = 0;
    for (std::int32_t token = args.rows.offsets[row]; token < args.rows.offsets[row + 1]; ++token) {
      const std::int32_t position = std::clamp(positions[token], 0, last_position);
      held[position] = args.ids.data<std::int32_t>()[token];
      length = position + 1;
    }
    DrawnTokens drawn;
    const std::int32_t begin = std::max(args.begins.data<std::int32_t>()[row], 0);
    for (std::int32_t position = begin; position < length; ++position) {
      drawn.before_last = drawn.last;
      drawn.last = held[position];
      ++drawn.count;
      if (drawn.last >= args.rules.timestamp_begin) drawn.latest_timestamp = drawn.last;
    }
    SampleRowWords words = args.wanted[i];
    const std::int32_t at = args.range_begin + i * kTimestampRangeWords;
    write_timestamp_rule(args.rules, drawn, at, args.lists + at, words);
    args.out[i] = words;
  }
  return {};
}

}  // namespace mstar
