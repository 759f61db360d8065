#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/timestamp_rules/timestamp_rule.h"
#include "mstar/ops/timestamp_rules/timestamp_rules_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

struct Problem {
  const std::int32_t* ids = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* offsets = nullptr;
  const std::int32_t* slots = nullptr;
  const std::int32_t* begins = nullptr;
  std::int32_t* history = nullptr;
  int num_slots = 0, num_positions = 0;
  int first_row = 0;
  const SampleRowWords* wanted = nullptr;
  TimestampRules rules;
  std::int32_t* lists = nullptr;
  std::int32_t range_begin = 0;
  SampleRowWords* out = nullptr;
};

// One warp a row.
__global__ void __launch_bounds__(kWarp) write_rules(const Problem p) {
  await_inputs();
  const int row = p.first_row + blockIdx.x, lane = threadIdx.x;
  const int first = p.offsets[row], end = p.offsets[row + 1];
  const int slot = p.slots[row];
  std::int32_t* const held =
      p.history + static_cast<std::int64_t>(slot < 0 || slot >= p.num_slots ? 0 : slot) * p.num_positions;
  const auto place = [&](int token) { return min(max(p.positions[token], 0), p.num_positions - 1); };
  for (int token = first + lane; token < end; token += kWarp) held[place(token)] = p.ids[token];
  __syncwarp();
  __threadfence_block();
  const int length = end > first ? place(end - 1) + 1 : 0;
  const int begin = max(p.begins[row], 0), count = max(length - begin, 0);
  int latest = -1;  // position of the latest timestamp
  for (int position = begin + lane; position < length; position += kWarp)
    if (held[position] >= p.rules.timestamp_begin) latest = position;
  for (int step = kWarp / 2; step > 0; step /= 2) latest = max(latest, __shfl_xor_sync(kAllLanes, latest, step));
  if (lane != 0) return;
  DrawnTokens drawn;
  drawn.count = count;
  if (count >= 1) drawn.last = held[length - 1];
  if (count >= 2) drawn.before_last = held[length - 2];
  if (latest >= 0) drawn.latest_timestamp = held[latest];
  SampleRowWords words = p.wanted[blockIdx.x];
  const std::int32_t at = p.range_begin + static_cast<std::int32_t>(blockIdx.x) * kTimestampRangeWords;
  write_timestamp_rule(p.rules, drawn, at, p.lists + at, words);
  p.out[blockIdx.x] = words;
}

}  // namespace

Status timestamp_rules_cuda(OpContext& context, const TimestampRulesArgs& args) {
  Problem p;
  p.ids = args.ids.data<std::int32_t>();
  p.positions = args.positions.data<std::int32_t>();
  p.offsets = args.rows.offsets;
  p.slots = args.slots;
  p.begins = args.begins.data<std::int32_t>();
  p.history = args.history.data<std::int32_t>();
  p.num_slots = static_cast<int>(args.history.dim(0));
  p.num_positions = static_cast<int>(args.history.dim(1));
  p.first_row = args.first_row;
  p.wanted = args.wanted;
  p.rules = args.rules;
  p.lists = args.lists;
  p.range_begin = args.range_begin;
  p.out = args.out;
  launch_kernel(context, write_rules, args.num_rows, kWarp, 0, p);
  return cuda_launch_status("timestamp_rules");
}

}  // namespace mstar
