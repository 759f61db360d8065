// Device components: which lane runs, what goes into its batch, and what becomes of each row.
#include <algorithm>

#include "mstar/base/check.h"
#include "mstar/base/log.h"
#include "mstar/base/prefetch.h"
#include "mstar/worker/worker.h"

namespace mstar::worker {

using decl::PartitionRef;

namespace {

// Rows between asking for something and using it, for what leads to what.
constexpr std::size_t kFar = 8, kNear = 5, kNext = 2;

bool share_a_label(const decl::Run& a, const decl::Run& b) {
  return std::any_of(a.labels.begin(), a.labels.end(), [&](const std::string& label) {
    return std::find(b.labels.begin(), b.labels.end(), label) != b.labels.end();
  });
}

}  // namespace

// A lane that never runs ahead waits for its step in flight, so that rows of different phase meet in one batch again.
Worker::Lane* Worker::next_lane() {
  Lane* best = nullptr;
  for (Lane& lane : lanes_) {
    const bool may_begin = lane.num_launched < (lane.runs_ahead ? 2 : 1) &&
                           ((!lane.queue.empty() && !lane.blocked) || has_followers(lane));
    if (!lane.open && !may_begin) continue;
    if (!best || lane.last_turn < best->last_turn) best = &lane;
  }
  return best;
}

bool Worker::device_is_busy() const {
  for (auto batch = in_flight_.rbegin(); batch != in_flight_.rend(); ++batch)
    if (batch->lane->engine->is_running(*batch->step)) return true;
  return false;
}

bool Worker::step_once() {
  Lane* const lane = in_flight_.size() < max_in_flight_ ? next_lane() : nullptr;
  held_ = lane && builds_late_ && waits_for_arrivals();
  if (held_) return false;
  if (lane) {
    run_slice(*lane);
  } else if (!in_flight_.empty()) {
    end_oldest_step();
  } else {
    return false;
  }
  return true;
}

void Worker::run_slice(Lane& lane) {
  lane.last_turn = ++turn_;
  try {
    if (!lane.open && !begin_step(lane)) return;
    const bool wanted = is_wanted(*lane.open);
    flush_to_conductor();
    if (wanted) {
      const auto whole = advance(lane);
      if (whole && !*whole) return;
    } else {
      for (Row& row : lane.open->rows)
        if (row.live) give_up(*row.live, row);
    }
    in_flight_.push_back(std::move(*lane.open));
    lane.open.reset();
    ++lane.num_launched;
    if (wanted && max_in_flight_ > 1) {
      note_launch(in_flight_.back());
      promise_outputs(in_flight_.back());
    }
  } catch (const std::exception& error) {
    log_error("worker {}: a step of '{}': {}", options_.id.value, lane.engine->spec().name, error.what());
    if (lane.open) abandon(*lane.open, internal_error(std::string("a step failed: ") + error.what()));
    lane.open.reset();
  }
  if (max_in_flight_ == 1 && !in_flight_.empty()) end_oldest_step();
}

Result<bool> Worker::advance(Lane& lane) {
  StepProfile* const profile = options_.profile;
  if (!profile) return lane.steps.advance(*lane.open->step);
  profile->look(device_is_busy());
  auto whole = lane.steps.advance(*lane.open->step);
  profile->look(device_is_busy());  // on what was launched before
  lane.open->launched_ns = profile->now_ns();
  return whole;
}

// False when nobody waits for any row of the step, so that its other slices need not run.
bool Worker::is_wanted(const Batch& batch) {
  return std::any_of(batch.rows.begin(), batch.rows.end(), [&](const Row& row) {
    if (!row.live || row.live->over() || row.standing == Standing::unwanted) return false;
    return row.standing == Standing::ahead || row.pending.state->is_current(row.pending.node);
  });
}

// Of a row that comes so many rows later.
void Worker::prefetch(const Pending& row, std::size_t distance) {
  switch (distance) {
    case kFar:
      mstar::prefetch(row.live);
      mstar::prefetch(row.state);
      break;
    case kNear:
      mstar::prefetch(&row.live->partitions[row.partition.value]);
      row.state->prefetch();
      break;
    default:
      row.state->prefetch_parts();
  }
}

engine::RowInputs Worker::row_inputs(const Live& live, const Pending& pending) const {
  const graph::PartitionState& state = *pending.state;
  const auto node = pending.node.node;
  const auto path = state.path(node);
  engine::RowInputs row{.request = live.request,
                        .params = live.params,
                        .walk = state.walk(),
                        .run = live.placed->model().at(state.walk()).nodes[node].run,
                        .progress = pending.progress};
  const auto inputs = state.inputs(node);
  row.ports.assign(inputs.begin(), inputs.end());
  if (live.placed->model().at(state.walk()).nodes[node].streams != 0)
    for (std::size_t i = 0; i < inputs.size(); ++i) row.num_seen.push_back(state.num_seen(node, i));
  if (!state.flags().empty()) row.flags = std::make_shared<const std::map<std::string, std::int64_t>>(state.flags());
  row.iteration = path.depth ? path.at[path.depth - 1] : 0;
  row.is_final = state.is_final(node);
  return row;
}

void Worker::add_row(Lane& lane, Live& live, Row row, engine::RowInputs input, std::vector<engine::RowInputs>& inputs) {
  input.tag = static_cast<std::uint32_t>(lane.open->rows.size());
  row.live = row.pending.live = &live;
  row.pending.state = live.partitions[row.pending.partition.value].get();
  lane.open->rows.push_back(std::move(row));
  ++live.num_in_flight;
  inputs.push_back(std::move(input));
}

// Moves ready nodes from the queue into the lane's rows, first come first served; skips those that are void. Then those
// that rows in flight feed.
void Worker::take_rows(Lane& lane, std::uint32_t group, std::vector<engine::RowInputs>& inputs) {
  // Parts of sequences: the engine picks the rows, for it knows which must wait.
  const std::size_t limit = lane.engine->spec().chunked_prefill
                                ? lane.queue.size()
                                : static_cast<std::size_t>(lane.engine->spec().max_batch_rows);
  const bool keeps_state = !lane.engine->spec().uses.empty();
  // A row leaves the queue once it is in the batch, so that none is lost when memory runs out.
  for (auto it = lane.queue.begin(); it != lane.queue.end() && inputs.size() < limit;) {
    for (const std::size_t distance : {kFar, kNear, kNext})
      if (lane.queue.end() - it > static_cast<std::ptrdiff_t>(distance))
        prefetch(it[static_cast<std::ptrdiff_t>(distance)], distance);
    const Pending pending = *it;
    Live* const live = pending.live;
    if (!live->over() && pending.state->is_current(pending.node)) {
      if (lane.group_of(pending.state->walk()) != group) {
        ++it;
        continue;
      }
      engine::RowInputs row = row_inputs(*live, pending);
      // Behind a row that will be rolled back nothing may stand.
      if (keeps_state && (live->num_unwanted > 0 || clashes(row, inputs))) {
        ++it;
        continue;
      }
      add_row(lane, *live, {.pending = pending}, std::move(row), inputs);
    } else if (!live->over()) {
      lane.steps.undo(pending.request, pending.progress);
    }
    if (it == lane.queue.begin()) {
      lane.queue.pop_front();
      it = lane.queue.begin();
    } else {
      it = lane.queue.erase(it);
    }
  }
  if (lane.runs_ahead) take_followers(lane, group, inputs);
}

// Two rows on the same state must not be of one step: their order would be lost.
bool Worker::clashes(const engine::RowInputs& row, const std::vector<engine::RowInputs>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [&](const engine::RowInputs& other) {
    return other.request == row.request && share_a_label(*other.run, *row.run);
  });
}

// Takes the row out of the flight.
Worker::Live& Worker::take_off(Row& row) {
  MSTAR_CHECK(row.live != nullptr, "a row that is not in flight");
  Live& live = *std::exchange(row.live, nullptr);
  if (row.standing == Standing::unwanted) --live.num_unwanted;
  std::erase(live.ahead, &row);
  return live;
}

// A row that was not admitted waits for its next chance.
void Worker::put_back(Lane& lane, Row& row, const engine::Progress& progress) {
  Live& live = take_off(row);
  if (row.standing == Standing::ahead) {
    live.partitions[row.pending.partition.value]->rollback_ahead(row.pending.node.node);
  } else {
    row.pending.progress = progress;
    lane.queue.push_front(row.pending);
  }
  release_in_flight(live);
}

// Of the walk that the request's partition is in; nothing when that is over.
std::optional<std::uint32_t> Worker::group_of(const Lane& lane, RequestId request, PartitionRef partition) {
  Live* const live = find(request);
  if (!live || live->over()) return std::nullopt;
  const decl::WalkRef walk = live->partitions[partition.value]->walk();
  if (!walk.valid()) return std::nullopt;
  return lane.group_of(walk);
}

// Those that have something to run, whoever has waited longest first.
std::vector<std::uint32_t> Worker::groups_in_turn(const Lane& lane) {
  if (lane.group_of_walk.empty()) return {0};
  std::vector<std::uint32_t> groups;
  const auto add = [&](RequestId request, PartitionRef partition) {
    const auto group = group_of(lane, request, partition);
    if (group && std::find(groups.begin(), groups.end(), *group) == groups.end()) groups.push_back(*group);
  };
  for (const Pending& pending : lane.queue) add(pending.request, pending.partition);
  for (const Batch& batch : in_flight_)
    for (const Follower& each : batch.followers)
      if (each.lane == &lane && !each.tried) add(each.request, each.partition);
  // What is void is thrown out by any group's turn.
  if (groups.empty()) groups.push_back(0);
  const auto turn_of = [&](std::uint32_t group) {
    const auto turn = lane.group_turns.find(group);
    return turn == lane.group_turns.end() ? 0 : turn->second;
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return turn_of(a) < turn_of(b); });
  return groups;
}

bool Worker::begin_step(Lane& lane) {
  const PhaseScope scope(options_.profile, Phase::schedule);
  for (const std::uint32_t group : groups_in_turn(lane)) {
    if (!begin_step(lane, group)) continue;
    lane.blocked = false;
    if (!lane.group_of_walk.empty()) lane.group_turns[group] = turn_;
    return true;
  }
  lane.blocked = !lane.queue.empty();
  // Those that found no place run when they are certain; asked for again and again, they would keep the steps in flight
  // from being read.
  for (Batch& batch : in_flight_)
    for (Follower& each : batch.followers)
      if (each.lane == &lane) each.tried = true;
  return false;
}

bool Worker::begin_step(Lane& lane, std::uint32_t group) {
  lane.open = Batch{.lane = &lane, .begun_us = max_in_flight_ > 1 ? clock_.now_us() : 0};
  std::vector<Row>& rows = lane.open->rows;
  std::vector<engine::RowInputs> inputs;
  take_rows(lane, group, inputs);
  engine::Engine::Prepared prepared;
  if (!inputs.empty()) prepared = lane.steps.prepare(std::move(inputs));
  lane.open->step = std::move(prepared.step);
  for (auto& failed : prepared.failed) {
    Row& row = rows[failed.tag];
    if (row.standing == Standing::ahead) {  // perhaps it never comes to that
      put_back(lane, row, {});
      continue;
    }
    Live& live = take_off(row);
    fail(live, std::move(*failed.error));
    release_in_flight(live);
  }
  for (auto it = prepared.waiting.rbegin(); it != prepared.waiting.rend(); ++it)
    put_back(lane, rows[it->tag], it->progress);
  for (Row& row : rows)
    if (row.live && row.standing == Standing::ahead) row.live->ahead.push_back(&row);
  if (lane.open->step) {
    lane.open->shape = lane.engine->shape(*lane.open->step);
    return true;
  }
  lane.open.reset();
  return false;
}

void Worker::end_oldest_step() {
  StepProfile* const profile = options_.profile;
  if (profile) profile->look(device_is_busy());
  const PhaseScope scope(profile, Phase::route);  // and what the engine does not name
  Batch batch = std::move(in_flight_.front());
  in_flight_.pop_front();
  Lane& lane = *batch.lane;
  const engine::Engine::StepShape shape = batch.shape;
  const std::uint64_t ended_before = num_ended_walks_;
  --lane.num_launched;
  if (max_in_flight_ > 1) withdraw_promises(batch);
  try {
    for (std::uint32_t tag = 0; tag < batch.rows.size(); ++tag) {
      Row& row = batch.rows[tag];
      if (!row.live) continue;
      if (row.standing == Standing::ahead) give_up(*row.live, row);
      if (row.standing == Standing::unwanted || row.live->over()) lane.steps.drop(*batch.step, tag);
    }
    if (max_in_flight_ > 1) note_end(batch);
    auto results = lane.steps.finish(std::move(batch.step));
    if (profile) profile->add_flight(batch.launched_ns, lane.profiled, shape.kind, shape.rows);
    for (std::size_t i = 0; i < results.size(); ++i) {
      for (const std::size_t distance : {kFar, kNear, kNext})
        if (i + distance < results.size())
          if (const Row& later = batch.rows[results[i + distance].tag]; later.live) prefetch(later.pending, distance);
      end_row(lane, batch.rows[results[i].tag], results[i]);
    }
  } catch (const std::exception& error) {
    log_error("worker {}: the end of a step of '{}': {}", options_.id.value, lane.engine->spec().name, error.what());
    abandon(batch, internal_error(std::string("a step failed: ") + error.what()));
  }
  if (!in_flight_.empty()) in_flight_.front().slack_us = slack_us(in_flight_.front(), num_ended_walks_ != ended_before);
  unblock_lanes();
  stats_stale_ = true;
  if (profile) profile->end_step(lane.profiled, shape.kind, shape.rows, device_is_busy());
}

// After a signal that may have cut nodes off. Of a sequence that was cut off nothing stays, for it may have come in
// parts, and its request's next row must find the label as it was.
void Worker::undo_cut_off(Live& live, PartitionRef partition) {
  const auto& state = *live.partitions[partition.value];
  const auto undo_rows = [&](Batch& batch) {
    if (!batch.lane->engine->spec().chunked_prefill) return;
    for (Row& row : batch.rows) {
      if (row.live != &live || row.standing != Standing::certain) continue;
      if (row.pending.partition != partition || state.is_current(row.pending.node)) continue;
      row.undo = true;
      give_up(live, row);
    }
  };
  for (Batch& batch : in_flight_) undo_rows(batch);
  for (Lane& lane : lanes_)
    if (lane.open) undo_rows(*lane.open);
}

void Worker::end_row(Lane& lane, Row& row, engine::RowResult& result) {
  Live& live = take_off(row);
  guarded(live, [&] {
    if (row.undo && !live.over()) lane.steps.undo(live.request, result.progress);
    if (live.over() || row.standing != Standing::certain) return;
    if (result.error) return fail(live, std::move(*result.error));
    if (result.partial) {  // the node comes again
      row.pending.progress = result.progress;
      return lane.queue.push_back(row.pending);  // if it is void, it is undone there
    }
    complete(live, row.pending.partition, row.pending.node, std::move(result.outputs), result.stopped_loops);
  });
  release_in_flight(live);
}

// Ends the requests of all rows that are still in flight: what cannot be attributed is everyone's.
void Worker::abandon(Batch& batch, const Error& error) {
  if (batch.step) batch.lane->steps.abandon(std::move(batch.step));
  for (Row& row : batch.rows) {
    if (!row.live) continue;
    Live& live = take_off(row);
    fail(live, error);
    release_in_flight(live);
  }
  unblock_lanes();
}

void Worker::unblock_lanes() {
  for (Lane& lane : lanes_) lane.blocked = false;
}

}  // namespace mstar::worker
