// The network and the order of events.
#include "mstar/graph/sim/simulator.h"

#include <algorithm>

#include "mstar/graph/sim/simulator_internal.h"

namespace mstar::graph::sim {

Simulator::Simulator(const PlacedModel& placed, std::shared_ptr<const PlacedModel> owner,
                     const decl::RequestParams& params, const Options& options)
    : placed_(placed),
      model_(placed.model()),
      decl_(model_.declaration()),
      params_(params),
      options_(options),
      rng_(options.seed),
      oracle_(model_) {
  num_workers_ = static_cast<std::size_t>(options.num_workers);
  channels_.resize((num_workers_ + 1) * (num_workers_ + 1));
  workers_.resize(num_workers_);
  std::set<decl::PortRef> given;
  NewRequest request;
  for (std::size_t p = 0; p < decl_.ports().size(); ++p)
    for (const decl::Travel& travel : decl_.ports()[p].travel) {
      const decl::PortRef port(static_cast<std::uint16_t>(p));
      if (const auto* from = std::get_if<decl::FromRequest>(&travel); from && (!from->optional || chance(0.7))) {
        given.insert(port);
        request.inputs.emplace_back(port, Values{make()});
      }
      if (std::holds_alternative<decl::FromClient>(travel))
        client_left_[port] = static_cast<int>(pick(static_cast<std::size_t>(options.client_items) + 1));
    }
  for (std::size_t w = 0; w < num_workers_; ++w) send(num_workers_, w, request);
  for (std::size_t p = 0; p < model_.partitions().size(); ++p) {
    const decl::PartitionRef ref(static_cast<std::uint16_t>(p));
    partitions_.push_back(
        {PartitionProgress(owner, ref, given), model_.at(ref).plan(params_), {}, {}, {}, 0, false, false});
    for (const auto& [port, values] : request.inputs) partitions_.back().kept[port] = ids_of(values);
  }
}

Outcome Simulator::run() {
  for (std::size_t p = 0; p < partitions_.size(); ++p) next_walk(ref(p));
  for (std::int64_t action = 0; out_.faults.empty(); ++action) {
    if (action > 2'000'000) fault("the request does not end");
    if (!out_.aborted && options_.abort > 0 && chance(options_.abort)) abort();
    if (options_.cancel > 0 && !out_.aborted && chance(options_.cancel)) cancel(ref(pick(partitions_.size())));
    if (!act()) break;
    for (const Worker& worker : workers_)
      if (!worker.ledger.fault().empty()) fault(worker.ledger.fault());
  }
  if (out_.faults.empty() && !out_.aborted) check_end();
  finish();
  return std::move(out_);
}

void Simulator::send(std::size_t from, std::size_t to, Message message) {
  auto& channel = channels_[from * (num_workers_ + 1) + to];
  if (channel.empty()) busy_.push_back(from * (num_workers_ + 1) + to);
  const auto* signal = std::get_if<PartitionSignal>(&message);
  const bool twice =
      signal && from < num_workers_ && !std::holds_alternative<StreamEnd>(signal->signal) && chance(options_.duplicate);
  if (twice) channel.push_back(message);
  channel.push_back(std::move(message));
}

// One thing happens. False when nothing can.
bool Simulator::act() {
  std::vector<std::size_t> active;
  for (std::size_t w = 0; w < num_workers_; ++w)
    if (can_work(workers_[w])) active.push_back(w);
  std::vector<decl::PortRef> clients;
  for (const auto& [port, left] : client_left_)
    if (left >= 0) clients.push_back(port);
  const std::size_t choices = busy_.size() + active.size() + clients.size();
  if (choices == 0) return false;
  std::size_t choice = pick(choices);
  if (choice < busy_.size()) return receive(choice), true;
  choice -= busy_.size();
  if (choice < active.size()) return work(active[choice]), true;
  client_item(clients[choice - active.size()]);
  return true;
}

void Simulator::receive(std::size_t index) {
  const std::size_t key = busy_[index];
  Message message = std::move(channels_[key].front());
  channels_[key].pop_front();
  if (channels_[key].empty()) busy_.erase(busy_.begin() + static_cast<std::ptrdiff_t>(index));
  const std::size_t to = key % (num_workers_ + 1);
  if (to == num_workers_) return conduct(std::move(message));
  Worker& worker = workers_[to];
  if (worker.removed) return;
  if (auto* request = std::get_if<NewRequest>(&message)) return admit(to, *request);
  if (auto* signal = std::get_if<PartitionSignal>(&message)) {
    if (!worker.known) {
      if (!worker.early.hold(RequestId(1), std::move(*signal))) fault("early signals are full");
      return;
    }
    return apply(to, std::move(*signal));
  }
  if (const auto* cut = std::get_if<CancelPass>(&message)) {
    const auto state = worker.states.find(cut->partition);
    if (state == worker.states.end()) return;
    if (std::optional<FragmentDone> done = state->second.cancel(true))
      send(to, num_workers_, Report{WorkerId(static_cast<std::uint32_t>(to)), cut->partition, std::move(*done)});
    drop_work(worker, cut->partition);
  }
}

std::shared_ptr<const PlacedModel> Simulator::owner() const {
  return std::shared_ptr<const PlacedModel>(std::shared_ptr<const PlacedModel>(), &placed_);
}

void Simulator::finish() {
  for (Worker& worker : workers_) worker = Worker();
  channels_.clear();
  partitions_.clear();
  effects_ = {};
  out_.live_values = live_;
}

Outcome run(const PlacedModel& placed, std::shared_ptr<const PlacedModel> owner, const decl::RequestParams& params,
            const Options& options) {
  return Simulator(placed, std::move(owner), params, options).run();
}

std::shared_ptr<const PlacedModel> random_placement(const CompiledModel& model, std::uint64_t seed, int num_workers,
                                                    bool by_walk) {
  std::mt19937_64 rng(seed);
  const auto worker = [&] {
    return WorkerId(static_cast<std::uint32_t>(rng() % static_cast<std::uint64_t>(num_workers)));
  };
  for (int attempt = 0; attempt < 20; ++attempt) {
    RequestPlacement placement(model, WorkerId(0));
    for (std::size_t c = 0; c < model.declaration().components().size(); ++c) {
      const decl::ComponentRef component(static_cast<std::uint16_t>(c));
      placement.set(component, worker());
      if (!by_walk || attempt > 10) continue;
      for (const CompiledWalk& walk : model.walks()) placement.set(component, walk.ref, worker());
    }
    if (auto placed = PlacedModel::place(model, placement)) return *placed;
  }
  auto placed = PlacedModel::place(model, RequestPlacement(model, WorkerId(0)));
  return placed ? *placed : nullptr;
}

}  // namespace mstar::graph::sim
