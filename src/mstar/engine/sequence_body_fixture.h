// The body of a decoder in parts for tests: it computes each token from the keys that it finds in its pages, so a wrong
// page, position, draw or order gives another answer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "mstar/engine/decoder_fixture.h"
#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"
#include "mstar/resource/state_slots.h"

namespace mstar::engine {

inline constexpr int kVocab = 997, kPageTokens = 4;

inline std::int32_t next_token(std::int64_t sum, std::int64_t length, std::uint64_t draw) {
  return static_cast<std::int32_t>((sum * 31 + length * 7 + static_cast<std::int64_t>(draw)) % kVocab);
}
inline std::int64_t weight(std::int64_t position) { return position % 5 + 1; }

struct Ask {
  std::vector<std::int32_t> prompt;
  int max_tokens = 1;
  int arrives = 0;  // at this turn
  std::string salt = {};
  bool tells = false;  // its rows say more than their token, outside of any graph of a whole step
};

inline std::int64_t next_state(std::int64_t state, std::int32_t id) { return (state * 3 + id + 1) % kVocab; }

// With `recurrent` the body keeps a state beside its pages.
inline std::vector<std::int32_t> answer_of(const Ask& ask, bool recurrent = false) {
  std::int64_t sum = 0, length = 0, state = 0;
  const auto take = [&](std::int32_t id) {
    sum += id * weight(length++);
    if (recurrent) state = next_state(state, id);
  };
  for (const std::int32_t id : ask.prompt) take(id);
  std::vector<std::int32_t> out;
  while (static_cast<int>(out.size()) < ask.max_tokens) {
    out.push_back(next_token(sum + state, length, out.size()));
    take(out.back());
  }
  return out;
}

// From ids to what a row draws from, its part in a region. What a graph may hold: the number of rows, and where the
// rest lies.
struct TrunkKernel {
  int num_rows;
  const std::int32_t* offsets;
  const std::int32_t* ids;
  const std::int32_t* positions;
  PagedKvView kv;
  std::int32_t* sums;
  float* states = nullptr;  // by slot, where there are any
  const std::int32_t* states_before = nullptr;
  const std::int32_t* states_after = nullptr;
  KeptStates kept;

  float& cell(int row, int position) const {
    const std::int32_t page = kv.page_table[row * kv.max_pages + position / kv.page_tokens];
    return kv.keys.data<float>()[page * kv.page_tokens + position % kv.page_tokens];
  }
  void operator()() const {
    for (int r = 0; r < num_rows; ++r) {
      sums[r] = -1;
      if (offsets[r] == offsets[r + 1]) continue;
      float state = states ? states[states_before[r]] : 0;
      for (int t = offsets[r]; t < offsets[r + 1]; ++t) {
        cell(r, positions[t]) = static_cast<float>(ids[t]);
        state = static_cast<float>(next_state(static_cast<std::int64_t>(state), ids[t]));
        if (states && kept.tokens && t + 1 - offsets[r] == kept.tokens[r]) states[kept.slots[r]] = state;
      }
      if (states) states[states_after[r]] = state;
      std::int64_t sum = states ? static_cast<std::int64_t>(state) : 0;
      for (int p = 0; p < kv.lengths[r]; ++p) sum += static_cast<std::int64_t>(cell(r, p)) * weight(p);
      sums[r] = static_cast<std::int32_t>(sum);
    }
  }
};

// What was in the trunk, without the draw.
inline float told(std::int64_t sum, std::int64_t length) { return static_cast<float>(next_token(sum, length, 0)); }

struct DrawKernel {
  std::vector<std::int32_t> outputs;  // of each row, -1 for rows that do not end
  std::vector<std::int32_t> tells;    // likewise, -1 for rows that do not tell
  const resource::SamplerRow* draws;
  const std::int32_t* sums;
  const std::int32_t* lengths;
  std::int32_t* tokens;
  float* telling;
  void operator()() const {
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      if (outputs[r] >= 0) tokens[outputs[r]] = next_token(sums[r], lengths[r], draws[r].offset);
      if (tells[r] >= 0) telling[tells[r]] = told(sums[r], lengths[r]);
    }
  }
};

struct Seen {
  std::int64_t num_tokens = 0;  // run
  int num_mixed = 0;            // steps with parts of prompts beside rows of one token
  int num_parts = 0;            // that do not end a row
  std::vector<int> part_ends;   // their positions
  int most_tokens = 0;          // of one step
};

class Body final : public ComponentBody {
 public:
  Body(const DecoderDecl& d, Seen& seen, bool per_token) : d_(d), seen_(seen), per_token_(per_token) {}
  std::vector<SlotSpec> input_slots() const override {
    return {{.name = "ids", .dtype = DType::i32, .max_items = 64, .per_token = per_token_}};
  }
  std::vector<SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .to_host = true}, {.name = "telling", .to_host = true}};
  }
  std::vector<RegionSpec> regions() const override { return {{.name = "trunk", .kinds = captures()}}; }
  std::vector<SlotSpec> borders() const override { return {{.name = "sums", .dtype = DType::i32}}; }
  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* const prompt = row.value(d_.prompt);
    RowDemand out;
    out.sources = {{0, prompt ? prompt : row.value(d_.token)}};
    out.resources = {.tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1, .samples = true};
    out.results = {{.slot = 0, .output = 0, .items = 1}};
    if (row.params->sampling.num_logprobs >= 0) out.results.push_back({.slot = 1, .output = 1, .items = 1});
    return out;
  }
  std::vector<CaptureSpec> captures() const override {
    CaptureSpec decode, prompts;
    prompts.few_rows = few_rows;
    prompts.few_rows_tokens = 24;
    decode.row.sources = {{0, &any_token_}};
    decode.row.resources = {.tokens = 1, .samples = true};
    decode.row.results = {{.slot = 0, .output = 0, .items = 1}};
    prompts.packed = true;
    prompts.row.resources.samples = true;
    prompts.row.results = decode.row.results;
    return {decode, prompts};
  }
  std::size_t workspace_bytes(int, int) const override { return 256; }
  Status forward(Forward& step, int) override {
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(d_.kv));
    const auto& sampler = static_cast<resource::SamplerPool&>(step.resource(d_.sampler)).rows(step.plan_slot());
    TrunkKernel trunk;
    DrawKernel draw;
    bool has_part = false, has_decode = false;
    const auto offsets = step.token_offsets();
    trunk.num_rows = step.num_rows();
    trunk.offsets = kv.ragged(step.plan_slot()).offsets;
    draw.draws = sampler.data();
    for (int r = 0; r < step.num_rows(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      const bool draws = step.row_ends(r) || step.has_all_places();
      EXPECT_EQ(step.output_offsets(0)[at + 1] - step.output_offsets(0)[at], draws ? 1 : 0);
      draw.outputs.push_back(draws ? step.output_offsets(0)[at] : -1);
      draw.tells.push_back(step.demand(r).results.size() > 1 ? step.output_offsets(1)[at] : -1);
      if (!step.row_ends(r) && !step.ops().device.is_asynchronous())
        seen_.part_ends.push_back(kv.positions(step.plan_slot())[offsets[at + 1] - 1] + 1);
      seen_.num_parts += !step.row_ends(r);
      has_part |= offsets[at + 1] - offsets[at] > 1;
      has_decode |= offsets[at + 1] - offsets[at] == 1;
    }
    seen_.num_mixed += has_part && has_decode;
    seen_.num_tokens += offsets.back();
    seen_.most_tokens = std::max(seen_.most_tokens, offsets.back());
    if (const auto& uses = d_.decl.at(d_.component).device().uses; uses.size() > 2) {
      const auto& slots = static_cast<resource::StateSlots&>(step.resource(uses[2]));
      trunk.states = slots.tensor(0).data<float>();
      trunk.states_before = slots.read_index(step.plan_slot());
      trunk.states_after = slots.write_index(step.plan_slot());
      trunk.kept = slots.kept(step.plan_slot());
    }
    trunk.ids = step.input(0).data<std::int32_t>();
    trunk.positions = kv.positions(step.plan_slot());
    trunk.kv = kv.view(0, step.plan_slot());
    trunk.sums = step.border(0).data<std::int32_t>();
    EXPECT_EQ(step.border(0).dim(0), step.num_rows());
    draw.sums = trunk.sums;
    draw.lengths = trunk.kv.lengths;
    draw.tokens = step.output(0).data<std::int32_t>();
    draw.telling = step.output(1).data<float>();
    MSTAR_TRY(step.run_region(0, [&] { return launch(step, trunk); }));
    return launch(step, draw);
  }
  int few_rows = 0;

 private:
  template <class Kernel>
  static Status launch(Forward& step, const Kernel& kernel) {
    if (step.ops().device.is_asynchronous()) {
      static_cast<DeferredDevice&>(step.ops().device).launch(kernel);
    } else {
      kernel();
    }
    return ok_status();
  }
  const DecoderDecl& d_;
  Seen& seen_;
  bool per_token_;
  Value any_token_ = HostValue::i32(std::vector<std::int32_t>{0});
};

}  // namespace mstar::engine
