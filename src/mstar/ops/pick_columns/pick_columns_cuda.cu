#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/pick_columns/pick_columns_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// By value: what a captured launch was given stays.
struct Ranges {
  int count = 0;
  int begin[kMostPickedRanges];       // in the rows
  int packed[kMostPickedRanges + 1];  // where each begins in the packed ones, and their end
};

template <class Word>
__global__ void __launch_bounds__(kThreads) move_columns(Word* rows, std::int64_t row_stride, Word* packed,
                                                         std::int64_t packed_stride, Ranges ranges, bool puts_back) {
  await_inputs();
  Word* const whole = rows + static_cast<std::int64_t>(blockIdx.x) * row_stride;
  Word* const part = packed + static_cast<std::int64_t>(blockIdx.x) * packed_stride;
  for (int r = 0; r < ranges.count; ++r) {
    Word* const at = whole + ranges.begin[r];
    Word* const own = part + ranges.packed[r];
    const int width = ranges.packed[r + 1] - ranges.packed[r];
    for (int i = threadIdx.x; i < width; i += kThreads) {
      if (puts_back) {
        at[i] = own[i];
      } else {
        own[i] = at[i];
      }
    }
  }
}

template <class Word>
void launch(OpContext& context, const PickColumnsArgs& args, const Ranges& ranges) {
  launch_kernel(context, move_columns<Word>, static_cast<unsigned>(args.rows.dim(0)), kThreads, 0,
                args.rows.data<Word>(), args.rows.stride(0), args.packed.data<Word>(), args.packed.stride(0), ranges,
                args.puts_back);
}

}  // namespace

Status pick_columns_cuda(OpContext& context, const PickColumnsArgs& args) {
  if (args.rows.dim(0) == 0 || args.packed.dim(1) == 0) return {};
  Ranges ranges;
  ranges.packed[0] = 0;
  for (const AxisRange& each : args.ranges) {
    ranges.begin[ranges.count] = static_cast<int>(each.begin);
    ranges.packed[ranges.count + 1] = ranges.packed[ranges.count] + static_cast<int>(each.count());
    ++ranges.count;
  }
  if (dtype_bytes(args.rows.dtype) == 4) {
    launch<std::uint32_t>(context, args, ranges);
  } else {
    launch<std::uint16_t>(context, args, ranges);
  }
  return cuda_launch_status("pick_columns");
}

}  // namespace mstar
