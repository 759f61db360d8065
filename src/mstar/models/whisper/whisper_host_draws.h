// The draws of Whisper's decoder on a CPU: its rules are kept on the host, token by token. On a GPU: whisper_draws.h.
#pragma once

#include <unordered_map>
#include <vector>

#include "mstar/engine/component_body.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/models/whisper/whisper_text.h"
#include "mstar/ops/sample/sample.h"

namespace mstar::models::whisper {

// Whether a row asks for the language alone. A row that a step is recorded with has no run.
inline bool detects(const WhisperRefs& refs, const engine::RowInputs& row) {
  return row.run && row.run->outputs[0] == refs.language_probs;
}

// Thread: the step's owner.
class HostDraws {
 public:
  explicit HostDraws(const WhisperRefs& refs) : refs_(refs), tokens_(refs.config->tokens) {}

  // Tokens and their scores, and of prompts whether there is speech, or the languages' probabilities, into the
  // decoder's outputs. By row: `last_row` is its row of `logits` [rows, vocab] f32, `sot_row` that of a prompt's start
  // token, -1 where that is the last one. Waits for each token.
  Status draw(engine::Forward& step, TensorView logits, const std::vector<int>& last_row,
              const std::vector<int>& sot_row);
  void forget(RequestId request) { states_.erase(request); }

 private:
  Status tell_no_speech(engine::Forward& step, int row, TensorView logits);
  Status draw_row(engine::Forward& step, int row, DecodingState& state, TensorView logits);

  const WhisperRefs refs_;
  const WhisperTokens& tokens_;
  std::vector<TokenRange> ranges_;  // of one row's masks
  std::unordered_map<RequestId, DecodingState> states_;
};

}  // namespace mstar::models::whisper
