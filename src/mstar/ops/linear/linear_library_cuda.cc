// Many dense rows: cuBLASLt, then what its epilogues do not do.
#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/linear/linear_library.h"
#include "mstar/ops/linear/linear_table.h"

namespace mstar {
namespace {

constexpr std::int64_t kFewestRows = 9;  // below, the kernel for any rows is faster

bool starts_rows_on_16_bytes(const TensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.pointer) % 16 == 0 &&
         (view.dim(0) == 1 || static_cast<std::size_t>(view.stride(0)) * dtype_bytes(view.dtype) % 16 == 0);
}

// A row of one element less than its stride may lie anywhere; the library wants strides of at least a row.
bool is_matrix_of_library(const TensorView& view) {
  return starts_rows_on_16_bytes(view) && view.stride(0) >= view.dim(1) &&
         static_cast<std::size_t>(view.dim(1)) * dtype_bytes(view.dtype) % 16 == 0;
}

// The library adds a bias of out's dtype; ours are f32.
bool is_epilogue_of_library(const LinearArgs& args) {
  return args.activation == Activation::none && (!args.bias.pointer || args.out.dtype == DType::f32);
}

}  // namespace

bool linear_cuda_library_fits(const OpContext&, const LinearArgs& args) {
  const StoredType storage = args.weight->storage();
  if (args.weight->keeps_one_order() || !(storage == args.x.dtype)) return false;
  if (args.out.dtype != DType::f32 && args.out.dtype != args.x.dtype) return false;
  if (!is_matrix_of_library(args.x) || !is_matrix_of_library(args.out)) return false;
  if (args.x.dim(0) < kFewestRows && streams_faster(args.x.dim(0), args.weight->num_outputs(),
                                                    args.weight->num_inputs(), args.x.dtype, args.out.dtype))
    return false;
  if (!args.residual.pointer) return true;
  // What follows the product in `out` needs the residual still to be there.
  return is_matrix_of_library(args.residual) &&
         (is_epilogue_of_library(args) || args.residual.pointer != args.out.pointer);
}

std::size_t linear_cuda_workspace_bytes() { return LinearLibrary::kWorkspaceBytes + 256; }

Status linear_cuda_library(OpContext& context, const LinearArgs& args) {
  MSTAR_TRY_ASSIGN(LinearLibrary* const library, LinearLibrary::of(context.device));
  const bool whole = is_epilogue_of_library(args);
  LibraryCall call;
  call.shape = {.m = args.x.dim(0),
                .n = args.weight->num_outputs(),
                .k = args.weight->num_inputs(),
                .in = args.x.dtype,
                .out = args.out.dtype,
                .bias = whole && args.bias.pointer,
                .residual = whole && args.residual.pointer};
  call.x = args.x.pointer;
  call.x_stride = args.x.stride(0);
  call.weight = args.weight->rows();
  call.bias = args.bias.data<float>();
  call.residual = args.residual.pointer;
  if (args.residual.pointer) call.residual_stride = args.residual.stride(0);
  call.out = args.out.pointer;
  call.out_stride = args.out.stride(0);
  const std::size_t mark = context.arena.mark();
  call.workspace = context.arena.take(LinearLibrary::kWorkspaceBytes);
  MSTAR_TRY_ASSIGN(const cublasLtMatmulAlgo_t algorithm, library->algorithm(call));
  MSTAR_TRY(library->run(call, algorithm, context.stream.native));
  context.arena.rewind(mark);
  return whole ? ok_status() : linear_cuda_finish(context, args);
}

}  // namespace mstar
