#include <algorithm>

#include "mstar/ops/embedding/embedding_kernels.h"

namespace mstar {
namespace {

float element(const TensorView& table, std::int64_t at) {
  switch (table.dtype) {
    case DType::f32:
      return table.data<float>()[at];
    case DType::f16:
      return to_float(table.data<Half>()[at]);
    case DType::bf16:
      return to_float(table.data<BFloat16>()[at]);
    default:
      return static_cast<float>(table.data<std::int8_t>()[at]);
  }
}

Status check_range(const TensorView& indices, std::int64_t limit, const char* what) {
  for (std::int64_t t = 0; t < indices.dim(0); ++t) {
    const std::int32_t index = indices.data<std::int32_t>()[t];
    if (index < 0 || index >= limit)
      return invalid_request(std::string(what) + " " + std::to_string(index) + " is outside [0, " +
                             std::to_string(limit) + ")");
  }
  return {};
}

}  // namespace

Status embedding_cpu(OpContext& context, const EmbeddingArgs& args) {
  const std::int64_t width = args.out.dim(1);
  const std::int64_t num_held = args.tied ? args.tied->num_outputs() : args.table.dim(0);
  MSTAR_TRY(check_range(args.ids, args.vocabulary ? args.vocabulary : num_held, "token id"));
  if (args.positions.pointer) MSTAR_TRY(check_range(args.positions, args.position_table.dim(0), "position"));
  context.parallel_for(args.out.dim(0), [&](std::int64_t t, int) {
    const std::int64_t id = args.ids.data<std::int32_t>()[t] - args.first_id;
    float* out = args.out.data<float>() + t * args.out.stride(0);
    if (id < 0 || id >= num_held) {
      std::fill_n(out, width, 0.0f);
    } else if (args.tied) {
      args.tied->read_row(id, out);
    } else if (args.table_blocks) {
      dequantise(*args.table_blocks, args.table.data<std::byte>() + id * args.table.stride(0), width, out);
    } else {
      const float scale = args.row_scale ? args.row_scale[id] : 1.0f;
      for (std::int64_t i = 0; i < width; ++i) out[i] = element(args.table, id * args.table.stride(0) + i) * scale;
    }
    if (!args.positions.pointer) return;
    const std::int64_t at = args.positions.data<std::int32_t>()[t] * args.position_table.stride(0);
    for (std::int64_t i = 0; i < width; ++i) out[i] += element(args.position_table, at + i);
  });
  return {};
}

}  // namespace mstar
