#include "mstar/nn/vocabulary.h"

#include <string>

#include "mstar/nn/shards.h"
#include "mstar/ops/collectives/collectives.h"
#include "mstar/ops/columns.h"

namespace mstar::nn {

Result<Vocabulary> Vocabulary::of(int vocab, Ranks ranks) {
  Vocabulary out;
  out.vocab_ = vocab;
  out.ranks_ = ranks;
  out.own_ = uneven_share(vocab, ranks);
  if (out.own_.count() > 0) return out;
  return bad_model("a vocabulary of " + std::to_string(vocab) + " leaves rank " + std::to_string(ranks.rank) + " of " +
                   std::to_string(ranks.size) + " without a part");
}

weights::Cut Vocabulary::cut() const { return rows_cut(ranks_, {own_}); }

Status Vocabulary::embed(OpContext& ops, EmbeddingArgs args) const {
  if (ranks_.alone()) return embedding(ops, args);
  args.first_id = own_.begin;
  args.vocabulary = vocab_;
  if (ranks_.rank != 0) args.positions = args.position_table = {};
  MSTAR_TRY(embedding(ops, args));
  return all_reduce(ops, args.out);
}

Status Vocabulary::run_head(OpContext& ops, const Linear& head, const LinearInput& rows, TensorView logits) const {
  if (ranks_.alone()) return head.run(ops, rows, logits);
  const TensorView parts = ops.temporary(DType::f32, {ranks_.size, logits.dim(0), ids_of_a_rank()});
  MSTAR_TRY(head.run(ops, rows, columns(parts.at(ranks_.rank), 0, own_.count())));
  return gather_columns(ops, {.parts = parts, .out = logits});
}

std::size_t Vocabulary::workspace_bytes(std::int64_t rows) const {
  if (ranks_.alone()) return 0;
  return static_cast<std::size_t>(rows * ranks_.size * ids_of_a_rank()) * sizeof(float) + 256;
}

}  // namespace mstar::nn
