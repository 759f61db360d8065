#include "mstar/resource/resource.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <numeric>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/resource/cross_kv.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"
#include "mstar/resource/state_slots.h"

namespace mstar::resource {
namespace {

const PoolLimits kLimits{.max_requests = 2, .max_rows = 4, .max_tokens = 16};
decl::PagedKv paged_spec() {
  return {.name = "kv", .layers = 3, .kv_heads = 2, .head_dim = 5, .page_tokens = 4, .max_tokens_per_request = 10};
}
decl::CrossKv cross_spec() {
  return {.name = "cross", .layers = 3, .kv_heads = 2, .head_dim = 5, .max_context_tokens = 20};
}
StepRow row(std::uint64_t id, RowDemand demand) { return {RequestId(id), demand}; }

class ResourceTest : public ::testing::Test {
 protected:
  template <class Pool, class Spec>
  std::unique_ptr<Pool> make(const Spec& spec, const PoolLimits& limits = kLimits) {
    auto made = Pool::create(spec, limits, *device_);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  static void plan(Resource& pool, std::initializer_list<StepRow> rows, int slot) {
    StepRows step;
    step.slot = slot;
    for (const StepRow& each : rows) step.add(each);
    EXPECT_TRUE(pool.plan(step, {}));
  }
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_F(ResourceTest, PlannedBytesAreAllocatedBytes) {
  const std::vector<decl::ResourceSpec> specs = {
      paged_spec(), cross_spec(), decl::Latents{"l", {{"x", {3, 4}, DType::f16}}},
      decl::RecurrentState{"r", {{"x", {3}, DType::f32}, {"y", {2, 2}, DType::i8}}, {"a", "b"}},
      decl::Sampler{.name = "s"}};
  for (const auto& spec : specs) {
    const auto made = make_resource(spec, kLimits, *device_);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ((*made)->usage().bytes, planned_bytes(spec, kLimits)) << decl::resource_name(spec);
    EXPECT_EQ((*made)->usage().name, decl::resource_name(spec));
    EXPECT_EQ((*made)->usage().used, 0);
  }
  // 3 layers x (keys, values) x (1 sink + 2 x 3) pages x 4 tokens x 2 heads x 5 x 4 bytes.
  EXPECT_EQ(planned_bytes(specs[0], kLimits), 3u * 2 * 7 * 4 * 2 * 5 * 4);
  const PoolLimits sharded{.max_requests = 2, .max_rows = 4, .max_tokens = 16, .head_shards = 2};
  EXPECT_EQ(planned_bytes(specs[0], sharded), 3u * 2 * 7 * 4 * 1 * 5 * 4);
  for (const auto& spec : specs) {
    const auto made = make_resource(spec, sharded, *device_);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ((*made)->usage().bytes, planned_bytes(spec, sharded)) << decl::resource_name(spec);
  }
}

TEST_F(ResourceTest, RefusesSizesThatMakeNoSense) {
  auto spec = paged_spec();
  for (int* field : {&spec.layers, &spec.kv_heads, &spec.head_dim, &spec.page_tokens, &spec.max_tokens_per_request}) {
    const int kept = *field;
    for (const int bad : {0, -1}) {
      *field = bad;
      const auto made = PagedKvPool::create(spec, kLimits, *device_);
      ASSERT_FALSE(made);
      EXPECT_EQ(made.error().code, Code::bad_model);
    }
    *field = kept;
  }
  spec.labels.clear();
  EXPECT_FALSE(PagedKvPool::create(spec, kLimits, *device_));
  PoolLimits limits = kLimits;
  limits.max_requests = 0;
  EXPECT_FALSE(make_resource(paged_spec(), limits, *device_));
  EXPECT_FALSE(make_resource(cross_spec(), limits, *device_));
  limits.max_requests = 1 << 30;
  EXPECT_FALSE(PagedKvPool::create(paged_spec(), limits, *device_)) << "pages are numbered in 32 bits";
  EXPECT_FALSE(make_resource(decl::Latents{"l", {{"x", {3, 0}, DType::f16}}}, kLimits, *device_));
  EXPECT_FALSE(make_resource(decl::Latents{"l", {{"x", {1, 1, 1, 1, 1, 1}, DType::f16}}}, kLimits, *device_));
  EXPECT_FALSE(make_resource(decl::RingKv{.name = "ring"}, kLimits, *device_));
}

TEST_F(ResourceTest, HeadsAreSharedOutAmongRanks) {
  EXPECT_EQ(*heads_per_rank("kv", 8, 4), 2);
  EXPECT_EQ(*heads_per_rank("kv", 2, 4), 1) << "each is held by two ranks";
  const auto odd = heads_per_rank("kv", 3, 2);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().message, "resource 'kv': its 3 heads do not divide over 2 ranks");
  EXPECT_FALSE(heads_per_rank("kv", 2, 3));
  EXPECT_FALSE(heads_per_rank("kv", 0, 1));
  EXPECT_FALSE(heads_per_rank("kv", 1, 0));

  PoolLimits sharded = kLimits;
  sharded.head_shards = 2;
  auto spec = decl::RecurrentState{"r", {{.name = "x", .dims = {3, 4}, .shard_axis = 1}, {.name = "y", .dims = {2}}}};
  const auto slots = StateSlots::create("r", spec.tensors, 1, sharded, *device_);
  ASSERT_TRUE(slots) << slots.error().message;
  EXPECT_EQ((*slots)->tensor(0).dim(1), 3);
  EXPECT_EQ((*slots)->tensor(0).dim(2), 2);
  EXPECT_EQ((*slots)->tensor(1).dim(1), 2);
  EXPECT_EQ((*slots)->usage().bytes, planned_bytes(spec, sharded));
  spec.tensors[0].shard_axis = 0;
  EXPECT_FALSE(make_resource(spec, sharded, *device_));
  spec.tensors[0].shard_axis = 2;
  EXPECT_FALSE(make_resource(spec, sharded, *device_));
  auto pages = paged_spec();
  pages.kv_heads = 3;
  EXPECT_FALSE(make_resource(pages, sharded, *device_));
}

TEST_F(ResourceTest, PagesAreClaimedForTheWorstCase) {
  auto pool = make<PagedKvPool>(paged_spec());
  EXPECT_TRUE(pool->add_request(RequestId(1), {}));
  EXPECT_TRUE(pool->add_request(RequestId(2), {}));
  EXPECT_TRUE(pool->add_request(RequestId(2), {})) << "adding twice is adding once";
  const Status third = pool->add_request(RequestId(3), {});
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, Code::exhausted);
  EXPECT_EQ(pool->usage().used, 0) << "claimed pages are not used ones";
  pool->remove_request(RequestId(1));
  pool->remove_request(RequestId(1));
  EXPECT_TRUE(pool->add_request(RequestId(3), {}));
}

TEST_F(ResourceTest, PositionsCountStepsInFlight) {
  auto pool = make<PagedKvPool>(paged_spec());
  ASSERT_TRUE(pool->add_request(RequestId(1), {}));
  const StepRow prompt = row(1, {.tokens = 3}), next = row(1, {.tokens = 1});
  ASSERT_TRUE(pool->admit(prompt));
  plan(*pool, {prompt}, 0);
  ASSERT_TRUE(pool->admit(next));
  plan(*pool, {next}, 1);
  EXPECT_EQ(pool->view(0, 0).lengths[0], 3);
  EXPECT_EQ(pool->positions(0)[2], 2);
  EXPECT_EQ(pool->view(0, 1).lengths[0], 4);
  EXPECT_EQ(pool->positions(1)[0], 3);
  EXPECT_EQ(pool->length(RequestId(1)), 0);
  pool->commit(prompt);
  EXPECT_EQ(pool->length(RequestId(1)), 3);
  pool->rollback(next);  // the wasted row of a stop
  ASSERT_TRUE(pool->admit(next));
  plan(*pool, {next}, 0);
  EXPECT_EQ(pool->positions(0)[0], 3);
}

TEST_F(ResourceTest, ARestartMakesRowsInFlightVoid) {
  auto pool = make<PagedKvPool>(paged_spec());
  ASSERT_TRUE(pool->add_request(RequestId(1), {}));
  const StepRow old_window = row(1, {.tokens = 6}), new_window = row(1, {.tokens = 2, .restart = true});
  for (const bool old_commits : {true, false}) {
    ASSERT_TRUE(pool->admit(old_window));
    ASSERT_TRUE(pool->admit(new_window));
    plan(*pool, {new_window}, 1);
    EXPECT_EQ(pool->view(0, 1).lengths[0], 2);
    EXPECT_EQ(pool->positions(1)[0], 0);
    EXPECT_EQ(pool->view(0, 1).page_table[1], 0) << "pages of the old window are not shown";
    old_commits ? pool->commit(old_window) : pool->rollback(old_window);
    EXPECT_EQ(pool->length(RequestId(1)), 0);
    pool->commit(new_window);
    EXPECT_EQ(pool->length(RequestId(1)), 2);
    pool->clear(RequestId(1));
    EXPECT_EQ(pool->usage().used, 0);
  }
}

TEST_F(ResourceTest, AFullContextFailsTheRowAlone) {
  auto pool = make<PagedKvPool>(paged_spec());
  ASSERT_TRUE(pool->add_request(RequestId(1), {}));
  ASSERT_TRUE(pool->admit(row(1, {.tokens = 10})));
  const auto full = pool->admit(row(1, {.tokens = 1}));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::invalid_request);
  pool->commit(row(1, {.tokens = 10}));
  EXPECT_EQ(pool->length(RequestId(1)), 10);
  EXPECT_FALSE(pool->admit(row(1, {.tokens = 17, .restart = true}))) << "more than a step takes";
  EXPECT_EQ(pool->length(RequestId(1)), 10) << "a refused restart forgets nothing";
}

TEST_F(ResourceTest, UnknownRequestsAndLabelsAreSoft) {
  auto state = StateSlots::create("s", {{"x", {1}, DType::f32}}, 2, kLimits, *device_);
  ASSERT_TRUE(state);
  auto paged = make<PagedKvPool>(paged_spec());
  auto cross = make<CrossKvPool>(cross_spec());
  auto sampler = make<SamplerPool>(decl::Sampler{.name = "s"});
  for (Resource* pool : std::initializer_list<Resource*>{paged.get(), cross.get(), sampler.get(), state->get()}) {
    const StepRow unknown = row(9, {.tokens = 1, .context_tokens = 1, .samples = true});
    const auto admitted = pool->admit(unknown);
    ASSERT_FALSE(admitted);
    EXPECT_EQ(admitted.error().code, Code::internal);
    StepRows step;
    step.add(unknown);
    EXPECT_FALSE(pool->plan(step, {}));
    pool->withdraw(unknown);
    pool->commit(unknown);
    pool->rollback(unknown);
    pool->remove_request(RequestId(9));
    EXPECT_EQ(pool->usage().used, 0);
  }
  ASSERT_TRUE(paged->add_request(RequestId(1), {}));
  for (const int label : {-1, 1}) {
    EXPECT_FALSE(paged->admit(row(1, {.tokens = 1, .label = label})));
    EXPECT_EQ(paged->length(RequestId(1), label), 0);
    paged->clear(RequestId(1), label);
  }
  EXPECT_FALSE((*state)->fork(RequestId(9), 0, 1, {}));
  ASSERT_TRUE((*state)->add_request(RequestId(1), {}));
  EXPECT_FALSE((*state)->fork(RequestId(1), 0, 2, {}));
  EXPECT_FALSE((*state)->fork(RequestId(1), -1, 0, {}));
}

TEST_F(ResourceTest, StepsOverTheLimitsAreErrors) {
  StepRows step;
  for (int r = 0; r < 5; ++r) step.add({RequestId(), {.tokens = 1}});
  EXPECT_FALSE(make<PagedKvPool>(paged_spec())->plan(step, {}));
  EXPECT_FALSE(make<CrossKvPool>(cross_spec())->plan(step, {}));
  StepRows long_step;
  long_step.add({RequestId(), {.tokens = 17}});
  EXPECT_FALSE(make<PagedKvPool>(paged_spec())->plan(long_step, {}));
}

TEST_F(ResourceTest, PaddingRowsLandOnSinks) {
  StepRows step;
  step.slot = 1;
  step.add({RequestId(), {.tokens = 1, .samples = true}});
  auto paged = make<PagedKvPool>(paged_spec());
  ASSERT_TRUE(paged->plan(step, {}));
  for (int page = 0; page < paged->view(0, 1).max_pages; ++page) EXPECT_EQ(paged->view(0, 1).page_table[page], 0);
  EXPECT_EQ(paged->view(0, 1).lengths[0], 1);
  EXPECT_EQ(paged->positions(1)[0], 0);
  auto cross = make<CrossKvPool>(cross_spec());
  ASSERT_TRUE(cross->plan(step, {}));
  EXPECT_EQ(cross->view(0, 1).slots[0], 0);
  EXPECT_EQ(cross->view(0, 1).lengths[0], 1);
  auto sampler = make<SamplerPool>(decl::Sampler{.name = "s"});
  ASSERT_TRUE(sampler->plan(step, {}));
  EXPECT_EQ(sampler->rows(1)[0].offset, 0u);
  auto state = StateSlots::create("s", {{"x", {1}, DType::f32}}, 1, kLimits, *device_);
  ASSERT_TRUE((*state)->plan(step, {}));
  EXPECT_EQ((*state)->write_index_on_host(1)[0], 0);
}

// A decode step planned while the step that writes the context still runs must see that context.
TEST_F(ResourceTest, CrossContextIsSeenByTheStepBehind) {
  auto pool = make<CrossKvPool>(cross_spec());
  ASSERT_TRUE(pool->add_request(RequestId(1), {}));
  const StepRow write = row(1, {.context_tokens = 7}), read = row(1, {.tokens = 1});
  ASSERT_TRUE(pool->admit(write));
  plan(*pool, {write}, 0);
  ASSERT_TRUE(pool->admit(read));
  plan(*pool, {read}, 1);
  EXPECT_EQ(pool->view(0, 1).lengths[0], 7);
  EXPECT_EQ(pool->contexts(0).num_tokens, 7);
  EXPECT_EQ(pool->contexts(1).num_tokens, 0);
  pool->rollback(write);
  pool->rollback(read);
  EXPECT_EQ(pool->length(RequestId(1)), 0);
  ASSERT_TRUE(pool->admit(write));
  pool->commit(write);
  EXPECT_EQ(pool->length(RequestId(1)), 7);
  EXPECT_FALSE(pool->admit(row(1, {.context_tokens = 21})));
}

TEST_F(ResourceTest, PlanSlotsOfTwoComponentsAreApart) {
  PoolLimits limits = kLimits;
  limits.num_plan_slots = 2 * kNumSlots;
  auto pool = make<CrossKvPool>(cross_spec(), limits);
  ASSERT_TRUE(pool->add_request(RequestId(1), {}));
  ASSERT_TRUE(pool->add_request(RequestId(2), {}));
  const StepRow write = row(1, {.context_tokens = 7}), read = row(2, {.tokens = 1});
  ASSERT_TRUE(pool->admit(write));
  plan(*pool, {write}, 0);  // the writer has slices to go
  const std::int32_t slot = pool->view(0, 0).slots[0];
  plan(*pool, {read}, kNumSlots);
  EXPECT_EQ(pool->view(0, 0).slots[0], slot);
  EXPECT_NE(pool->view(0, kNumSlots).slots[0], slot);
}

TEST_F(ResourceTest, SamplerOffsetsNumberTheDraws) {
  auto pool = make<SamplerPool>(decl::Sampler{.name = "s"});
  decl::RequestParams params;
  params.sampling = {
      .temperature = 0.5, .top_k = 3, .top_p = 0.25, .min_p = 0.125, .repetition_penalty = 2, .seed = 99};
  ASSERT_TRUE(pool->add_request(RequestId(1), params));
  ASSERT_TRUE(pool->add_request(RequestId(2), {}));
  const StepRow draw = row(1, {.samples = true}), quiet = row(2, {});
  ASSERT_TRUE(pool->admit(draw));
  ASSERT_TRUE(pool->admit(quiet));
  plan(*pool, {draw, quiet}, 0);
  const SamplerRow first = pool->rows(0)[0];
  EXPECT_EQ(first.temperature, 0.5f);
  EXPECT_EQ(first.top_k, 3);
  EXPECT_EQ(first.top_p, 0.25f);
  EXPECT_EQ(first.min_p, 0.125f);
  EXPECT_EQ(first.repetition_penalty, 2.0f);
  EXPECT_EQ(first.seed, 99u);
  EXPECT_EQ(first.offset, 0u);
  ASSERT_TRUE(pool->admit(draw));
  plan(*pool, {draw}, 1);
  EXPECT_EQ(pool->rows(1)[0].offset, 1u);
  pool->commit(draw);
  pool->rollback(draw);
  ASSERT_TRUE(pool->admit(draw));
  plan(*pool, {quiet, draw}, 0);
  EXPECT_EQ(pool->rows(0)[1].offset, 1u) << "the draw that was rolled back is drawn again";
  EXPECT_EQ(pool->rows(0)[0].offset, 0u);
}

// What a captured step reads: the rows that sample, one after the other, at one address, with their lists.
TEST_F(ResourceTest, SamplerParametersAreWhatThePlanSays) {
  auto made = SamplerPool::create({.name = "s", .stop_ids = {7, 8}}, kLimits, *device_, true);
  ASSERT_TRUE(made);
  SamplerPool& pool = **made;
  decl::RequestParams params;
  params.sampling = {.temperature = 0.5,
                     .top_k = 3,
                     .min_p = 0.25,
                     .seed = 1ull << 40,
                     .stop_ids = {9},
                     .logit_bias = {{5, 1.5f}},
                     .min_tokens = 1};
  ASSERT_TRUE(pool.add_request(RequestId(1), params));
  params.sampling = {.repetition_penalty = 2, .frequency_penalty = 0.5};
  ASSERT_TRUE(pool.add_request(RequestId(2), params));
  const std::int32_t prompt[] = {3, 4, 3};
  pool.note_prompt(RequestId(2), prompt);
  const StepRow first = row(1, {.samples = true}), second = row(2, {.samples = true}), quiet = row(1, {});
  for (const StepRow& each : {quiet, first, second}) ASSERT_TRUE(pool.admit(each));
  plan(pool, {quiet, first, {RequestId(), {.samples = true}}, second}, 0);
  const SampleParametersView view = pool.parameters(0);
  const auto ids = [&](WordList list) {
    return std::vector<std::int32_t>(view.lists + list.begin, view.lists + list.begin + list.count);
  };
  EXPECT_FALSE(view.only_largest);
  EXPECT_EQ(view.rows[0].temperature, 0.5f);
  EXPECT_EQ(view.rows[0].top_k, 3);
  EXPECT_FLOAT_EQ(view.rows[0].log_min_p, -1.38629436f);
  EXPECT_EQ(view.rows[0].seed, 1ull << 40);
  EXPECT_EQ(view.rows[0].offset, 0u);
  EXPECT_EQ(ids(view.rows[0].biases), (std::vector<std::int32_t>{5, std::bit_cast<std::int32_t>(1.5f)}));
  EXPECT_EQ(ids(view.rows[0].suppress), (std::vector<std::int32_t>{7, 8, 9}));
  EXPECT_EQ(view.rows[1].temperature, 0.0f) << "a pad";
  EXPECT_EQ(view.rows[1].suppress.count + view.rows[1].seen.count + view.rows[1].biases.count, 0);
  EXPECT_EQ(view.rows[2].repetition_penalty, 2.0f);
  EXPECT_EQ(ids(view.rows[2].seen), (std::vector<std::int32_t>{3, 4}));
  const SampleRow on_host = pool.sample_row(0, 3, RequestId(2));
  EXPECT_EQ(on_host.repetition_penalty, 2.0f);
  EXPECT_EQ(std::vector<std::int32_t>(on_host.seen.begin(), on_host.seen.end()), (std::vector<std::int32_t>{3, 4}));

  pool.note_drawn(RequestId(1), 6);
  pool.note_drawn(RequestId(2), 4);
  for (const StepRow& each : {second, first}) ASSERT_TRUE(pool.admit(each));
  plan(pool, {second, first}, 0);
  EXPECT_EQ(pool.parameters(0).rows, view.rows);
  EXPECT_EQ(ids(view.rows[0].biases), (std::vector<std::int32_t>{4, std::bit_cast<std::int32_t>(-0.5f)}));
  EXPECT_EQ(view.rows[1].offset, 1u);
  EXPECT_EQ(view.rows[1].suppress.count, 0) << "min_tokens are there";
  ASSERT_TRUE(pool.admit(second));
  plan(pool, {second}, 1);
  EXPECT_NE(pool.parameters(1).rows, view.rows);

  std::vector<std::int32_t> many(kMaxSampleListWords);
  std::iota(many.begin(), many.end(), 0);
  pool.note_prompt(RequestId(2), many);
  const auto refused = pool.admit(second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid_request);
}

// In a packed step each row has its place, but of one that is not sampled only that.
TEST_F(ResourceTest, RowsOfAPackedStepThatAreNotSampledBringNoLists) {
  auto made = SamplerPool::create({.name = "s"}, kLimits, *device_, true);
  ASSERT_TRUE(made);
  SamplerPool& pool = **made;
  decl::RequestParams params;
  params.sampling.temperature = 0.5;
  const int num_biases = kLimits.max_rows * kMaxSampleListWords;  // twice what a step has room for
  for (std::int32_t i = 0; i < num_biases; ++i)
    params.sampling.logit_bias.insert(params.sampling.logit_bias.end(), {i, 1.0f});
  ASSERT_TRUE(pool.add_request(RequestId(1), params));
  params.sampling.logit_bias.clear();
  ASSERT_TRUE(pool.add_request(RequestId(2), params));
  const StepRow part = row(1, {}), whole = row(2, {.samples = true});
  StepRows step;
  step.packed = true;
  for (const StepRow& each : {part, whole}) {
    ASSERT_TRUE(pool.admit(each));
    step.add(each);
  }
  ASSERT_TRUE(pool.plan(step, {}));
  const SampleParametersView view = pool.parameters(0);
  EXPECT_EQ(view.rows[0].biases.count, 0);
  EXPECT_EQ(view.rows[1].temperature, 0.5f);
}

TEST_F(ResourceTest, StateIsZeroedWhenClaimedAndForked) {
  auto made = StateSlots::create("s", {{"x", {2}, DType::f32}, {"y", {1}, DType::i32}}, 2, kLimits, *device_);
  ASSERT_TRUE(made);
  StateSlots& pool = **made;
  ASSERT_TRUE(pool.add_request(RequestId(1), {}));
  plan(pool, {row(1, {.label = 0}), row(1, {.label = 1}), row(1, {.label = 5})}, 0);
  const auto slots = pool.write_index_on_host(0);
  EXPECT_NE(slots[0], slots[1]);
  EXPECT_EQ(slots[2], slots[1]);
  float* x = pool.tensor(0).at(slots[0]).data<float>();
  EXPECT_EQ(x[0], 0.0f);
  x[0] = 3;
  x[1] = 4;
  ASSERT_TRUE(pool.fork(RequestId(1), 0, 1, {}));
  EXPECT_EQ(pool.tensor(0).at(slots[1]).data<float>()[1], 4.0f);
  pool.remove_request(RequestId(1));
  ASSERT_TRUE(pool.add_request(RequestId(2), {}));
  ASSERT_TRUE(pool.add_request(RequestId(3), {}));
  EXPECT_FALSE(pool.add_request(RequestId(4), {}));
  for (std::int64_t slot = 0; slot < pool.tensor(0).dim(0); ++slot)
    EXPECT_EQ(pool.tensor(0).at(slot).data<float>()[0], 0.0f) << slot;
}

TEST_F(ResourceTest, StateInPlaceCannotBeTakenBack) {
  const std::vector<decl::StateTensor> tensors = {{"x", {1}, DType::f32}};
  const auto in_place = StateSlots::create("s", tensors, 1, kLimits, *device_);
  EXPECT_FALSE((*in_place)->can_roll_back());
  auto doubled = StateSlots::create("s", tensors, 1, kLimits, *device_, StateUpdate::double_buffered);
  EXPECT_TRUE((*doubled)->can_roll_back());
  EXPECT_LE(StateSlots::planned_bytes(tensors, 1, kLimits), (*in_place)->usage().bytes);
  EXPECT_LE(StateSlots::planned_bytes(tensors, 1, kLimits, StateUpdate::double_buffered), (*doubled)->usage().bytes);
  const auto can_roll_back = [&](const decl::ResourceSpec& spec) {
    return (*make_resource(spec, kLimits, *device_))->can_roll_back();
  };
  EXPECT_FALSE(can_roll_back(decl::Latents{"l", tensors}));
  EXPECT_FALSE(can_roll_back(decl::RecurrentState{.name = "r", .tensors = tensors}));
  EXPECT_TRUE(can_roll_back(decl::RecurrentState{.name = "r", .tensors = tensors, .double_buffered = true}));
}

// Every row adds its number to the state; what is rolled back has never been added.
TEST_F(ResourceTest, DoubleBufferedStateIsTakenBackWithTheRow) {
  auto made = StateSlots::create("s", {{"x", {1}, DType::i32}}, 2, kLimits, *device_, StateUpdate::double_buffered);
  ASSERT_TRUE(made);
  StateSlots& pool = **made;
  ASSERT_TRUE(pool.add_request(RequestId(1), {}));
  const auto cell = [&](std::int32_t slot) -> std::int32_t& { return *pool.tensor(0).at(slot).data<std::int32_t>(); };
  const auto launch = [&](const StepRow& each, int slot, std::int32_t number) {
    ASSERT_TRUE(pool.admit(each));
    plan(pool, {each}, slot);
    ASSERT_NE(pool.read_index_on_host(slot)[0], pool.write_index_on_host(slot)[0]);
    cell(pool.write_index_on_host(slot)[0]) = cell(pool.read_index_on_host(slot)[0]) + number;
  };
  for (const int label : {0, 1}) {
    const StepRow each = row(1, {.label = label});
    launch(each, 0, 1);
    launch(each, 1, 20);  // ahead
    pool.commit(each);
    pool.rollback(each);
    launch(each, 0, 300);
    launch(each, 1, 4000);
    pool.commit(each);
    pool.commit(each);
    ASSERT_TRUE(pool.admit(each));
    pool.withdraw(each);
    launch(each, 0, 50000);
    EXPECT_EQ(cell(pool.write_index_on_host(0)[0]), 54301);
    pool.commit(each);
  }
  ASSERT_TRUE(pool.fork(RequestId(1), 0, 1, {}));
  launch(row(1, {.label = 1}), 0, 600000);
  EXPECT_EQ(cell(pool.write_index_on_host(0)[0]), 654301);
  pool.remove_request(RequestId(1));
  EXPECT_EQ(pool.usage().used, 0);
  ASSERT_TRUE(pool.add_request(RequestId(2), {}));
  ASSERT_TRUE(pool.add_request(RequestId(3), {}));
  for (std::int64_t slot = 0; slot < pool.tensor(0).dim(0); ++slot) EXPECT_EQ(cell(static_cast<std::int32_t>(slot)), 0);
}

// Whichever of the two buffers holds it: the state after what was committed, also while a row ahead is in flight.
TEST_F(ResourceTest, StatesAreSavedAndRestored) {
  for (const auto update : {StateUpdate::in_place, StateUpdate::double_buffered}) {
    const bool doubled = update == StateUpdate::double_buffered;
    auto made =
        StateSlots::create("s", {{"x", {2}, DType::i32}, {"y", {1}, DType::f32}}, 1, kLimits, *device_, update, 2);
    ASSERT_TRUE(made);
    StateSlots& pool = **made;
    const auto x = [&](std::int32_t slot) -> std::int32_t& { return pool.tensor(0).at(slot).data<std::int32_t>()[1]; };
    const auto y = [&](std::int32_t slot) -> float& { return *pool.tensor(1).at(slot).data<float>(); };
    const auto launch = [&](const StepRow& each, std::int32_t number) {
      ASSERT_TRUE(pool.admit(each));
      plan(pool, {each}, 0);
      const std::int32_t from = pool.read_index_on_host(0)[0], to = pool.write_index_on_host(0)[0];
      x(to) = x(from) + number;
      y(to) = y(from) + static_cast<float>(number);
    };
    for (const int id : {1, 2}) ASSERT_TRUE(pool.add_request(RequestId(static_cast<std::uint64_t>(id)), {}));
    const StepRow first = row(1, {.tokens = 1}), second = row(2, {.tokens = 1});
    launch(first, 5);
    pool.commit(first);
    pool.save(RequestId(1), 0, 0, {});
    EXPECT_EQ(pool.kept(0).tokens, nullptr);
    launch(first, 70);
    if (doubled) launch(first, 900);  // ahead
    pool.commit(first);
    pool.save(RequestId(1), 0, 1, {});
    if (doubled) pool.rollback(first);
    pool.restore(RequestId(2), 0, 1, {});
    launch(second, 1000);
    EXPECT_EQ(x(pool.write_index_on_host(0)[0]), 1075);
    EXPECT_EQ(y(pool.write_index_on_host(0)[0]), 1075);
    pool.commit(second);
    pool.restore(RequestId(2), 0, 0, {});
    launch(second, 2000);
    EXPECT_EQ(x(pool.write_index_on_host(0)[0]), 2005);
    pool.commit(second);
    StepRow again = second;
    again.demand.starts_over = true;
    launch(again, 3000);
    EXPECT_EQ(x(pool.write_index_on_host(0)[0]), 3000);
    pool.commit(again);
    again.demand.label = 1;  // shares the one state
    launch(again, 30);
    EXPECT_EQ(x(pool.write_index_on_host(0)[0]), 3030);
    pool.commit(again);
    // What a step keeps within a row.
    StepRow passing = row(1, {.tokens = 9});
    passing.demand.kept_tokens = 4;
    passing.demand.kept_snapshot = 1;
    ASSERT_TRUE(pool.admit(second) && pool.admit(passing));
    plan(pool, {second, passing}, 0);
    const KeptStates kept = pool.kept_on_host(0);
    ASSERT_NE(kept.tokens, nullptr);
    EXPECT_EQ(kept.tokens[0], 0);
    EXPECT_EQ(kept.tokens[1], 4);
    x(kept.slots[1]) = 777;
    pool.commit(second);
    pool.commit(passing);
    pool.restore(RequestId(2), 0, 1, {});
    launch(second, 1);
    EXPECT_EQ(x(pool.write_index_on_host(0)[0]), 778);
    EXPECT_EQ(pool.kept_on_host(0).tokens, nullptr);
    pool.commit(second);
    pool.remove_request(RequestId(1));
    pool.save(RequestId(1), 0, 0, {});  // it is gone: the snapshot stays
    pool.restore(RequestId(1), 0, 0, {});
    pool.restore(RequestId(2), 0, 0, {});
    launch(second, 1);
    EXPECT_EQ(x(pool.write_index_on_host(0)[0]), 6);
    EXPECT_EQ(pool.usage().bytes,
              StateSlots::planned_bytes({{"x", {2}, DType::i32}, {"y", {1}, DType::f32}}, 1, kLimits, update, 2));
  }
}

}  // namespace
}  // namespace mstar::resource
