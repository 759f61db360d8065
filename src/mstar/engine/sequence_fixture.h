// A decoder in parts on an engine, and the loop of a worker in small.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "mstar/engine/sequence_body_fixture.h"

namespace mstar::engine {

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
    int few_rows = 0;
    // Of the trunk's region, with the rows {2, 5, most}; empty: it has no graphs.
    std::vector<int> region_tokens = {};
    int failing_captures = 0;  // the first so many of them
    bool late_copies = false;
    std::uint32_t shuffle = 0;  // seed of the order of rows; 0: as they come
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
    if (setup.async) {
      static_cast<DeferredDevice&>(*device_).fail_captures = setup.failing_captures;
      static_cast<DeferredDevice&>(*device_).late_copies = setup.late_copies;
    }
    const DecoderSpec spec{.kv = {.name = "kv",
                                  .layers = 1,
                                  .kv_heads = 1,
                                  .head_dim = 1,
                                  .page_tokens = kPageTokens,
                                  .max_tokens_per_request = setup.context,
                                  .prefix_cache = setup.prefix_cache,
                                  .pool_tokens = setup.kv_tokens},
                           .vocab = kVocab,
                           .captured_rows = setup.captured_tokens.empty() ? std::vector<int>() : captured_rows(),
                           .captured_tokens = setup.captured_tokens,
                           .regions = regions(),
                           .max_batch_rows = setup.max_rows,
                           .with_logits = true,
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
        auto body = std::make_unique<Body>(d, seen_, setup_.per_token);
        body->few_rows = setup_.few_rows;
        return std::unique_ptr<ComponentBody>(std::move(body));
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

  std::vector<int> captured_rows() const { return {2, 5, setup_.max_rows}; }
  std::vector<decl::PiecewiseRegion> regions() const {
    if (setup_.region_tokens.empty()) return {};
    return {{.name = "trunk", .rows = captured_rows(), .tokens = setup_.region_tokens, .lease_before_step = true}};
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
      if (ask.tells) params.back()->sampling.num_logprobs = 0;
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
      EXPECT_EQ(row.outputs[1].size(), asks[row.tag].tells ? 1u : 0u);
      if (!row.outputs[1].empty()) {
        const auto draw = static_cast<std::int32_t>(answer.size()) - 1;
        const auto trunk = static_cast<std::int32_t>(row.outputs[1][0].host.as<float>()[0]);
        EXPECT_EQ((trunk + draw) % kVocab, answer.back());
      }
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
