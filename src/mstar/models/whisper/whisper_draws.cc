#include "mstar/models/whisper/whisper_draws.h"

namespace mstar::models::whisper {

Result<DeviceDraws> DeviceDraws::create(const WhisperConfig& config, Device& device, int max_requests, int max_rows) {
  DeviceDraws out;
  const WhisperTokens& t = config.tokens;
  std::vector<std::int32_t> words(t.suppress);
  words.insert(words.end(), t.suppress_first.begin(), t.suppress_first.end());
  out.rules_ = {.eot = t.eot,
                .no_timestamps = t.no_timestamps,
                .timestamp_begin = t.timestamp_begin,
                .vocab = t.vocab,
                .max_initial = kMaxInitialTimestamp,
                .suppress = {0, static_cast<std::int32_t>(t.suppress.size())},
                .first_suppress = {0, static_cast<std::int32_t>(words.size())}};
  if (words.size() % 2) words.push_back(0);
  out.range_begin_ = static_cast<std::int32_t>(words.size());
  words.resize(words.size() + static_cast<std::size_t>(max_rows) * kTimestampRangeWords);
  MSTAR_TRY_ASSIGN(out.history_, Tensor::allocate(device, DType::i32, {1 + max_requests, config.text_positions}));
  MSTAR_TRY_ASSIGN(out.lists_, Tensor::allocate(device, DType::i32, {static_cast<std::int64_t>(words.size())}));
  MSTAR_TRY_ASSIGN(out.rows_,
                   Tensor::allocate(device, DType::i32, {max_rows, static_cast<std::int64_t>(kSampleRowWords)}));
  const Stream stream = device.default_stream();
  device.copy_to_device(out.lists_.view().pointer, words.data(), words.size() * sizeof(words[0]), stream);
  device.fill_zero(out.history_.view().pointer, out.history_.bytes(), stream);
  device.synchronize(stream);
  for (std::int32_t n = 0; n <= config.text_positions; ++n)
    out.begins_.emplace_back(HostValue::i32(std::vector<std::int32_t>{n}));
  return out;
}

Result<const Value*> DeviceDraws::begin_of(RequestId request, int prompt_tokens) {
  if (prompt_tokens > 0) {
    if (static_cast<std::size_t>(prompt_tokens) >= begins_.size())
      return internal_error("a prompt longer than Whisper's text positions");
    prompt_tokens_[request] = prompt_tokens;
  }
  const auto found = prompt_tokens_.find(request);
  if (found == prompt_tokens_.end()) return internal_error("a row of Whisper's decoder before its prompt");
  return &begins_[static_cast<std::size_t>(found->second)];
}

Result<SampleParametersView> DeviceDraws::rules(OpContext& ops, const Step& step, std::span<const Run> runs) {
  auto* const rows = static_cast<SampleRowWords*>(rows_.view().pointer);
  for (const Run& run : runs) {
    MSTAR_TRY(timestamp_rules(ops, {.ids = step.ids,
                                    .positions = step.positions,
                                    .rows = step.rows,
                                    .slots = step.slots,
                                    .begins = step.begins,
                                    .history = history_.view(),
                                    .first_row = run.first_row,
                                    .num_rows = run.num_rows,
                                    .wanted = step.wanted.rows + run.first_draw,
                                    .rules = rules_,
                                    .lists = lists_.view().data<std::int32_t>(),
                                    .range_begin = range_begin_ + run.first_draw * kTimestampRangeWords,
                                    .out = rows + run.first_draw}));
  }
  return SampleParametersView{.rows = rows, .lists = lists_.view().data<std::int32_t>()};
}

}  // namespace mstar::models::whisper
