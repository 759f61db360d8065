#include "mstar/ops/pick_columns/pick_columns.h"

#include <cstring>

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/pick_columns/pick_columns_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<PickColumnsArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, pick_columns_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, pick_columns_cuda},
#endif
};

}  // namespace

Status pick_columns(OpContext& context, const PickColumnsArgs& args) {
  const DType dtype = args.rows.dtype;
  MSTAR_OP_EXPECT("pick_columns", dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16);
  MSTAR_OP_EXPECT("pick_columns", args.rows.shape.rank() == 2 && args.packed.shape.rank() == 2);
  MSTAR_OP_EXPECT("pick_columns", args.ranges.size() <= kMostPickedRanges);
  std::int64_t count = 0;
  for (const AxisRange& each : args.ranges) {
    MSTAR_OP_EXPECT("pick_columns", 0 <= each.begin && each.begin <= each.end && each.end <= args.rows.dim(1));
    count += each.count();
  }
  MSTAR_OP_EXPECT("pick_columns", is_rows_of(args.rows, dtype, args.rows.dim(0), args.rows.dim(1)));
  MSTAR_OP_EXPECT("pick_columns", is_rows_of(args.packed, dtype, args.rows.dim(0), count));
  return run_first_fit(context, args, kKernels, "pick_columns");
}

Status pick_columns_cpu(OpContext& context, const PickColumnsArgs& args) {
  const std::size_t element = dtype_bytes(args.rows.dtype);
  context.parallel_for_rows(args.rows.dim(0), args.packed.dim(1), [&](std::int64_t row) {
    auto* const whole = args.rows.data<std::byte>() + static_cast<std::size_t>(row * args.rows.stride(0)) * element;
    auto* part = args.packed.data<std::byte>() + static_cast<std::size_t>(row * args.packed.stride(0)) * element;
    for (const AxisRange& each : args.ranges) {
      auto* const at = whole + static_cast<std::size_t>(each.begin) * element;
      const std::size_t bytes = static_cast<std::size_t>(each.count()) * element;
      if (bytes > 0) std::memcpy(args.puts_back ? at : part, args.puts_back ? part : at, bytes);
      part += bytes;
    }
  });
  return ok_status();
}

}  // namespace mstar
