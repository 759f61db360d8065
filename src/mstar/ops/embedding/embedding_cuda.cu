#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/embedding/embedding_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

template <class Element>
struct Table {
  const Element* data = nullptr;
  std::int64_t stride = 0;
  int rows = 0;
  bool on_16_bytes() const {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
           static_cast<std::size_t>(stride) * sizeof(Element) % 16 == 0;
  }
  // Ids come from a sampler or were checked on the host. A foreign one reads row 0: no kernel reads outside its table.
  __device__ const Element* row(int id) const {
    return data + static_cast<std::int64_t>(id >= 0 && id < rows ? id : 0) * stride;
  }
};

template <class Element, class Position>
__global__ void __launch_bounds__(128)
    embed(const std::int32_t* ids, Table<Element> table, const std::int32_t* positions, Table<Position> position_table,
          Rows out, int width, bool aligned, int first_id, bool is_part) {
  await_inputs();
  const int token = blockIdx.x;
  const int id = ids[token] - first_id;
  const bool is_elsewhere = is_part && (id < 0 || id >= table.rows);
  const Element* from = table.row(id);
  const Position* added = positions ? position_table.row(positions[token]) : nullptr;
  for (int i = threadIdx.x * kUnit; i < width; i += blockDim.x * kUnit) {
    float value[kUnit], more[kUnit];
    load_unit(from + i, width - i, aligned, value);
    if (is_elsewhere) {
#pragma unroll
      for (int j = 0; j < kUnit; ++j) value[j] = 0.0f;
    }
    if (added) {
      load_unit(added + i, width - i, aligned, more);
#pragma unroll
      for (int j = 0; j < kUnit; ++j) value[j] = __fadd_rn(value[j], more[j]);
    }
    store_unit(value, width - i, aligned, out.row(token) + i);
  }
}

}  // namespace

Status embedding_cuda(OpContext& context, const EmbeddingArgs& args) {
  const int num_tokens = static_cast<int>(args.out.dim(0)), width = static_cast<int>(args.out.dim(1));
  if (num_tokens == 0) return {};
  const DType dtype = args.tied ? args.tied->storage().dtype() : args.table.dtype;
  const DType position_dtype = args.positions.pointer ? args.position_table.dtype : DType::f32;
  return with_float_type(dtype, [&](auto element) {
    using Element = decltype(element);
    Table<Element> table;
    if (args.tied) {
      table = {static_cast<const Element*>(args.tied->rows()), args.tied->num_inputs(),
               static_cast<int>(args.tied->num_outputs())};
    } else {
      table = {args.table.data<Element>(), args.table.stride(0), static_cast<int>(args.table.dim(0))};
    }
    return with_float_type(position_dtype, [&](auto position) {
      using Position = decltype(position);
      Table<Position> position_table;
      if (args.positions.pointer)
        position_table = {args.position_table.data<Position>(), args.position_table.stride(0),
                          static_cast<int>(args.position_table.dim(0))};
      const bool aligned = table.on_16_bytes() && position_table.on_16_bytes() && rows_on_16_bytes(args.out);
      launch_kernel(context, embed<Element, Position>, num_tokens, 128, 0, args.ids.data<std::int32_t>(), table,
                    args.positions.data<std::int32_t>(), position_table, rows_of(args.out), width, aligned,
                    static_cast<int>(args.first_id), args.vocabulary != 0);
      return cuda_launch_status("embedding");
    });
  });
}

}  // namespace mstar
