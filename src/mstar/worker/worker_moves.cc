// A request's state that leaves for another worker, or comes from one: prefill here and decode there.
#include <algorithm>

#include "mstar/worker/worker.h"

namespace mstar::worker {

namespace {
constexpr std::size_t kMaxEarlyStates = 64;  // requests
}

void Worker::on(wire::HandOver message) {
  hand_overs_.push_back(std::move(message));
  send_states();
}

// Rows that were launched ahead and not wanted may be in flight still: what they leave must be taken back first.
void Worker::send_states() {
  std::vector<wire::HandOver> later;
  for (wire::HandOver& order : std::exchange(hand_overs_, {})) {
    Live* const live = find(order.request);
    if (!live || live->over()) continue;  // its removal is what it waits for
    if (has_rows_in_flight(*live, order.partition)) {
      later.push_back(std::move(order));
      continue;
    }
    guarded(*live, [&] {
      auto parcel = take_states(order, *live);
      if (!parcel) return fail(*live, std::move(parcel.error()));
      if (!mesh_.to_worker(order.to, std::move(*parcel)))
        fail(*live, unavailable("worker " + std::to_string(order.to.value) +
                                ", which the request's state was to go to, is gone"));
    });
  }
  hand_overs_ = std::move(later);
}

bool Worker::has_rows_in_flight(const Live& live, decl::PartitionRef partition) const {
  const auto holds = [&](const Batch& batch) {
    return std::any_of(batch.rows.begin(), batch.rows.end(),
                       [&](const Row& row) { return row.live == &live && row.pending.partition == partition; });
  };
  return std::any_of(in_flight_.begin(), in_flight_.end(), holds) ||
         std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) { return lane.open && holds(*lane.open); });
}

Result<wire::StateParcel> Worker::take_states(const wire::HandOver& order, const Live& live) {
  const decl::Decl& declaration = live.placed->model().declaration();
  wire::StateParcel out{order.request, {}};
  for (const decl::ResourceRef ref : order.resources) {
    resource::Resource* const found =
        ref.value < declaration.resources().size() ? models_[live.model].resources.at(ref) : nullptr;
    if (!found) return internal_error("a request's state was to leave a worker that has no such resource");
    MSTAR_TRY_ASSIGN(Values values, found->take_out(order.request));
    out.states.emplace_back(ref, std::move(values));
  }
  stats_stale_ = true;
  unblock_lanes();  // pages came back
  return out;
}

void Worker::on(const wire::AwaitState& message) {
  Live* const live = find(message.request);
  if (!live || live->over()) return;
  live->num_states_due += message.num_resources;
  live->waits_since_us = clock_.now_us();
}

void Worker::on(wire::StateParcel message) {
  Live* const live = find(message.request);
  if (!live) {
    // It may overtake the conductor's AddRequest, or come after the removal.
    if (message.request <= last_added_) return;
    if (early_states_.size() >= kMaxEarlyStates)
      return tell_conductor(wire::RequestFailed{message.request, internal_error("too many early states")});
    early_states_[message.request].push_back(std::move(message));
    return;
  }
  if (live->over()) return;
  const decl::Decl& declaration = live->placed->model().declaration();
  for (const auto& [ref, values] : message.states) {
    resource::Resource* const found =
        ref.value < declaration.resources().size() ? models_[live->model].resources.at(ref) : nullptr;
    if (!found) return fail(*live, internal_error("a request's state came to a worker that has no such resource"));
    if (Status put = found->put_in(message.request, values); !put) return fail(*live, std::move(put.error()));
    for (const Value& value : values) state_in_bytes_ += value.host.size_bytes();
    --live->num_states_due;
  }
  ++num_states_in_;
  stats_stale_ = true;
  if (live->num_states_due == 0 && live->waits_since_us > 0)
    state_wait_us_ += static_cast<std::uint64_t>(std::max<std::int64_t>(0, clock_.now_us() - live->waits_since_us));
  if (live->num_states_due <= 0) release_held(*live);
}

void Worker::release_held(Live& live) {
  for (Pending& each : std::exchange(live.held, {})) {
    const auto& node = live.placed->model().at(each.state->walk()).nodes;
    if (!each.state->is_current(each.node)) continue;
    Lane& lane = lanes_[lane_of_.at({live.model, node[each.node.node].component.value})];
    lane.queue.push_back(std::move(each));
    lane.blocked = false;
  }
}

}  // namespace mstar::worker
