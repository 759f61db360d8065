#include "mstar/models/whisper/whisper_alignment.h"

#include <algorithm>

#include "mstar/ops/collectives/collectives.h"
#include "mstar/ops/first_frames/first_frames.h"

namespace mstar::models::whisper {

TextAlignment::TextAlignment(const WhisperConfig& config, const Part& part)
    : num_heads_(config.num_alignment_heads()),
      lead_(num_start_tokens(config.tokens)),
      longest_(config.text_positions),
      columns_(config.audio_positions),
      scale_(scale_of(config)) {
  for (const std::vector<int>& all : config.alignment_heads) {
    auto& own = heads_.emplace_back();
    for (const int head : all)
      if (part.heads.begin <= head && head < part.heads.end) own.push_back(head - static_cast<int>(part.heads.begin));
  }
}

Status TextAlignment::listen(OpContext& ops, int layer, TensorView q, const SlotKvView& kv, Step& step) const {
  const std::vector<int>& heads = heads_[static_cast<std::size_t>(layer)];
  if (heads.empty()) return ok_status();
  return alignment_scores(ops, {.q = q,
                                .rows = step.rows,
                                .kv = kv,
                                .frames = step.frames,
                                .heads = heads,
                                .scale = scale_,
                                .share = 1.0f / static_cast<float>(num_heads_),
                                .adds = std::exchange(step.has_scores, true),
                                .weights = step.weights,
                                .scores = step.scores});
}

Status TextAlignment::find_frames(OpContext& ops, Step& step, TensorView first_frames) const {
  const auto mark = ops.arena.mark();
  // A rank without any of the heads brings zeros.
  if (!step.has_scores) ops.device.fill_zero(step.scores.pointer, step.scores.bytes(), ops.stream);
  MSTAR_TRY(all_reduce(ops, step.scores));
  TensorView trace;
  if (ops.backend() == Backend::cpu) trace = ops.temporary(DType::u8, {step.rows.num_tokens, columns_});
  MSTAR_TRY(mstar::first_frames(ops, {.scores = step.scores,
                                      .rows = step.rows,
                                      .frames = step.frames,
                                      .lead = lead_,
                                      .longest = std::min(longest_, step.rows.num_tokens),
                                      .trace = trace,
                                      .out = first_frames}));
  ops.arena.rewind(mark);
  return ok_status();
}

std::size_t TextAlignment::workspace_bytes(std::int64_t tokens) const {
  return static_cast<std::size_t>(tokens * columns_) + 256;
}

}  // namespace mstar::models::whisper
