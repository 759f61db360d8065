// A request's state from one pool to another: everything that follows must be as if it had stayed.
#include <gtest/gtest.h>

#include <numeric>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"
#include "mstar/resource/state_slots.h"

namespace mstar::resource {
namespace {

constexpr RequestId kRequest(7);
constexpr int kPage = 4;

class Moves : public ::testing::Test {
 protected:
  std::unique_ptr<PagedKvPool> paged(int pool_tokens = 64, bool on_demand = true) {
    const decl::PagedKv spec{.name = "kv",
                             .layers = 2,
                             .kv_heads = 2,
                             .head_dim = 3,
                             .page_tokens = kPage,
                             .max_tokens_per_request = 32,
                             .prefix_cache = true,
                             .pool_tokens = pool_tokens};
    PoolLimits limits{.max_requests = 2, .max_rows = 4, .max_tokens = 32};
    limits.on_demand = on_demand;
    auto made = PagedKvPool::create(spec, limits, *device_);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  static std::vector<std::int32_t> ids(int count) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(count));
    std::iota(out.begin(), out.end(), 100);
    return out;
  }
  // Runs a row of the tokens, whose keys and values are numbers that tell layer, part, token and place.
  static void append(PagedKvPool& pool, RequestId request, const std::vector<std::int32_t>& tokens) {
    const auto open = pool.open({request, 0, static_cast<int>(tokens.size()), tokens});
    ASSERT_TRUE(open);
    ASSERT_TRUE(open->ready);
    StepRow row{request, {.tokens = static_cast<int>(tokens.size()) + open->num_missing - open->num_found}};
    row.demand.recomputed = open->num_missing;
    ASSERT_EQ(*pool.admit(row), Admit::ok);
    StepRows rows;
    rows.add(row);
    ASSERT_TRUE(pool.plan(rows, {}));
    const int end = open->begin + row.demand.tokens;
    for (int token = open->begin; token < end; ++token)
      each_number(pool, token, [&](float& at, float number) { at = number; });
    pool.commit(row, std::span(tokens).subspan(static_cast<std::size_t>(open->num_found)));
  }
  template <class Visit>
  static void each_number(const PagedKvPool& pool, int token, Visit&& visit) {
    for (int layer = 0; layer < 2; ++layer) {
      const PagedKvView view = pool.view(layer, 0);
      const std::int32_t page = view.page_table[token / kPage];
      for (int part = 0; part < 2; ++part) {
        float* const at = (part ? view.values : view.keys).at(page).at(token % kPage).data<float>();
        for (int i = 0; i < 6; ++i) visit(at[i], static_cast<float>(1000 * token + 100 * layer + 10 * part + i));
      }
    }
  }
  static void expect_content(PagedKvPool& pool, RequestId request, int num_tokens) {
    StepRows rows;
    rows.add({request, {.tokens = 0}});
    ASSERT_TRUE(pool.plan(rows, {}));
    int num_wrong = 0;
    for (int token = 0; token < num_tokens; ++token)
      each_number(pool, token, [&](const float& at, float number) { num_wrong += at != number; });
    EXPECT_EQ(num_wrong, 0);
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_F(Moves, KeysAndValuesComeInWithTheirTextAndLeaveNothingBehind) {
  auto from = paged(), to = paged();
  for (PagedKvPool* const pool : {from.get(), to.get()}) ASSERT_TRUE(pool->add_request(kRequest, {}));
  append(*from, kRequest, ids(10));
  expect_content(*from, kRequest, 10);
  const auto values = from->take_out(kRequest);
  ASSERT_TRUE(values) << values.error().message;
  EXPECT_EQ(from->usage().used, 0);
  EXPECT_TRUE(from->adds_up());
  EXPECT_EQ(from->text_length(kRequest, 0), 0);
  ASSERT_TRUE(to->put_in(kRequest, *values));
  EXPECT_EQ(to->length(kRequest), 10);
  EXPECT_EQ(to->usage().used, 3);
  expect_content(*to, kRequest, 10);
  append(*to, kRequest, {55});
  expect_content(*to, kRequest, 11);
  to->remove_request(kRequest);
  from->remove_request(kRequest);
  EXPECT_EQ(to->usage().used, 0);
  EXPECT_TRUE(to->adds_up());
}

TEST_F(Moves, WithoutRoomTheTextComesAloneAndIsComputedAgain) {
  auto from = paged(), to = paged(12);
  decl::RequestParams params;
  params.sampling.max_tokens = 1;
  for (PagedKvPool* const pool : {from.get(), to.get()}) ASSERT_TRUE(pool->add_request(kRequest, params));
  ASSERT_TRUE(to->add_request(RequestId(3), params));
  append(*to, RequestId(3), ids(8));
  append(*from, kRequest, ids(7));
  const auto values = from->take_out(kRequest);
  ASSERT_TRUE(values);
  ASSERT_TRUE(to->put_in(kRequest, *values));
  EXPECT_EQ(to->length(kRequest), 0);
  EXPECT_EQ(to->text_length(kRequest, 0), 7);
  to->remove_request(RequestId(3));
  const std::vector<std::int32_t> next = {9};
  const auto open = to->open({kRequest, 0, 1, next});
  ASSERT_TRUE(open);
  EXPECT_TRUE(open->ready);
  EXPECT_EQ(open->begin + open->num_missing, 7);
  to->close(kRequest);
  to->remove_request(kRequest);
  EXPECT_TRUE(to->adds_up());
}

// An older request that took pages which a younger one was promised would wait for it, and that one for the older.
TEST_F(Moves, WhatComesInTakesNoPagesThatOthersWerePromised) {
  auto from = paged(), to = paged(44);
  const RequestId younger(9);
  decl::RequestParams params;
  params.sampling.max_tokens = 25;
  for (PagedKvPool* const pool : {from.get(), to.get()}) ASSERT_TRUE(pool->add_request(kRequest, params));
  ASSERT_TRUE(to->add_request(younger, params));
  append(*to, younger, ids(4));
  append(*from, kRequest, ids(28));
  const auto values = from->take_out(kRequest);
  ASSERT_TRUE(values);
  ASSERT_TRUE(to->put_in(kRequest, *values));
  EXPECT_EQ(to->usage().used, 1);  // though seven of the ten others are free
  EXPECT_EQ(to->text_length(kRequest, 0), 28);
  to->begin_round();
  for (int token = 0; token < 25; ++token) append(*to, younger, {token});
  to->remove_request(younger);
  to->begin_round();
  append(*to, kRequest, {55});  // with all that is missing
  EXPECT_EQ(to->text_length(kRequest, 0), 29);
  EXPECT_TRUE(to->adds_up());
}

TEST_F(Moves, NothingLeavesUnderARowInFlightAndNonsenseDoesNotComeIn) {
  auto from = paged(), to = paged();
  for (PagedKvPool* const pool : {from.get(), to.get()}) ASSERT_TRUE(pool->add_request(kRequest, {}));
  append(*from, kRequest, ids(6));
  const std::vector<std::int32_t> next = {9};
  ASSERT_TRUE(from->open({kRequest, 0, 1, next}));
  const StepRow row{kRequest, {.tokens = 1}};
  ASSERT_EQ(*from->admit(row), Admit::ok);
  EXPECT_FALSE(from->take_out(kRequest));
  from->rollback(row);
  EXPECT_FALSE(from->take_out(RequestId(99)));
  const auto values = from->take_out(kRequest);
  ASSERT_TRUE(values);
  for (std::size_t i = 0; i < values->size(); ++i) {
    Values damaged = *values;
    damaged[i] = HostValue::f32(std::vector<float>{1.0f});
    EXPECT_FALSE(to->put_in(kRequest, damaged)) << i;
  }
  Values longer = *values;
  longer[0] = HostValue::of<std::int64_t>(DType::i64, std::vector<std::int64_t>{1000, 0});
  EXPECT_FALSE(to->put_in(kRequest, longer));
  longer[0] = HostValue::of<std::int64_t>(DType::i64, std::vector<std::int64_t>{-1, 0});
  EXPECT_FALSE(to->put_in(kRequest, longer));
  EXPECT_FALSE(to->put_in(kRequest, Values(values->begin(), values->begin() + 2)));
  EXPECT_EQ(to->usage().used, 0);
  ASSERT_TRUE(to->put_in(kRequest, *values));
  EXPECT_EQ(to->length(kRequest), 6);
}

TEST_F(Moves, StatesComeInOfEachLabelAndUpdate) {
  for (const StateUpdate update : {StateUpdate::in_place, StateUpdate::double_buffered}) {
    const std::vector<decl::StateTensor> tensors = {{.name = "a", .dims = {3}}, {.name = "b", .dims = {2, 2}}};
    const PoolLimits limits{.max_requests = 2, .max_rows = 4, .max_tokens = 8};
    auto from = StateSlots::create("s", tensors, 2, limits, *device_, update);
    auto to = StateSlots::create("s", tensors, 2, limits, *device_, update);
    ASSERT_TRUE(from && to);
    for (StateSlots* const pool : {from->get(), to->get()}) ASSERT_TRUE(pool->add_request(kRequest, {}));
    const auto step = [&](StateSlots& pool, int label, auto visit) {
      const StepRow row{kRequest, {.tokens = 1, .label = label}};
      EXPECT_EQ(*pool.admit(row), Admit::ok);
      StepRows rows;
      rows.add(row);
      EXPECT_TRUE(pool.plan(rows, {}));
      for (int t = 0; t < 2; ++t)
        for (int i = 0; i < 3 + t; ++i)
          visit(pool.tensor(t).at(pool.read_index_on_host(0)[0]).data<float>()[i],
                pool.tensor(t).at(pool.write_index_on_host(0)[0]).data<float>()[i],
                static_cast<float>(100 * label + 10 * t + i + 1));
      pool.commit(row);
    };
    for (int label = 0; label < 2; ++label)
      step(**from, label, [](float, float& write, float number) { write = number; });
    const auto values = (*from)->take_out(kRequest);
    ASSERT_TRUE(values);
    EXPECT_FALSE((*to)->put_in(kRequest, Values(values->begin(), values->begin() + 3)));
    ASSERT_TRUE((*to)->put_in(kRequest, *values));
    for (int label = 0; label < 2; ++label)
      step(**to, label, [](float read, float&, float number) { EXPECT_EQ(read, number); });
  }
}

TEST_F(Moves, DrawsGoOnWithTheirPenaltiesAndTheirSeed) {
  const decl::Sampler spec{.name = "sampler", .vocab = 32, .penalties = true};
  const PoolLimits limits{.max_requests = 2, .max_rows = 4, .max_tokens = 8};
  decl::RequestParams params;
  params.sampling.temperature = 0.7;
  params.sampling.seed = 5;
  params.sampling.repetition_penalty = 1.3;
  params.sampling.presence_penalty = 0.5;
  params.sampling.frequency_penalty = 0.25;
  params.sampling.logit_bias = {{3, 1.5f}};
  params.sampling.min_tokens = 3;
  const auto pool = [&] {
    auto made = SamplerPool::create(spec, limits, *device_);
    EXPECT_TRUE(made);
    EXPECT_TRUE((*made)->add_request(kRequest, params));
    return std::move(*made);
  };
  const auto draw = [&](SamplerPool& sampler, std::int32_t id) {
    const StepRow row{kRequest, {.tokens = 1, .samples = true}};
    EXPECT_EQ(*sampler.admit(row), Admit::ok);
    StepRows rows;
    rows.add(row);
    EXPECT_TRUE(sampler.plan(rows, {}));
    const SampleRow out = sampler.sample_row(0, 0, kRequest);
    std::vector<float> said = {static_cast<float>(out.offset), static_cast<float>(out.more_suppress.size())};
    for (const std::int32_t each : out.seen) said.push_back(static_cast<float>(each));
    for (const TokenBias& each : out.biases) said.insert(said.end(), {static_cast<float>(each.id), each.value});
    sampler.commit(row);
    sampler.note_drawn(kRequest, id);
    return said;
  };
  auto whole = pool(), from = pool(), to = pool();
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  for (SamplerPool* const each : {whole.get(), from.get()}) {
    each->note_prompt(kRequest, prompt);
    draw(*each, 4);
    draw(*each, 3);
  }
  const auto values = from->take_out(kRequest);
  ASSERT_TRUE(values);
  EXPECT_FALSE(to->put_in(kRequest, Values(values->begin(), values->begin() + 4)));
  ASSERT_TRUE(to->put_in(kRequest, *values));
  for (const std::int32_t id : {4, 9, 9}) EXPECT_EQ(draw(*to, id), draw(*whole, id));
}

}  // namespace
}  // namespace mstar::resource
