// Where in its audio each token of a text begins: the way through the scores that gathers most, by dynamic time
// warping. Source: Sakoe and Chiba 1978; openai-whisper's timing.py, whose ties this breaks alike.
#pragma once

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

struct FirstFramesArgs {
  TensorView scores;  // [tokens, columns] f32 contiguous; those of each row's last token are overwritten
  RaggedView rows;    // each of `lead` tokens, then those that are placed, then one more; shorter ones have none
  TensorView frames;  // [tokens] i32: of the token's row; what is outside of 1 .. columns counts as the limit
  int lead = 0;
  int longest = 0;   // tokens of the longest row, at least
  TensorView trace;  // [tokens, columns] u8 contiguous: scratch, of the CPU alone
  TensorView out;    // [at least tokens - rows * (lead + 1)] i32, row by row
};

// out = for each placed token its first frame, on the way from the first placed token at frame 0 to the last one at the
// last frame in steps of one token, one frame or both, of which the sum of scores is largest (added in f32). Never goes
// back within a row. Among equals: the frame goes on, then both, then the token. No score may be NaN to be worth
// anything; the frames are in order all the same. `longest` - lead - 1 is at most 1024 on CUDA, with columns * longest
// at most 800 000. Errors: internal (shapes). No workspace. Cost: tokens x frames; on CUDA some 1.5 us for each frame
// and token on the way.
Status first_frames(OpContext& context, const FirstFramesArgs& args);

}  // namespace mstar
