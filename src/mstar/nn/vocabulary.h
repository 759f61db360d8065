// A vocabulary whose ids are shared out over the ranks: rows of the embedding table and of the head.
#pragma once

#include "mstar/nn/linear.h"
#include "mstar/ops/embedding/embedding.h"

namespace mstar::nn {

// ceil(vocab / ranks) ids for each rank, the last one perhaps fewer. Alone: all. Thread: the step's owner.
class Vocabulary {
 public:
  Vocabulary() = default;
  // bad_model where a rank would be without any.
  static Result<Vocabulary> of(int vocab, Ranks ranks);
  // What the rank keeps of a table or head [vocab, dim].
  weights::Cut cut() const;
  // args as for the whole; args.out has the sum over the ranks. Position rows are brought by one of them.
  Status embed(OpContext& ops, EmbeddingArgs args) const;
  // logits [rows, vocab] of a head that was loaded with cut(), on every rank. Takes workspace_bytes() of the arena.
  Status run_head(OpContext& ops, const Linear& head, const LinearInput& rows, TensorView logits) const;
  std::size_t workspace_bytes(std::int64_t rows) const;

 private:
  std::int64_t ids_of_a_rank() const { return uneven_share(vocab_, {.rank = 0, .size = ranks_.size}).count(); }

  int vocab_ = 0;
  Ranks ranks_;
  AxisRange own_;
};

}  // namespace mstar::nn
