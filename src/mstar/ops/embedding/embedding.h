// Rows of a table by token id, with position rows added.
#pragma once

#include <optional>

#include "mstar/base/block_format.h"
#include "mstar/ops/linear/linear.h"
#include "mstar/ops/op_context.h"

namespace mstar {

struct EmbeddingArgs {
  TensorView ids;  // [T] i32
  // [vocabulary, D] f32, f16, bf16 or i8, row-major; or blocks at any address, as [vocabulary, bytes of a row] of u8; a
  // null pointer when `tied` is given.
  TensorView table;
  std::optional<BlockFormat> table_blocks = {};
  const float* row_scale = nullptr;    // [vocabulary], for an i8 table
  const LinearWeight* tied = nullptr;  // the output projection that shares the table
  TensorView positions;                // [T] i32, or a null pointer
  TensorView position_table;           // [positions, D] f32, f16 or bf16, or a null pointer
  TensorView out;                      // [T, D] f32; rows may lie apart
  // Of a table that holds a part of a vocabulary: its first id and the whole's size. Ids of other parts become zeros,
  // so that the sum over the ranks that hold the parts is the whole; position rows are added to them all the same, so
  // one of the ranks brings those. 0: the table is whole.
  std::int64_t first_id = 0;
  std::int64_t vocabulary = 0;
};

// out[t] = table[ids[t] - first_id] + position_table[positions[t]]. Errors: invalid_request (an id or position outside
// its table; no row is written then), internal (shapes). No workspace. On CUDA ids are read where nobody can refuse
// them: a foreign one takes row 0, so ids from outside are checked on the host; tables of i8 and blocks have no kernel
// there.
Status embedding(OpContext& context, const EmbeddingArgs& args);

}  // namespace mstar
