#include "mstar/models/whisper/whisper_host_draws.h"

#include "mstar/resource/sampler_rows.h"

namespace mstar::models::whisper {

Status HostDraws::draw(engine::Forward& step, TensorView logits, const std::vector<int>& last_row,
                       const std::vector<int>& sot_row) {
  const auto at = [&](int row) { return logits.slice(row, row + 1); };
  for (std::size_t r = 0; r < last_row.size(); ++r) {
    const int row = static_cast<int>(r);
    if (detects(refs_, step.row(row))) {
      const TensorView out = step.output(3).slice(step.output_offsets(3)[r], step.output_offsets(3)[r + 1]);
      MSTAR_TRY(token_probabilities(step.ops(), {.logits = at(last_row[r]),
                                                 .ids = tokens_.languages,
                                                 .among_ids = true,
                                                 .out = out.reshaped({1, out.dim(0)})}));
      continue;
    }
    DecodingState& state = states_[step.row(row).request];
    if (step.row(row).value(refs_.prompt)) {
      state = {};
      MSTAR_TRY(tell_no_speech(step, row, at(sot_row[r] < 0 ? last_row[r] : sot_row[r])));
    }
    MSTAR_TRY(draw_row(step, row, state, at(last_row[r])));
  }
  return ok_status();
}

Status HostDraws::tell_no_speech(engine::Forward& step, int row, TensorView logits) {
  const auto r = static_cast<std::size_t>(row);
  const std::int32_t id[1] = {tokens_.no_speech};
  const TensorView out = step.output(2).slice(step.output_offsets(2)[r], step.output_offsets(2)[r + 1]);
  return token_probabilities(step.ops(), {.logits = logits, .ids = id, .out = out.reshaped({1, 1})});
}

Status HostDraws::draw_row(engine::Forward& step, int row, DecodingState& state, TensorView logits) {
  const auto r = static_cast<std::size_t>(row);
  auto& sampler = static_cast<resource::SamplerPool&>(step.resource(refs_.sampler));
  const resource::SamplerRow& wanted = sampler.rows(step.plan_slot())[r];
  SampleRow parameters;
  parameters.temperature = wanted.temperature;
  parameters.top_k = wanted.top_k;
  parameters.top_p = wanted.top_p;
  parameters.min_p = wanted.min_p;
  parameters.seed = wanted.seed;
  parameters.offset = wanted.offset;
  apply_decoding_rules(state, tokens_, ranges_, parameters);
  const std::int32_t at = step.output_offsets(0)[r];
  MSTAR_TRY(sample(step.ops(), {.logits = logits,
                                .rows = {&parameters, 1},
                                .tokens = step.output(0).slice(at, at + 1),
                                .log_probs = step.output(1).slice(at, at + 1)}));
  state.push(step.output(0).data<std::int32_t>()[at], tokens_);
  return ok_status();
}

}  // namespace mstar::models::whisper
