// Device components: which lane runs, what goes into its batch, and what becomes of each row.
#include <algorithm>

#include "mstar/base/check.h"
#include "mstar/base/log.h"
#include "mstar/worker/worker.h"

namespace mstar::worker {
namespace {

bool share_a_label(const decl::Run& a, const decl::Run& b) {
  return std::any_of(a.labels.begin(), a.labels.end(), [&](const std::string& label) {
    return std::find(b.labels.begin(), b.labels.end(), label) != b.labels.end();
  });
}

}  // namespace

Worker::Lane* Worker::next_lane() {
  Lane* best = nullptr;
  for (Lane& lane : lanes_) {
    if (!lane.step && (lane.queue.empty() || lane.blocked)) continue;
    if (!best || lane.last_turn < best->last_turn) best = &lane;
  }
  return best;
}

bool Worker::step_once() {
  Lane* lane = next_lane();
  if (!lane) return false;
  lane->last_turn = ++turn_;
  try {
    if (!lane->step && !begin_step(*lane)) return true;
    if (is_wanted(*lane)) {
      auto launched = lane->engine->advance(*lane->step);
      if (launched && !*launched) return true;
    }
    end_step(*lane);
  } catch (const std::exception& error) {
    log_error("worker {}: a step of '{}': {}", options_.id.value, lane->engine->spec().name, error.what());
    abandon_step(*lane, internal_error(std::string("a step failed: ") + error.what()));
  }
  return true;
}

// False when nobody waits for any row of the step, so that its other slices need not run.
bool Worker::is_wanted(const Lane& lane) {
  return std::any_of(lane.rows.begin(), lane.rows.end(), [&](const Row& row) {
    Live* live = row.in_flight ? find(row.pending.request) : nullptr;
    return live && !live->over() && live->partitions[row.pending.partition.value]->is_current(row.pending.node);
  });
}

engine::RowInputs Worker::row_inputs(const Live& live, const Pending& pending) const {
  const auto& state = *live.partitions[pending.partition.value];
  const auto node = pending.node.node;
  const auto path = state.path(node);
  engine::RowInputs row{.request = live.request,
                        .params = live.params,
                        .walk = state.walk(),
                        .run = live.placed->model().at(state.walk()).nodes[node].run};
  const auto inputs = state.inputs(node);
  row.ports.assign(inputs.begin(), inputs.end());
  for (std::size_t i = 0; i < inputs.size(); ++i) row.num_seen.push_back(state.num_seen(node, i));
  if (!state.flags().empty()) row.flags = std::make_shared<const std::map<std::string, std::int64_t>>(state.flags());
  row.iteration = path.depth ? path.at[path.depth - 1] : 0;
  row.is_final = state.is_final(node);
  return row;
}

// Moves ready nodes from the queue into the lane's rows, first come first served; skips those that are void.
void Worker::take_rows(Lane& lane, std::vector<engine::RowInputs>& inputs) {
  lane.rows.clear();
  std::deque<Pending> later;
  const std::size_t limit = static_cast<std::size_t>(lane.engine->spec().max_batch_rows);
  const bool keeps_state = !lane.engine->spec().uses.empty();
  while (!lane.queue.empty() && inputs.size() < limit) {
    const Pending pending = lane.queue.front();
    lane.queue.pop_front();
    Live* live = find(pending.request);
    if (!live || live->over() || !live->partitions[pending.partition.value]->is_current(pending.node)) continue;
    engine::RowInputs row = row_inputs(*live, pending);
    // Two rows on the same state must not be of one step: their order would be lost.
    const bool clashes = keeps_state && std::any_of(inputs.begin(), inputs.end(), [&](const engine::RowInputs& other) {
                           return other.request == row.request && share_a_label(*other.run, *row.run);
                         });
    if (clashes) {
      later.push_back(pending);
      continue;
    }
    row.tag = static_cast<std::uint32_t>(lane.rows.size());
    lane.rows.push_back({pending});
    ++live->num_in_flight;
    inputs.push_back(std::move(row));
  }
  lane.queue.insert(lane.queue.begin(), later.begin(), later.end());
}

Worker::Live& Worker::take_off(Row& row) {
  Live* live = find(row.pending.request);
  MSTAR_CHECK(live != nullptr && row.in_flight, "a request with a row in flight was erased");
  row.in_flight = false;
  return *live;
}

bool Worker::begin_step(Lane& lane) {
  std::vector<engine::RowInputs> inputs;
  take_rows(lane, inputs);
  if (inputs.empty()) return false;
  auto prepared = lane.engine->prepare(std::move(inputs));
  lane.step = std::move(prepared.step);
  for (auto& failed : prepared.failed) {
    Live& live = take_off(lane.rows[failed.tag]);
    fail(live, std::move(*failed.error));
    release_in_flight(live);
  }
  for (auto it = prepared.waiting.rbegin(); it != prepared.waiting.rend(); ++it) {
    Row& row = lane.rows[it->tag];
    Live& live = take_off(row);
    lane.queue.push_front(row.pending);
    release_in_flight(live);
  }
  lane.blocked = !lane.step && !lane.queue.empty();
  return lane.step != nullptr;
}

void Worker::end_step(Lane& lane) {
  auto results = lane.engine->finish(std::move(lane.step));
  for (auto& result : results) {
    Row& row = lane.rows[result.tag];
    Live& live = take_off(row);
    guarded(live, [&] {
      if (live.over()) return;
      if (result.error) return fail(live, std::move(*result.error));
      complete(live, row.pending.partition, row.pending.node, std::move(result.outputs), result.stopped_loops);
    });
    release_in_flight(live);
  }
  lane.rows.clear();
  unblock_lanes();
  stats_stale_ = true;
}

void Worker::abandon_step(Lane& lane, const Error& error) {
  lane.step.reset();  // what its rows hold of the resources goes with their requests
  for (Row& row : lane.rows) {
    if (!row.in_flight) continue;
    Live& live = take_off(row);
    fail(live, error);
    release_in_flight(live);
  }
  lane.rows.clear();
  unblock_lanes();
}

void Worker::unblock_lanes() {
  for (Lane& lane : lanes_) lane.blocked = false;
}

}  // namespace mstar::worker
