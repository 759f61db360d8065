// A decoder in parts for tests: its body computes each token from the keys that it finds in its pages, so a wrong page,
// position, draw or order gives another answer. And the loop of a worker in small.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

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

// What a graph may hold: numbers of rows and outputs, and where the rest lies.
struct Kernel {
  std::vector<std::int32_t> outputs;  // of each row, -1 for rows that do not end
  const std::int32_t* offsets;
  const resource::SamplerRow* draws;
  const std::int32_t* ids;
  const std::int32_t* positions;
  PagedKvView kv;
  std::int32_t* tokens;
  float* states = nullptr;  // by slot, where there are any
  const std::int32_t* states_before = nullptr;
  const std::int32_t* states_after = nullptr;
  KeptStates kept;

  float& cell(int row, int position) const {
    const std::int32_t page = kv.page_table[row * kv.max_pages + position / kv.page_tokens];
    return kv.keys.data<float>()[page * kv.page_tokens + position % kv.page_tokens];
  }
  void operator()() const {
    for (int r = 0; r < static_cast<int>(outputs.size()); ++r) {
      if (offsets[r] == offsets[r + 1]) continue;
      float state = states ? states[states_before[r]] : 0;
      for (int t = offsets[r]; t < offsets[r + 1]; ++t) {
        cell(r, positions[t]) = static_cast<float>(ids[t]);
        state = static_cast<float>(next_state(static_cast<std::int64_t>(state), ids[t]));
        if (states && kept.tokens && t + 1 - offsets[r] == kept.tokens[r]) states[kept.slots[r]] = state;
      }
      if (states) states[states_after[r]] = state;
      const std::int32_t output = outputs[static_cast<std::size_t>(r)];
      if (output < 0) continue;
      std::int64_t sum = states ? static_cast<std::int64_t>(state) : 0;
      for (int p = 0; p < kv.lengths[r]; ++p) sum += static_cast<std::int64_t>(cell(r, p)) * weight(p);
      tokens[output] = next_token(sum, kv.lengths[r], draws[r].offset);
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
    return {{.name = "token", .dtype = DType::i32, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* const prompt = row.value(d_.prompt);
    RowDemand out;
    out.sources = {{0, prompt ? prompt : row.value(d_.token)}};
    out.resources = {.tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1, .samples = true};
    out.results = {{.slot = 0, .output = 0, .items = 1}};
    return out;
  }
  std::vector<CaptureSpec> captures() const override {
    CaptureSpec decode, prompts;
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
    Kernel kernel;
    bool has_part = false, has_decode = false;
    const auto offsets = step.token_offsets();
    kernel.offsets = kv.ragged(step.plan_slot()).offsets;
    kernel.draws = sampler.data();
    for (int r = 0; r < step.num_rows(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      EXPECT_EQ(step.output_offsets(0)[at + 1] - step.output_offsets(0)[at], step.row_ends(r) ? 1 : 0);
      kernel.outputs.push_back(step.row_ends(r) ? step.output_offsets(0)[at] : -1);
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
      kernel.states = slots.tensor(0).data<float>();
      kernel.states_before = slots.read_index(step.plan_slot());
      kernel.states_after = slots.write_index(step.plan_slot());
      kernel.kept = slots.kept(step.plan_slot());
    }
    kernel.ids = step.input(0).data<std::int32_t>();
    kernel.positions = kv.positions(step.plan_slot());
    kernel.kv = kv.view(0, step.plan_slot());
    kernel.tokens = step.output(0).data<std::int32_t>();
    if (step.ops().device.is_asynchronous()) {
      static_cast<DeferredDevice&>(step.ops().device).launch(std::move(kernel));
    } else {
      kernel();
    }
    return ok_status();
  }

 private:
  const DecoderDecl& d_;
  Seen& seen_;
  bool per_token_;
  Value any_token_ = HostValue::i32(std::vector<std::int32_t>{0});
};

class Sequences : public testing::Test {
 protected:
  struct Setup {
    int chunk_tokens = 16;
    int max_rows = 8;
    int kv_tokens = 0;
    int context = 128;
    int promised = 8;
    bool prefix_cache = true;
    bool allow_cache = true;
    bool run_ahead = false;
    bool async = false;
    bool per_token = true;
    bool recurrent = false;
    bool double_buffered = false;
    int snapshots = 0;
    int snapshot_tokens = 16;
    std::vector<int> captured_tokens = {};  // with rows of any number; empty: eager
    std::uint32_t shuffle = 0;              // seed of the order of rows; 0: as they come
  };
  // A component with recurrent state beside its pages. `async`: on a device that defers its work, one step ahead.
  static Setup beside_state(bool async, int snapshots, int chunk_tokens) {
    return {.chunk_tokens = chunk_tokens,
            .run_ahead = async,
            .async = async,
            .recurrent = true,
            .double_buffered = async,
            .snapshots = snapshots};
  }
  struct Outcome {
    std::vector<std::vector<std::int32_t>> answers;
    std::vector<std::int64_t> cached;
    std::map<std::size_t, std::string> errors;
  };

  Status make(const Setup& setup) {
    setup_ = setup;
    seen_ = {};
    decoder_.reset();
    device_ = setup.async ? std::make_unique<DeferredDevice>() : make_cpu_device();
    const DecoderSpec spec{.kv = {.name = "kv",
                                  .layers = 1,
                                  .kv_heads = 1,
                                  .head_dim = 1,
                                  .page_tokens = kPageTokens,
                                  .max_tokens_per_request = setup.context,
                                  .prefix_cache = setup.prefix_cache,
                                  .pool_tokens = setup.kv_tokens},
                           .vocab = kVocab,
                           .captured_rows = captured_rows(),
                           .captured_tokens = setup.captured_tokens,
                           .max_batch_rows = setup.max_rows,
                           .state = setup.recurrent
                                        ? std::optional(decl::RecurrentState{.name = "state",
                                                                             .tensors = {{"s", {1}, DType::f32}},
                                                                             .double_buffered = setup.double_buffered,
                                                                             .snapshots = setup.snapshots,
                                                                             .snapshot_tokens = setup.snapshot_tokens})
                                        : std::nullopt,
                           .chunk_tokens = setup.chunk_tokens};
    auto declaration = declare_decoder(spec, [this](const DecoderDecl& d) -> decl::BuildBody {
      return [this, &d](BuildContext&) -> Result<std::unique_ptr<ComponentBody>> {
        return std::unique_ptr<ComponentBody>(std::make_unique<Body>(d, seen_, setup_.per_token));
      };
    });
    MSTAR_TRY_ASSIGN(DecoderEngine made, DecoderEngine::create(std::move(declaration),
                                                               {.max_requests = 64,
                                                                .max_rows = setup.max_rows,
                                                                .max_tokens = setup.chunk_tokens,
                                                                .prefix_cache = setup.allow_cache,
                                                                .promised_answer_tokens = setup.promised},
                                                               *device_));
    decoder_.emplace(std::move(made));
    return ok_status();
  }

  std::vector<int> captured_rows() const {
    return setup_.captured_tokens.empty() ? std::vector<int>() : std::vector<int>{2, 5, setup_.max_rows};
  }

  struct Live {
    Value input;
    bool prefill = true;
    Progress progress;
    int num_launched = 0;  // ending rows
    int num_in_flight = 0;
    bool part_in_flight = false;
    bool added = false, done = false;
  };
  struct Flight {
    StepPtr step;
  };

  // Runs all to their ends, as a worker would. Ids of requests go on from one call to the next.
  Outcome run(const std::vector<Ask>& asks) {
    const DecoderDecl& d = *decoder_->declaration;
    Outcome out;
    out.answers.resize(asks.size());
    out.cached.resize(asks.size());
    std::vector<Live> live(asks.size());
    std::vector<std::shared_ptr<decl::RequestParams>> params;
    for (const Ask& ask : asks) {
      params.push_back(std::make_shared<decl::RequestParams>());
      params.back()->sampling.max_tokens = ask.max_tokens;
      params.back()->cache_salt = ask.salt;
    }
    const std::uint64_t first = next_id_;
    next_id_ += asks.size();
    const auto end = [&](std::size_t i) {
      live[i].done = true;
      out.cached[i] = decoder_->resources->cached_tokens(RequestId(first + i));
      if (live[i].num_in_flight == 0) decoder_->resources->remove_request(RequestId(first + i));
    };
    std::mt19937 random(setup_.shuffle);
    std::deque<StepPtr> flights;
    int num_idle_turns = 0;
    for (int turn = 0; num_idle_turns < 3; ++turn) {
      std::vector<RowInputs> rows;
      bool all_done = true;
      for (std::size_t i = 0; i < asks.size(); ++i) {
        Live& l = live[i];
        all_done &= l.done;
        if (l.done || asks[i].arrives > turn) continue;
        if (!std::exchange(l.added, true)) {
          l.input = HostValue::i32(asks[i].prompt);
          const Status added = decoder_->resources->add_request(RequestId(first + i), *params[i]);
          EXPECT_TRUE(added) << added.error().message;
        }
        const bool may_run = l.num_in_flight == 0 || (setup_.run_ahead && l.num_in_flight == 1 && !l.part_in_flight);
        if (!may_run || l.num_launched == asks[i].max_tokens) continue;
        RowInputs row{.request = RequestId(first + i), .params = params[i], .walk = l.prefill ? d.prefill : d.decode};
        row.run = l.prefill ? d.prefill_run : d.decode_run;
        row.ports = {{l.input}};
        row.ahead = l.num_in_flight > 0;
        row.tag = static_cast<std::uint32_t>(i);
        row.progress = l.progress;
        rows.push_back(std::move(row));
      }
      if (all_done && flights.empty()) break;
      if (setup_.shuffle) std::shuffle(rows.begin(), rows.end(), random);
      bool launched = false;
      const bool asked = !rows.empty();
      if (asked) launched = launch(std::move(rows), live, flights, out, end);
      const std::size_t keep = setup_.run_ahead && launched ? 1 : 0;
      num_idle_turns = launched || !flights.empty() || !asked ? 0 : num_idle_turns + 1;
      while (flights.size() > keep) finish(flights, live, asks, out, end);
    }
    for (std::size_t i = 0; i < asks.size(); ++i) EXPECT_TRUE(live[i].done) << "request " << i << " stands still";
    return out;
  }

  template <class End>
  bool launch(std::vector<RowInputs> rows, std::vector<Live>& live, std::deque<StepPtr>& flights, Outcome& out,
              End&& end) {
    auto prepared = decoder_->engine->prepare(std::move(rows));
    for (const RowInputs& row : prepared.waiting)
      if (!row.ahead) live[row.tag].progress = row.progress;
    for (const RowResult& row : prepared.failed) {
      out.errors[row.tag] = row.error->message;
      end(row.tag);
    }
    if (!prepared.step) return false;
    for (bool whole = false; !whole;) {
      auto ran = decoder_->engine->advance(*prepared.step);
      EXPECT_TRUE(ran);
      whole = !ran || *ran;
    }
    for (const RowResult& row : decoder_->engine->promised(*prepared.step)) {
      Live& l = live[row.tag];
      ++l.num_in_flight;
      l.part_in_flight = row.partial;
      if (row.partial) continue;
      ++l.num_launched;
      l.input = row.outputs[0][0];
      l.prefill = false;
      l.progress = {};
    }
    flights.push_back(std::move(prepared.step));
    return true;
  }

  template <class End>
  void finish(std::deque<StepPtr>& flights, std::vector<Live>& live, const std::vector<Ask>& asks, Outcome& out,
              End&& end) {
    StepPtr step = std::move(flights.front());
    flights.pop_front();
    for (RowResult& row : decoder_->engine->finish(std::move(step))) {
      Live& l = live[row.tag];
      --l.num_in_flight;
      EXPECT_FALSE(row.error) << row.error->message;
      if (row.partial) {
        l.progress = row.progress;
        l.part_in_flight = false;
        continue;
      }
      auto& answer = out.answers[row.tag];
      answer.push_back(row.outputs[0][0].host.as<std::int32_t>()[0]);
      if (l.num_in_flight == 0) l.input = row.outputs[0][0];
      if (static_cast<int>(answer.size()) == asks[row.tag].max_tokens) end(row.tag);
    }
  }

  void expect_all(const std::vector<Ask>& asks, const Outcome& out) {
    EXPECT_TRUE(out.errors.empty()) << out.errors.begin()->second;
    for (std::size_t i = 0; i < asks.size(); ++i) EXPECT_EQ(out.answers[i], answer_of(asks[i], setup_.recurrent)) << i;
    EXPECT_EQ(kv().used, 0);
    EXPECT_TRUE(pool().adds_up());
  }
  resource::PagedKvPool& pool() const {
    return static_cast<resource::PagedKvPool&>(*decoder_->resources->at(decoder_->declaration->kv));
  }
  resource::Usage kv() const {
    for (const auto& usage : decoder_->resources->usage())
      if (usage.name == "kv") return usage;
    return {};
  }
  static std::vector<std::int32_t> ids(int count, int seed) {
    std::vector<std::int32_t> out;
    for (int i = 0; i < count; ++i) out.push_back((i * 37 + seed * 101 + 3) % kVocab);
    return out;
  }

  Setup setup_;
  Seen seen_;
  std::unique_ptr<Device> device_;
  std::optional<DecoderEngine> decoder_;
  std::uint64_t next_id_ = 1;
};

}  // namespace mstar::engine
