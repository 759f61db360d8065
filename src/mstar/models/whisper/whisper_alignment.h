// How Whisper's decoder tells when each token of a settled text is said: what its alignment heads listen to while it
// reads the text once more.
#pragma once

#include <vector>

#include "mstar/models/whisper/whisper_blocks.h"
#include "mstar/ops/alignment_scores/alignment_scores.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::models::whisper {

// Thread: the step's owner.
class TextAlignment {
 public:
  TextAlignment() = default;
  // Of the heads that the rank has.
  TextAlignment(const WhisperConfig& config, const Part& part);

  // One step's texts. Views are [tokens] or [tokens, columns()].
  struct Step {
    RaggedView rows;
    TensorView ids, frames;
    TensorView weights;  // scratch
    TensorView scores;
    bool has_scores = false;  // of an earlier layer
  };
  std::int64_t columns() const { return columns_; }
  // Adds what a layer's alignment heads listen to. q: as attention_slots() has them.
  Status listen(OpContext& ops, int layer, TensorView q, const SlotKvView& kv, Step& step) const;
  // After all layers: first_frames, as first_frames() (ops/first_frames) writes them. Takes workspace_bytes().
  Status find_frames(OpContext& ops, Step& step, TensorView first_frames) const;
  std::size_t workspace_bytes(std::int64_t tokens) const;

 private:
  std::vector<std::vector<int>> heads_;  // of each layer, among the rank's
  int num_heads_ = 1;                    // of all ranks
  int lead_ = 1;
  int longest_ = 0;
  std::int64_t columns_ = 0;
  float scale_ = 1.0f;
};

}  // namespace mstar::models::whisper
