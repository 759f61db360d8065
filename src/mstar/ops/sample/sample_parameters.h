// What a draw is told of each row: spans for the CPU, and words in one buffer for a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mstar {

struct TokenRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;  // exclusive
};

struct TokenBias {
  std::int32_t id = 0;
  float value = 0;
};

// What one row wants. The order: repetition penalty, biases, masks, tail preference, temperature, min_p, top_k, top_p,
// draw.
struct SampleRow {
  std::span<const std::int32_t> suppress = {};       // ids set to -inf; ids outside the vocabulary are skipped
  std::span<const std::int32_t> more_suppress = {};  // same; so that shared and own lists need no copy
  std::span<const TokenRange> suppress_ranges = {};
  // Whisper's timestamp rule: when >= 0, all ids below it are masked if the ids from it on have together more
  // probability than the likeliest single id below it.
  std::int32_t tail_begin = -1;
  float repetition_penalty = 1.0f;          // over `seen`: positive logits are divided by it, negative multiplied
  std::span<const std::int32_t> seen = {};  // each id once
  std::span<const TokenBias> biases = {};   // added to logits; ids outside the vocabulary are skipped
  float temperature = 0.0f;                 // 0: the largest logit, ties to the lower id
  std::int32_t top_k = 0;                   // 0: all
  float top_p = 1.0f;                       // smallest set of likeliest tokens whose probability reaches top_p
  float min_p = 0.0f;                       // keeps tokens with at least min_p times the largest probability
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  // counts the row's draws; (seed, offset) fix the random number
};

// A part of SampleParametersView::lists.
struct WordList {
  std::int32_t begin = 0;
  std::int32_t count = 0;  // words
};

// A SampleRow as a device reads it. Ids are in `seen` and in `biases` at most once each.
struct SampleRowWords {
  float temperature = 0;
  float top_p = 1;
  float min_p = 0;
  float log_min_p = 0;
  float repetition_penalty = 1;
  std::int32_t top_k = 0;
  std::int32_t tail_begin = -1;
  std::int32_t unused = 0;
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  WordList seen;      // ids
  WordList biases;    // pairs of an id and a float's bits
  WordList suppress;  // ids
  WordList ranges;    // pairs of begin and end
};
inline constexpr std::size_t kSampleRowWords = sizeof(SampleRowWords) / sizeof(std::int32_t);
static_assert(sizeof(SampleRowWords) == 80);

// On the device.
struct SampleParametersView {
  const SampleRowWords* rows = nullptr;  // [rows]
  const std::int32_t* lists = nullptr;
  bool only_largest = false;  // promises that no row draws; a captured step keeps the promise of its capture
};

// Words of lists that the row takes.
std::size_t sample_list_words(const SampleRow& row);

// Writes rows one after the other into plan memory on the host: 8-byte aligned `rows` of kSampleRowWords words each,
// and their lists.
class SampleParametersWriter {
 public:
  SampleParametersWriter(std::span<std::int32_t> rows, std::span<std::int32_t> lists) : rows_(rows), lists_(lists) {}
  // False, and nothing is written, when there is no room.
  bool add(const SampleRow& row);
  std::size_t num_rows() const { return num_rows_; }
  std::size_t num_list_words() const { return num_words_; }

 private:
  WordList put_ids(std::span<const std::int32_t> ids, std::span<const std::int32_t> more = {});
  std::span<std::int32_t> rows_, lists_;
  std::size_t num_rows_ = 0, num_words_ = 0;
};

}  // namespace mstar
