// One row's rules, for both backends.
#pragma once

#include "mstar/ops/timestamp_rules/timestamp_rules.h"

#ifdef __CUDACC__
#define MSTAR_BOTH_SIDES __host__ __device__
#else
#define MSTAR_BOTH_SIDES
#endif

namespace mstar {

// What was drawn of a sequence. -1: there is none.
struct DrawnTokens {
  std::int32_t count = 0;
  std::int32_t last = -1;
  std::int32_t before_last = -1;
  std::int32_t latest_timestamp = -1;
};

// `row` gets the masks; `ranges` [kTimestampRangeWords] lies at word `ranges_at` of its lists.
MSTAR_BOTH_SIDES inline void write_timestamp_rule(const TimestampRules& rules, const DrawnTokens& drawn,
                                                  std::int32_t ranges_at, std::int32_t* ranges, SampleRowWords& row) {
  const std::int32_t begin = rules.timestamp_begin;
  std::int32_t words = 0;
  const auto mask = [&](std::int32_t from, std::int32_t to) {
    ranges[words++] = from;
    ranges[words++] = to;
  };
  row.repetition_penalty = 1.0f;
  row.seen = row.biases = {};
  row.suppress = drawn.count == 0 ? rules.first_suppress : rules.suppress;
  row.tail_begin = -1;
  mask(rules.no_timestamps, rules.no_timestamps + 1);
  if (drawn.count == 0) {
    mask(0, begin);
    mask(begin + rules.max_initial + 1, rules.vocab);
  } else if (drawn.last >= begin) {
    const std::int32_t before = drawn.count >= 2 ? drawn.before_last : drawn.last;
    if (before >= begin) {
      mask(begin, rules.vocab);  // a pair is complete: text or the end must follow
    } else {
      mask(0, rules.eot);
      mask(begin, drawn.last);
      row.tail_begin = begin;
    }
  } else {
    if (drawn.latest_timestamp >= 0) mask(begin, drawn.latest_timestamp + 1);
    row.tail_begin = begin;
  }
  row.ranges.begin = ranges_at;
  row.ranges.count = words;
}

}  // namespace mstar
