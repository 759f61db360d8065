// Whisper's rules for the next token, worked out where the tokens are: what apply_decoding_rules() of models/whisper
// says on the host, for draws whose earlier tokens the host has not seen.
#pragma once

#include <cstdint>

#include "mstar/ops/op_context.h"
#include "mstar/ops/sample/sample_parameters.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

// What the rules are about. Lists are parts of TimestampRulesArgs::lists.
struct TimestampRules {
  std::int32_t eot = 0;
  std::int32_t no_timestamps = 0;
  std::int32_t timestamp_begin = 0;
  std::int32_t vocab = 0;
  std::int32_t max_initial = 0;  // the first token is one of timestamp_begin .. timestamp_begin + max_initial
  WordList suppress;             // ids without a chance at any step
  WordList first_suppress;       // the same at the first step, which has none of its own else
};

inline constexpr int kTimestampRangeWords = 6;  // of a row: at most three ranges

struct TimestampRulesArgs {
  TensorView ids;        // [T] i32, the step's tokens
  TensorView positions;  // [T] i32, of each in its sequence
  RaggedView rows;
  const std::int32_t* slots = nullptr;  // [rows.num_rows]: where in `history` the row's sequence is
  TensorView begins;                    // [rows.num_rows] i32: tokens of the sequence that came before the draws
  TensorView history;                   // [slots, positions] i32, contiguous
  int first_row = 0;                    // rows [first_row, first_row + num_rows) draw; nothing is done for the others
  int num_rows = 0;
  const SampleRowWords* wanted = nullptr;  // [num_rows], of which penalties and biases are left out
  TimestampRules rules;
  std::int32_t* lists = nullptr;  // ids of `rules`, and from range_begin on kTimestampRangeWords for each row
  std::int32_t range_begin = 0;   // a multiple of 2
  SampleRowWords* out = nullptr;  // [num_rows], for `lists`
};

// Writes the step's ids to the history, by position, and then for each row `wanted` with the rules of its next token:
// all that its sequence holds from begins[r] up to the step's last token was drawn. A step that is run again writes the
// same. Slots and positions outside the history are taken for the first and the last. Errors: internal (shapes). No
// workspace. Everything but `rules` and the two row numbers lies on the op's device.
Status timestamp_rules(OpContext& context, const TimestampRulesArgs& args);

}  // namespace mstar
