// Seeded random lives of requests over all kinds of resources at once, beside a shadow that keeps the plain truth: who
// owns which tokens, with two steps in flight, rows that are withdrawn or rolled back, windows that restart, labels
// that fork, removals at any time.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/resource/cross_kv.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"
#include "mstar/resource/state_slots.h"

namespace mstar::resource {
namespace {

constexpr int kPageTokens = 4, kMaxTokens = 13, kNumLabels = 2, kMaxContext = 9;
constexpr int kPagesPerSequence = (kMaxTokens + kPageTokens - 1) / kPageTokens;
constexpr int kProbeSlot = 2;  // a plan slot that no step uses

int pages_for(int tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

struct Flight {
  int tokens = 0;
  bool stale = false;
};
// What a forward would leave in a KV place.
using Stamp = std::tuple<std::uint64_t, int, int, int>;  // request, label, epoch, position

struct ShadowLabel {
  int epoch = 0;  // counts restarts
  int committed = 0;
  std::vector<std::shared_ptr<int>> pages;  // shared after a fork
  std::vector<Stamp> tokens;                // what stands at each position, in flight too
  std::deque<Flight> flights;
  bool broken = false;  // an older row was rolled back: the younger ones must be too
  int planned() const {
    int total = committed;
    for (const Flight& flight : flights) total += flight.stale ? 0 : flight.tokens;
    return total;
  }
  // Pages for positions up to `end`, own ones from `begin` on.
  void hold(int begin, int end) {
    pages.resize(std::max<std::size_t>(pages.size(), static_cast<std::size_t>(pages_for(end))));
    for (int i = 0; i < pages_for(end); ++i) {
      auto& page = pages[static_cast<std::size_t>(i)];
      if (!page || (begin < end && i >= begin / kPageTokens && page.use_count() > 1)) page = std::make_shared<int>();
    }
  }
  void drop_tail() {
    pages.resize(std::min<std::size_t>(pages.size(), static_cast<std::size_t>(pages_for(planned()))));
  }
  void forget() {
    ++epoch;
    tokens.clear();
    committed = 0;
    for (Flight& flight : flights) flight.stale = true;
  }
};
struct ShadowRequest {
  ShadowLabel labels[kNumLabels];
  std::deque<int> contexts;  // in flight
  int context = 0;
  std::int64_t draws = 0;  // in flight and committed
  std::vector<std::int32_t> state_slots;
};
struct FlightStep {
  StepRows rows;
};
class World {
 public:
  World(unsigned seed, int max_requests) : random_(seed), max_requests_(max_requests), device_(make_cpu_device()) {
    limits_ = {
        .max_requests = max_requests, .max_rows = max_requests * kNumLabels, .max_tokens = 64, .num_plan_slots = 3};
    paged_ = made(PagedKvPool::create({.name = "kv",
                                       .layers = 1,
                                       .kv_heads = 1,
                                       .head_dim = 1,
                                       .page_tokens = kPageTokens,
                                       .max_tokens_per_request = kMaxTokens,
                                       .labels = {"a", "b"}},
                                      limits_, *device_));
    cross_ = made(CrossKvPool::create(
        {.name = "cross", .layers = 1, .kv_heads = 1, .head_dim = 1, .max_context_tokens = kMaxContext}, limits_,
        *device_));
    sampler_ = made(SamplerPool::create({.name = "sampler", .vocab = 8}, limits_, *device_));
    state_ = made(StateSlots::create("state", {{"s", {2}, DType::f32}}, kNumLabels, limits_, *device_));
    all_ = {paged_.get(), cross_.get(), sampler_.get(), state_.get()};
  }

  void run(int num_events) {
    for (int event = 0; event < num_events && !::testing::Test::HasFatalFailure(); ++event) {
      switch (pick(11)) {
        case 0:
        case 1:
          add();
          break;
        case 2:
          remove();
          break;
        case 3:
          clear();
          break;
        case 4:
          fork();
          break;
        case 5:
        case 6:
        case 7:
          begin_step();
          break;
        default:
          end_step();
          break;
      }
      check_all();
    }
    while (!steps_.empty()) end_step();
    while (!live_.empty()) erase(live_.begin()->first);
    check_all();
    for (const Resource* each : all_) EXPECT_EQ(each->usage().used, 0) << each->usage().name;
  }
  int num_steps = 0, num_refused = 0, num_rolled_back = 0, num_full = 0, num_withdrawn = 0, num_forks = 0;

 private:
  template <class T>
  static std::unique_ptr<T> made(Result<std::unique_ptr<T>> result) {
    EXPECT_TRUE(result) << result.error().message;
    return std::move(*result);
  }
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  std::uint64_t any_known() {
    auto it = live_.begin();
    std::advance(it, pick(static_cast<int>(live_.size())));
    return it->first;
  }

  void add() {
    // Now and then one that is there already: nothing changes.
    const std::uint64_t id = !live_.empty() && pick(8) == 0 ? any_known() : ++last_id_;
    const bool room = live_.contains(id) || static_cast<int>(live_.size()) < max_requests_;
    std::size_t claimed = 0;
    for (; claimed < all_.size(); ++claimed) {
      const Status added = all_[claimed]->add_request(RequestId(id), {});
      if (added) continue;
      EXPECT_EQ(added.error().code, Code::exhausted);
      break;
    }
    EXPECT_EQ(claimed == all_.size(), room);
    if (claimed == all_.size()) {
      live_.try_emplace(id);
    } else {
      ++num_refused;
      for (Resource* each : all_) each->remove_request(RequestId(id));
    }
  }
  void erase(std::uint64_t id) {
    for (Resource* each : all_) each->remove_request(RequestId(id));
    live_.erase(id);
  }
  void remove() {
    erase(live_.empty() || pick(4) == 0 ? 1000000 + last_id_ : any_known());  // unknown ones are ignored
  }
  void clear() {
    if (live_.empty()) return;
    const std::uint64_t id = any_known();
    ShadowLabel& label = live_[id].labels[0];
    paged_->clear(RequestId(id), 0);
    paged_->clear(RequestId(77777777), 0);
    paged_->clear(RequestId(id), kNumLabels);
    label.forget();
    label.pages.clear();
  }
  void fork() {
    if (live_.empty()) return;
    const std::uint64_t id = any_known();
    const int from = pick(kNumLabels), to = 1 - from;
    EXPECT_FALSE(paged_->fork(RequestId(77777777), from, to, {}));
    EXPECT_FALSE(paged_->fork(RequestId(id), from, kNumLabels, {}));
    ShadowRequest& request = live_[id];
    if (request.labels[from].broken) return;
    ASSERT_TRUE(paged_->fork(RequestId(id), from, to, {}));
    ASSERT_TRUE(state_->fork(RequestId(id), from, to, {}));
    ShadowLabel& source = request.labels[from];
    ShadowLabel& target = request.labels[to];
    target.forget();
    target.broken = false;
    target.committed = source.planned();
    target.tokens = source.tokens;
    target.tokens.resize(static_cast<std::size_t>(target.committed));
    target.pages.assign(source.pages.begin(), source.pages.begin() + pages_for(target.committed));
    ++num_forks;
  }

  void withdraw(std::size_t count, const StepRow& row) {
    for (std::size_t i = 0; i < count; ++i) all_[i]->withdraw(row);
  }
  // Admits to all resources in order, or to none.
  bool admit(const StepRow& row) {
    ShadowRequest& request = live_[row.request.value];
    ShadowLabel& label = request.labels[row.demand.label];
    const int planned = (row.demand.restart ? 0 : label.planned()) + row.demand.tokens;
    const bool fits_kv = planned <= kMaxTokens, fits_context = row.demand.context_tokens <= kMaxContext;
    const bool changes_kv = fits_kv;
    std::size_t granted = 0;
    for (; granted < all_.size(); ++granted) {
      const auto outcome = all_[granted]->admit(row);
      if (!outcome) {
        EXPECT_EQ(outcome.error().code, Code::invalid_request);
        break;
      }
      EXPECT_EQ(*outcome, Admit::ok) << "every request has claimed its worst case";
    }
    EXPECT_EQ(granted == all_.size(), fits_kv && fits_context);
    const bool withdrawn = granted == all_.size() && pick(12) == 0;
    if (changes_kv && row.demand.restart) label.forget();
    if (changes_kv) label.hold(label.planned(), planned);
    if (granted < all_.size() || withdrawn) {
      withdraw(granted, row);
      if (changes_kv) label.drop_tail();
      num_full += !fits_kv;
      num_withdrawn += withdrawn;
      return false;
    }
    label.flights.push_back({row.demand.tokens, false});
    if (row.demand.context_tokens) request.contexts.push_back(row.demand.context_tokens);
    request.draws += row.demand.samples;
    return true;
  }

  void begin_step() {
    if (steps_.size() == 2) return;
    StepRows rows;
    rows.slot = next_slot_;
    for (auto& [id, request] : live_)
      for (int label = 0; label < kNumLabels; ++label) {
        if (pick(3) == 0 || request.labels[label].broken) continue;
        const bool prefill = pick(4) == 0;
        const StepRow row{RequestId(id),
                          {.tokens = prefill ? pick(7) : 1,
                           .context_tokens = label == 0 && pick(4) == 0 ? 1 + pick(kMaxContext + 1) : 0,
                           .samples = label == 0 && pick(2) == 0,
                           .label = label,
                           .restart = pick(8) == 0}};
        if (rows.num_tokens() + row.demand.tokens <= limits_.max_tokens && admit(row)) rows.add(row);
      }
    if (rows.num_rows() == 0) return;
    for (Resource* each : all_) ASSERT_TRUE(each->plan(rows, {}));
    check_plan(rows);
    next_slot_ = 1 - next_slot_;
    ++num_steps;
    steps_.push_back({std::move(rows)});
  }

  void check_plan(const StepRows& rows) {
    const PagedKvView kv = paged_->view(0, rows.slot);
    const SlotKvView cross = cross_->view(0, rows.slot);
    const RaggedView ragged = paged_->ragged(rows.slot);
    ASSERT_EQ(ragged.num_rows, rows.num_rows());
    ASSERT_EQ(ragged.num_tokens, rows.num_tokens());
    int context_tokens = 0;
    for (int r = 0; r < rows.num_rows(); ++r) {
      const StepRow& row = rows.rows[r];
      ShadowRequest& request = live_[row.request.value];
      ShadowLabel& label = request.labels[row.demand.label];
      const int length = label.planned();
      ASSERT_EQ(kv.lengths[r], length);
      ASSERT_EQ(ragged.offsets[r + 1] - ragged.offsets[r], row.demand.tokens);
      for (int t = 0; t < row.demand.tokens; ++t) {
        const int position = length - row.demand.tokens + t;
        ASSERT_EQ(paged_->positions(rows.slot)[ragged.offsets[r] + t], position);
        const int page = kv.page_table[r * kv.max_pages + position / kPageTokens];
        const Stamp stamp(row.request.value, row.demand.label, label.epoch, position);
        label.tokens.resize(std::max<std::size_t>(label.tokens.size(), static_cast<std::size_t>(position) + 1));
        label.tokens[static_cast<std::size_t>(position)] = stamp;
        write(kv, page, position % kPageTokens, stamp);
      }
      ASSERT_EQ(cross.lengths[r], request.contexts.empty() ? request.context : request.contexts.back());
      context_tokens += row.demand.context_tokens;
      ASSERT_EQ(cross_->contexts(rows.slot).offsets[r + 1], context_tokens);
      const std::int64_t draw = request.draws - (row.demand.samples ? 1 : 0);
      ASSERT_EQ(static_cast<std::int64_t>(sampler_->rows(rows.slot)[r].offset), draw);
    }
  }

  // Into the pool's own memory, so that what a fork copies is looked at.
  void write(const PagedKvView& kv, int page, int place, const Stamp& stamp) {
    stamps_.push_back(stamp);
    for (const TensorView& part : {kv.keys, kv.values})
      part.data<float>()[page * kPageTokens + place] = static_cast<float>(stamps_.size() - 1);
  }

  void end_step() {
    if (steps_.empty()) return;
    const FlightStep step = std::move(steps_.front());
    steps_.pop_front();
    for (const StepRow& row : step.rows.rows) {
      const auto found = live_.find(row.request.value);
      ShadowLabel* label = found == live_.end() ? nullptr : &found->second.labels[row.demand.label];
      const bool rolled_back = label && !label->flights.front().stale && (label->broken || pick(5) == 0);
      for (Resource* each : all_) rolled_back ? each->rollback(row) : each->commit(row);
      if (!label) continue;
      const Flight flight = label->flights.front();
      label->flights.pop_front();
      if (!flight.stale && !rolled_back) label->committed += flight.tokens;
      if (!flight.stale && rolled_back) label->drop_tail();
      label->broken = rolled_back && std::any_of(label->flights.begin(), label->flights.end(),
                                                 [](const Flight& each) { return !each.stale; });
      num_rolled_back += rolled_back;
      ShadowRequest& request = found->second;
      if (row.demand.context_tokens) {
        if (!rolled_back) request.context = request.contexts.front();
        request.contexts.pop_front();
      }
      if (rolled_back && row.demand.samples) --request.draws;
    }
  }

  // Reads every live sequence through a plan of no tokens.
  void check_all() {
    StepRows probe;
    probe.slot = kProbeSlot;
    std::set<const int*> pages_held;
    for (const auto& [id, request] : live_)
      for (int label = 0; label < kNumLabels; ++label) {
        probe.add({RequestId(id), {.label = label}});
        for (const auto& page : request.labels[label].pages) pages_held.insert(page.get());
        ASSERT_EQ(paged_->length(RequestId(id), label), request.labels[label].committed);
      }
    const Usage pages = paged_->usage();
    const auto held = static_cast<std::int64_t>(pages_held.size());
    ASSERT_EQ(pages.used, held);
    ASSERT_EQ(pages.total, max_requests_ * kNumLabels * kPagesPerSequence);
    ASSERT_EQ(paged_->free_pages() + held, pages.total);
    ASSERT_EQ(cross_->free_slots() + cross_->usage().used, max_requests_);
    ASSERT_EQ(cross_->usage().used, static_cast<std::int64_t>(live_.size()));
    for (Resource* each : all_) ASSERT_TRUE(each->plan(probe, {}));
    std::map<int, const int*> owned_pages;
    std::set<int> owned_contexts, owned_states;
    for (int r = 0; r < probe.num_rows(); ++r) check_sequence(probe, r, owned_pages, owned_contexts, owned_states);
  }

  void check_sequence(const StepRows& probe, int r, std::map<int, const int*>& pages, std::set<int>& contexts,
                      std::set<int>& states) {
    const StepRow& row = probe.rows[r];
    ShadowRequest& request = live_[row.request.value];
    const ShadowLabel& label = request.labels[row.demand.label];
    const PagedKvView kv = paged_->view(0, kProbeSlot);
    const std::int32_t* table = kv.page_table + r * kv.max_pages;
    const int num_pages = pages_for(label.planned());
    for (int i = 0; i < kv.max_pages; ++i) {
      if (i >= num_pages) {
        ASSERT_EQ(table[i], 0);
      } else {
        ASSERT_TRUE(table[i] >= 1 && table[i] <= paged_->usage().total);
        const int* const wanted = label.pages[static_cast<std::size_t>(i)].get();
        ASSERT_EQ(pages.try_emplace(table[i], wanted).first->second, wanted)
            << "page " << table[i] << " has two owners";
      }
    }
    for (int position = 0; position < label.committed; ++position) {
      for (const TensorView& part : {kv.keys, kv.values}) {
        const float stamp = part.data<float>()[table[position / kPageTokens] * kPageTokens + position % kPageTokens];
        ASSERT_EQ(stamps_[static_cast<std::size_t>(stamp)], label.tokens[static_cast<std::size_t>(position)])
            << "a committed token was lost";
      }
    }
    const SlotKvView cross = cross_->view(0, kProbeSlot);
    ASSERT_TRUE(cross.slots[r] >= 1 && cross.slots[r] <= max_requests_);
    ASSERT_EQ(contexts.insert(cross.slots[r]).second, row.demand.label == 0);
    ASSERT_EQ(cross_->length(row.request), request.context);
    const std::int32_t slot = state_->write_index_on_host(kProbeSlot)[r];
    ASSERT_TRUE(slot >= 1 && slot <= max_requests_ * kNumLabels);
    ASSERT_TRUE(states.insert(slot).second);
    if (static_cast<int>(request.state_slots.size()) <= row.demand.label) request.state_slots.push_back(slot);
    ASSERT_EQ(request.state_slots[row.demand.label], slot) << "a slot moved";
  }

  std::mt19937 random_;
  int max_requests_;
  std::unique_ptr<Device> device_;
  PoolLimits limits_;
  std::unique_ptr<PagedKvPool> paged_;
  std::unique_ptr<CrossKvPool> cross_;
  std::unique_ptr<SamplerPool> sampler_;
  std::unique_ptr<StateSlots> state_;
  std::vector<Resource*> all_;
  std::map<std::uint64_t, ShadowRequest> live_;
  std::deque<FlightStep> steps_;
  std::vector<Stamp> stamps_ = {{}};
  int next_slot_ = 0;
  std::uint64_t last_id_ = 0;
};

TEST(ResourceProperty, RandomLivesKeepEveryInvariant) {
  int num_steps = 0, num_refused = 0, num_rolled_back = 0, num_full = 0, num_withdrawn = 0, num_forks = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed, 1 + static_cast<int>(seed % 5));
    world.run(400);
    if (::testing::Test::HasFailure()) return;
    num_steps += world.num_steps;
    num_refused += world.num_refused;
    num_rolled_back += world.num_rolled_back;
    num_full += world.num_full;
    num_withdrawn += world.num_withdrawn;
    num_forks += world.num_forks;
  }
  // The events reached what they are for.
  EXPECT_GT(num_steps, 2000);
  EXPECT_GT(num_refused, 100);
  EXPECT_GT(num_rolled_back, 200);
  EXPECT_GT(num_full, 100);
  EXPECT_GT(num_withdrawn, 100);
  EXPECT_GT(num_forks, 500);
}

}  // namespace
}  // namespace mstar::resource
