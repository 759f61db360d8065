#include "mstar/graph/placement.h"

#include <algorithm>
#include <map>
#include <set>

namespace mstar::graph {
namespace {

void add_once(std::vector<WorkerId>& list, WorkerId worker) {
  const auto at = std::lower_bound(list.begin(), list.end(), worker);
  if (at == list.end() || *at != worker) list.insert(at, worker);
}

// Nodes of `loop` that take a value, directly or through others, from `from` in the same iteration; `from` included.
std::vector<bool> reach_forward(const CompiledWalk& walk, const CompiledLoop& loop, std::vector<bool> from) {
  for (bool grew = true; grew;) {
    grew = false;
    for (const Edge& edge : walk.edges) {
      if (edge.from == kNoNode || edge.back != kNoLoop || edge.depth < loop.depth || !from[edge.from]) continue;
      for (const Target& target : edge.targets)
        if (!from[target.node]) from[target.node] = grew = true;
    }
  }
  return from;
}

bool may_end_by_itself(const CompiledWalk& walk, const CompiledLoop& loop) {
  if (!std::holds_alternative<decl::StepCount>(loop.spec->stop)) return true;
  return std::any_of(loop.all_nodes.begin(), loop.all_nodes.end(),
                     [&](NodeIndex n) { return walk.nodes[n].streams != 0; });
}

// Nodes that may stop the loop: the writer of the token, any node for a component signal, readers of a stream that
// ends.
bool may_stop(const CompiledWalk& walk, const CompiledLoop& loop, NodeIndex n) {
  const Node& node = walk.nodes[n];
  if (node.streams || std::holds_alternative<decl::ComponentSignal>(loop.spec->stop)) return true;
  const auto* rule = std::get_if<decl::TokenStop>(&loop.spec->stop);
  return rule && std::count(node.run->outputs.begin(), node.run->outputs.end(), rule->token) > 0;
}

}  // namespace

RequestPlacement::RequestPlacement(const CompiledModel& model, WorkerId all)
    : num_walks_(model.walks().size()), table_(model.declaration().components().size() * num_walks_, all) {}

void RequestPlacement::set(decl::ComponentRef component, decl::WalkRef walk, WorkerId worker) {
  table_[component.value * num_walks_ + walk.value] = worker;
}

void RequestPlacement::set(decl::ComponentRef component, WorkerId worker) {
  for (std::size_t w = 0; w < num_walks_; ++w) table_[component.value * num_walks_ + w] = worker;
}

WorkerId RequestPlacement::at(decl::ComponentRef component, decl::WalkRef walk) const {
  return table_[component.value * num_walks_ + walk.value];
}

Result<RequestPlacement> RequestPlacement::from_table(const CompiledModel& model, std::vector<WorkerId> table) {
  RequestPlacement placement(model, WorkerId());
  if (table.size() != placement.table_.size()) return invalid_request("placement table of the wrong size");
  placement.table_ = std::move(table);
  return placement;
}

Result<std::shared_ptr<const PlacedModel>> PlacedModel::place(const CompiledModel& model, RequestPlacement placement) {
  std::shared_ptr<PlacedModel> placed(new PlacedModel(model, std::move(placement)));
  if (placed->placement_.table().size() != model.walks().size() * model.declaration().components().size())
    return bad_model("placement is for another model");
  for (const CompiledWalk& walk : model.walks())
    for (NodeIndex n = 0; n < walk.nodes.size(); ++n)
      if (!placed->owner(walk.ref, n).valid())
        return bad_model("no worker for '" + model.declaration().at(walk.nodes[n].component).name() + "' in walk '" +
                         model.declaration().at(walk.ref).name + "'");
  for (const CompiledWalk& walk : model.walks()) placed->add_walk(walk);
  placed->find_moving_state();
  placed->workers_.resize(model.partitions().size());
  for (const CompiledWalk& walk : model.walks())
    for (const Fragment& each : placed->fragments(walk.ref))
      add_once(placed->workers_[walk.partition.value], each.worker);
  for (std::size_t p = 0; p < model.partitions().size(); ++p) {
    std::vector<WorkerId>& workers = placed->stream_workers_.emplace_back();
    for (const StreamInput& stream : model.partitions()[p].streams) {
      const std::vector<WorkerId> readers =
          placed->readers(decl::PartitionRef(static_cast<std::uint16_t>(p)), stream.port);
      workers.push_back(readers.empty() ? WorkerId() : readers.front());
    }
  }
  const std::vector<std::string> faults = placed->faults();
  if (!faults.empty()) {
    std::string all = "placement of '" + model.declaration().name() + "':";
    for (const std::string& fault : faults) all += "\n  " + fault;
    return bad_model(std::move(all));
  }
  return std::shared_ptr<const PlacedModel>(std::move(placed));
}

void PlacedModel::add_walk(const CompiledWalk& walk) {
  std::vector<WorkerId> workers;
  for (NodeIndex n = 0; n < walk.nodes.size(); ++n) add_once(workers, owner(walk.ref, n));
  std::vector<Fragment>& fragments = fragments_.emplace_back();
  for (const WorkerId worker : workers) {
    Fragment& fragment = fragments.emplace_back();
    fragment.worker = worker;
    fragment.local.assign(walk.nodes.size(), false);
    fragment.loop_members.assign(walk.loops.size(), 0);
    for (NodeIndex n = 0; n < walk.nodes.size(); ++n) {
      if (owner(walk.ref, n) != worker) continue;
      fragment.nodes.push_back(n);
      fragment.local[n] = true;
      if (walk.nodes[n].depth == 0)
        ++fragment.top_members;
      else
        ++fragment.loop_members[walk.nodes[n].inner_loop()];
    }
    // Inner loops follow outer ones: from the back, each loop's own count is complete before it counts for its parent.
    for (std::size_t l = walk.loops.size(); l-- > 0;) {
      if (!fragment.loop_members[l]) continue;
      if (walk.loops[l].parent == kNoLoop)
        ++fragment.top_members;
      else
        ++fragment.loop_members[walk.loops[l].parent];
    }
  }
  std::vector<std::vector<WorkerId>>& peers = edge_peers_.emplace_back();
  for (const Edge& edge : walk.edges) {
    std::vector<WorkerId>& list = peers.emplace_back();
    for (const Target& target : edge.targets) {
      const WorkerId to = owner(walk.ref, target.node);
      if (edge.from == kNoNode || owner(walk.ref, edge.from) != to) add_once(list, to);
    }
  }
}

bool keeps_state(const decl::ResourceSpec& spec) {
  return !std::holds_alternative<decl::LinearAttention>(spec) && !std::holds_alternative<decl::Attention>(spec) &&
         !std::holds_alternative<decl::RaggedAttention>(spec);
}

void PlacedModel::find_moving_state() {
  const decl::Decl& decl = model_->declaration();
  moving_state_.resize(model_->walks().size());
  for (std::uint16_t r = 0; r < decl.resources().size(); ++r) {
    const decl::ResourceRef resource(r);
    if (!keeps_state(decl.at(resource))) continue;
    std::set<WorkerId> all;
    std::vector<StateUse> by_walk(model_->walks().size());
    bool each_on_one = true;
    for (const CompiledWalk& walk : model_->walks())
      for (NodeIndex n = 0; n < walk.nodes.size(); ++n) {
        const decl::Component& component = decl.at(walk.nodes[n].component);
        if (component.on_host()) continue;
        const auto& uses = component.device().uses;
        if (std::find(uses.begin(), uses.end(), resource) == uses.end()) continue;
        StateUse& use = by_walk[walk.ref.value];
        const WorkerId worker = owner(walk.ref, n);
        each_on_one &= !use.worker.valid() || use.worker == worker;
        use = {resource, worker};
        all.insert(worker);
      }
    if (all.size() < 2 || !each_on_one) continue;
    for (std::size_t w = 0; w < by_walk.size(); ++w)
      if (by_walk[w].worker.valid()) moving_state_[w].push_back(by_walk[w]);
  }
}

WorkerId PlacedModel::owner(decl::WalkRef walk, NodeIndex node) const {
  return placement_.at(model_->at(walk).nodes[node].component, walk);
}

const Fragment* PlacedModel::fragment(decl::WalkRef walk, WorkerId worker) const {
  for (const Fragment& each : fragments_[walk.value])
    if (each.worker == worker) return &each;
  return nullptr;
}

std::vector<WorkerId> PlacedModel::readers(decl::PartitionRef partition, decl::PortRef port) const {
  std::vector<WorkerId> workers;
  for (const decl::WalkRef walk : model_->at(partition).walks)
    if (const ExternalInput* input = model_->at(walk).find_input(port))
      for (const WorkerId worker : edge_peers(walk, input->edge)) add_once(workers, worker);
  return workers;
}

WorkerId PlacedModel::stream_worker(decl::PartitionRef partition, decl::PortRef port) const {
  const int stream = model_->at(partition).find_stream(port);
  return stream < 0 ? WorkerId() : stream_workers_[partition.value][static_cast<std::size_t>(stream)];
}

std::vector<WorkerId> PlacedModel::loop_peers(decl::WalkRef walk, LoopIndex loop, WorkerId self) const {
  std::vector<WorkerId> peers;
  for (const Fragment& each : fragments_[walk.value])
    if (each.worker != self && each.loop_members[loop]) peers.push_back(each.worker);
  return peers;
}

std::vector<std::string> PlacedModel::faults() const {
  std::vector<std::string> faults;
  const decl::Decl& decl = model_->declaration();
  for (std::size_t p = 0; p < model_->partitions().size(); ++p)
    for (const StreamInput& stream : model_->partitions()[p].streams)
      if (readers(decl::PartitionRef(static_cast<std::uint16_t>(p)), stream.port).size() > 1)
        faults.push_back("stream '" + decl.at(stream.port).name + "' is read by more than one worker of partition '" +
                         model_->partitions()[p].name + "'");
  for (const CompiledWalk& walk : model_->walks()) {
    const std::string who = "walk '" + decl.at(walk.ref).name + "': ";
    std::map<decl::PortRef, std::set<WorkerId>> writers;
    for (NodeIndex n = 0; n < walk.nodes.size(); ++n)
      for (const Output& out : walk.outputs_of(n))
        if (out.keep || out.to_client || !out.streams_to.empty()) writers[out.port].insert(owner(walk.ref, n));
    for (const auto& [port, workers] : writers)
      if (workers.size() > 1) faults.push_back(who + "'" + decl.at(port).name + "' travels from more than one worker");
    for (const CompiledLoop& loop : walk.loops)
      if (may_end_by_itself(walk, loop)) add_loop_faults(walk, loop, who, faults);
  }
  return faults;
}

// A part on another worker than the one that stops a loop must wait for something that follows from the stop's own
// iteration, else it would run an iteration too many.
void PlacedModel::add_loop_faults(const CompiledWalk& walk, const CompiledLoop& loop, const std::string& who,
                                  std::vector<std::string>& faults) const {
  const decl::Decl& decl = model_->declaration();
  for (const NodeIndex decider : loop.all_nodes) {
    if (!may_stop(walk, loop, decider)) continue;
    std::vector<bool> start(walk.nodes.size(), false);
    start[decider] = true;
    const std::vector<bool> same = reach_forward(walk, loop, start);
    std::vector<bool> next(walk.nodes.size(), false);
    for (const Edge& edge : walk.edges)
      if (edge.back != kNoLoop && walk.loops[edge.back].spec == loop.spec && same[edge.from])
        for (const Target& target : edge.targets) next[target.node] = true;
    next = reach_forward(walk, loop, next);
    std::set<WorkerId> waiting = {owner(walk.ref, decider)};  // workers whose own barrier follows the stop
    for (const NodeIndex n : loop.all_nodes)
      if (same[n]) waiting.insert(owner(walk.ref, n));
    for (const NodeIndex n : loop.all_nodes)
      if (!next[n] && !waiting.count(owner(walk.ref, n)))
        faults.push_back(who + "'" + decl.at(walk.nodes[n].component).name() + "' must be on the worker of '" +
                         decl.at(walk.nodes[decider].component).name() + "', which may stop loop '" + loop.spec->name +
                         "'");
  }
}

}  // namespace mstar::graph
