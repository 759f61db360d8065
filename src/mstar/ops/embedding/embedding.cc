#include "mstar/ops/embedding/embedding.h"

#include "mstar/ops/embedding/embedding_kernels.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

#ifdef MSTAR_CUDA
bool has_no_blocks(const OpContext&, const EmbeddingArgs& args) {
  return !args.table_blocks && !(args.tied && args.tied->storage().is_blocks());
}
#endif

constexpr Kernel<EmbeddingArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, embedding_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, has_no_blocks, embedding_cuda},
#endif
};

bool is_table_of(const TensorView& table, std::int64_t width) {
  const bool dtype_fits =
      table.dtype == DType::f32 || table.dtype == DType::f16 || table.dtype == DType::bf16 || table.dtype == DType::i8;
  return dtype_fits && table.shape.rank() == 2 && table.dim(1) == width && table.stride(1) == 1;
}

bool is_block_table_of(const TensorView& table, BlockFormat format, std::int64_t width) {
  return table.dtype == DType::u8 && table.shape.rank() == 2 && width % block_elements(format) == 0 &&
         table.dim(1) == static_cast<std::int64_t>(StoredType(format).row_bytes(width)) && table.stride(1) == 1;
}

}  // namespace

Status embedding(OpContext& context, const EmbeddingArgs& args) {
  MSTAR_OP_EXPECT("embedding", args.out.shape.rank() == 2);
  const std::int64_t num_tokens = args.out.dim(0), width = args.out.dim(1);
  MSTAR_OP_EXPECT("embedding", is_rows_of(args.out, DType::f32, num_tokens, width));
  MSTAR_OP_EXPECT("embedding", is_vector_of(args.ids, DType::i32, num_tokens));
  MSTAR_OP_EXPECT("embedding", (args.table.pointer != nullptr) != (args.tied != nullptr));
  if (args.tied) {
    MSTAR_OP_EXPECT("embedding", args.tied->num_inputs() == width);
  } else if (args.table_blocks) {
    MSTAR_OP_EXPECT("embedding", is_block_table_of(args.table, *args.table_blocks, width));
    MSTAR_OP_EXPECT("embedding", !args.row_scale);
  } else {
    MSTAR_OP_EXPECT("embedding", is_table_of(args.table, width));
    MSTAR_OP_EXPECT("embedding", (args.table.dtype == DType::i8) == (args.row_scale != nullptr));
  }
  if (args.vocabulary) {
    const std::int64_t rows = args.tied ? args.tied->num_outputs() : args.table.dim(0);
    MSTAR_OP_EXPECT("embedding", args.first_id >= 0 && args.first_id + rows <= args.vocabulary);
  } else {
    MSTAR_OP_EXPECT("embedding", args.first_id == 0);
  }
  MSTAR_OP_EXPECT("embedding", (args.positions.pointer != nullptr) == (args.position_table.pointer != nullptr));
  if (args.positions.pointer) {
    MSTAR_OP_EXPECT("embedding", is_vector_of(args.positions, DType::i32, num_tokens));
    MSTAR_OP_EXPECT("embedding", is_table_of(args.position_table, width) && args.position_table.dtype != DType::i8);
  }
  return run_first_fit(context, args, kKernels, "embedding");
}

}  // namespace mstar
