// How much each token of a text listens to each frame of its audio, from the cross attention of some heads.
// Source: the word times of openai-whisper (timing.py, find_alignment), as CTranslate2 4.8 computes them.
#pragma once

#include <span>

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

inline constexpr int kAlignmentMedian = 7;  // frames that a median is taken of

struct AlignmentScoresArgs {
  TensorView q;       // [tokens, heads, head_dim] f32, on CUDA also bf16; tokens may lie apart
  RaggedView rows;    // whole texts
  SlotKvView kv;      // after kv_store; no two heads share keys. Its lengths are not looked at
  TensorView frames;  // [tokens] i32: of the token's row, 1 .. kv's capacity; what is outside counts as the limit
  std::span<const int> heads;  // of `q`, on the host
  float scale = 1.0f;          // of the products, > 0
  float share = 1.0f;          // of each head in the scores: one over the number of all heads
  bool adds = false;           // to what is in `scores`, where other layers' heads are; else overwrites it
  TensorView weights;          // [tokens, columns] f32 contiguous: scratch
  TensorView scores;           // as `weights`; 0 past a row's frames
};

// For each head: softmax of q k over the row's frames, brought to mean 0 and deviation 1 over the row's tokens at each
// frame (a deviation of 0 gives 0), then the median of kAlignmentMedian frames around each, reflected at both ends
// (with no more than half as many frames: as they are). scores = the sum over the heads of share times that, head by
// head. A row's bits do not depend on the other rows. `columns` is at most kv's capacity. head_dim is a multiple of 16,
// on CUDA up to 128. All can be captured. Errors: internal (shapes; on the CPU a row without its slot). No workspace.
// Cost: 2 head_dim flop for each head, token and frame; on CUDA the keys of a head are read once for 8 tokens.
Status alignment_scores(OpContext& context, const AlignmentScoresArgs& args);

}  // namespace mstar
