#include "mstar/ops/collectives/collectives.h"

#include <algorithm>

#include "mstar/ops/collectives/collectives_kernels.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<GatherColumnsArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, join_columns_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, join_columns_cuda},
#endif
};

}  // namespace

Status all_reduce(OpContext& context, TensorView x) {
  MSTAR_OP_EXPECT("all_reduce", x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::f16);
  MSTAR_OP_EXPECT("all_reduce", x.contiguous());
  if (!context.communicator) return ok_status();
  return context.communicator->all_reduce(x.pointer, static_cast<std::size_t>(x.shape.num_elements()), x.dtype,
                                          context.stream);
}

Status gather_columns(OpContext& context, const GatherColumnsArgs& args) {
  const Ranks ranks = context.ranks();
  MSTAR_OP_EXPECT("gather_columns", args.parts.dtype == DType::f32 && args.parts.shape.rank() == 3);
  MSTAR_OP_EXPECT("gather_columns", args.parts.contiguous() && args.parts.dim(0) == ranks.size);
  MSTAR_OP_EXPECT("gather_columns", args.out.shape.rank() == 2 && args.out.dim(1) <= ranks.size * args.parts.dim(2));
  MSTAR_OP_EXPECT("gather_columns", is_rows_of(args.out, DType::f32, args.parts.dim(1), args.out.dim(1)));
  if (args.parts.empty()) return ok_status();
  if (context.communicator) {
    const TensorView own = args.parts.at(ranks.rank);
    MSTAR_TRY(context.communicator->all_gather(own.pointer, args.parts.pointer, own.bytes(), context.stream));
  }
  return run_first_fit(context, args, kKernels, "gather_columns");
}

Status exchange_parts(OpContext& context, TensorView from, TensorView to) {
  MSTAR_OP_EXPECT("exchange_parts", context.sequence != nullptr);
  MSTAR_OP_EXPECT("exchange_parts", from.contiguous() && to.contiguous());
  MSTAR_OP_EXPECT("exchange_parts", from.dtype == to.dtype && from.shape == to.shape);
  MSTAR_OP_EXPECT("exchange_parts", from.shape.rank() >= 2 && from.dim(0) == context.sequence->size());
  return context.sequence->all_to_all(from.pointer, to.pointer, from.bytes() / static_cast<std::size_t>(from.dim(0)),
                                      context.stream);
}

Status gather_parts(OpContext& context, TensorView parts) {
  MSTAR_OP_EXPECT("gather_parts", context.sequence != nullptr);
  MSTAR_OP_EXPECT("gather_parts", parts.contiguous());
  MSTAR_OP_EXPECT("gather_parts", parts.shape.rank() >= 2 && parts.dim(0) == context.sequence->size());
  const TensorView own = parts.at(context.sequence->rank());
  return context.sequence->all_gather(own.pointer, parts.pointer, own.bytes(), context.stream);
}

Status join_columns_cpu(OpContext& context, const GatherColumnsArgs& args) {
  const std::int64_t width = args.parts.dim(2), columns = args.out.dim(1);
  context.parallel_for_rows(args.out.dim(0), columns, [&](std::int64_t row) {
    float* const to = args.out.data<float>() + row * args.out.stride(0);
    for (std::int64_t begin = 0; begin < columns; begin += width)
      std::copy_n(args.parts.at(begin / width).at(row).data<float>(), std::min(width, columns - begin), to + begin);
  });
  return ok_status();
}

}  // namespace mstar
