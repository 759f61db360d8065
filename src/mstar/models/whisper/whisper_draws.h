// The draws of Whisper's decoder on a GPU: what its rules need to know of earlier tokens stays there, so that steps can
// be captured, and launched before the host has seen the tokens of the step before.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "mstar/engine/component_body.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/ops/timestamp_rules/timestamp_rules.h"

namespace mstar::models::whisper {

// Thread: the step's owner. Memory: 4 bytes for each place of the requests' texts.
class DeviceDraws {
 public:
  // Errors: exhausted.
  static Result<DeviceDraws> create(const WhisperConfig& config, Device& device, int max_requests, int max_rows);

  // The value that says how many tokens a row's sequence has before its draws; a prompt of so many sets it. Lives as
  // long as this. internal for a request without a prompt, or a length beyond the text positions.
  Result<const Value*> begin_of(RequestId request, int prompt_tokens);  // prompt_tokens 0: what the last prompt set
  const Value* any_begin() const { return &begins_[1]; }
  void forget(RequestId request) { prompt_tokens_.erase(request); }

  // A part of the step's rows that all draw.
  struct Run {
    int first_row = 0;
    int num_rows = 0;
    int first_draw = 0;  // of the step's draws
  };
  struct Step {
    TensorView ids, positions, begins;  // of all rows
    RaggedView rows;
    const std::int32_t* slots = nullptr;  // of cross keys and values: a request's own number
    SampleParametersView wanted;          // one for each draw
  };
  // Rules for the draws of the runs, for sample().
  Result<SampleParametersView> rules(OpContext& ops, const Step& step, std::span<const Run> runs);
  std::size_t bytes() const { return history_.bytes() + lists_.bytes() + rows_.bytes(); }

 private:
  TimestampRules rules_;
  std::int32_t range_begin_ = 0;
  Tensor history_;             // [1 + requests, text positions] i32
  Tensor lists_;               // i32
  Tensor rows_;                // SampleRowWords of max_rows
  std::vector<Value> begins_;  // begins_[n] holds n
  std::unordered_map<RequestId, int> prompt_tokens_;
};

}  // namespace mstar::models::whisper
