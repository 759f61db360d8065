#include "mstar/ops/attention/kv_layout_cuda.cuh"
#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/kv_append/kv_append_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

// One block a token. The lengths are on the device, so that nobody can refuse a row that leaves its pages here: such a
// token is not written. The pool never plans one.
template <class Element>
__global__ void __launch_bounds__(128)
    append(Rows keys, Rows values, const std::int32_t* offsets, int num_rows, Pages pages) {
  const int token = blockIdx.x;
  const int row = row_of(offsets, num_rows, token);
  const int position = pages.lengths[row] - (offsets[row + 1] - token);
  if (position < 0 || position >= pages.max_pages * pages.page_tokens) return;
  const std::int64_t to = pages.at(row, position, 0);
  for (int i = threadIdx.x; i < pages.kv_heads * pages.head_dim; i += blockDim.x) {
    static_cast<Element*>(pages.keys)[to + i] = narrow<Element>(keys.row(token)[i]);
    static_cast<Element*>(pages.values)[to + i] = narrow<Element>(values.row(token)[i]);
  }
}

}  // namespace

Status kv_append_cuda(OpContext& context, const KvAppendArgs& args) {
  if (args.rows.num_tokens == 0) return {};
  return with_float_type(args.kv.keys.dtype, [&](auto element) {
    append<decltype(element)><<<args.rows.num_tokens, 128, 0, stream_of(context)>>>(
        rows_of(args.keys), rows_of(args.values), args.rows.offsets, args.rows.num_rows, pages_of(args.kv));
    return cuda_launch_status("kv_append");
  });
}

}  // namespace mstar
