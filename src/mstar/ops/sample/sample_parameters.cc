#include "mstar/ops/sample/sample_parameters.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace mstar {

std::size_t sample_list_words(const SampleRow& row) {
  const std::size_t seen = row.repetition_penalty == 1.0f ? 0 : row.seen.size();
  return seen + 2 * row.biases.size() + row.suppress.size() + row.more_suppress.size() + 2 * row.suppress_ranges.size();
}

WordList SampleParametersWriter::put_ids(std::span<const std::int32_t> ids, std::span<const std::int32_t> more) {
  const WordList list{static_cast<std::int32_t>(num_words_), static_cast<std::int32_t>(ids.size() + more.size())};
  for (const auto each : {ids, more})
    for (const std::int32_t id : each) lists_[num_words_++] = id;
  return list;
}

bool SampleParametersWriter::add(const SampleRow& row) {
  if (num_words_ + sample_list_words(row) > lists_.size() || (num_rows_ + 1) * kSampleRowWords > rows_.size())
    return false;
  SampleRowWords out{.temperature = row.temperature,
                     .top_p = row.top_p,
                     .min_p = row.min_p,
                     .log_min_p = row.min_p > 0 ? std::log(row.min_p) : 0.0f,
                     .repetition_penalty = row.repetition_penalty,
                     .top_k = row.top_k,
                     .tail_begin = row.tail_begin,
                     .seed = row.seed,
                     .offset = row.offset};
  if (row.repetition_penalty != 1.0f) out.seen = put_ids(row.seen);
  out.biases = {static_cast<std::int32_t>(num_words_), static_cast<std::int32_t>(2 * row.biases.size())};
  for (const TokenBias& each : row.biases) {
    lists_[num_words_++] = each.id;
    lists_[num_words_++] = std::bit_cast<std::int32_t>(each.value);
  }
  out.suppress = put_ids(row.suppress, row.more_suppress);
  out.ranges = {static_cast<std::int32_t>(num_words_), static_cast<std::int32_t>(2 * row.suppress_ranges.size())};
  for (const TokenRange& each : row.suppress_ranges) {
    lists_[num_words_++] = each.begin;
    lists_[num_words_++] = each.end;
  }
  std::memcpy(rows_.data() + num_rows_++ * kSampleRowWords, &out, sizeof(out));
  return true;
}

}  // namespace mstar
