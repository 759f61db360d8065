#include "mstar/graph/partition_progress.h"

#include <algorithm>

namespace mstar::graph {
namespace {

template <class Map, class Key>
typename Map::mapped_type at_or(const Map& map, const Key& key, typename Map::mapped_type other) {
  const auto at = map.find(key);
  return at == map.end() ? other : at->second;
}

bool may_be_absent(const decl::PortSpec& port) {
  for (const decl::Travel& travel : port.travel)
    if (const auto* request = std::get_if<decl::FromRequest>(&travel); request && request->optional) return true;
  return false;
}

}  // namespace

PartitionProgress::PartitionProgress(std::shared_ptr<const PlacedModel> placed, decl::PartitionRef partition,
                                     std::set<decl::PortRef> given)
    : placed_(std::move(placed)), partition_(partition) {
  const CompiledModel& model = placed_->model();
  for (const decl::PortRef port : model.at(partition).request_inputs)
    if (given.count(port) || may_be_absent(model.declaration().at(port))) kept_[port] = 0;
  for (const decl::WalkRef walk : model.at(partition).walks)
    for (const Output& out : model.at(walk).outputs)
      for (const decl::PartitionRef to : out.streams_to) {
        const std::pair<decl::PortRef, decl::PartitionRef> stream(out.port, to);
        if (!std::count(out_streams_.begin(), out_streams_.end(), stream)) out_streams_.push_back(stream);
      }
}

Result<std::vector<std::pair<WorkerId, StartPass>>> PartitionProgress::begin(const decl::NextWalk& next) {
  const CompiledModel& model = placed_->model();
  const auto& walks = model.at(partition_).walks;
  if (!std::count(walks.begin(), walks.end(), next.walk))
    return internal_error("plan chose a walk of another partition");
  if (running()) return internal_error("plan asked while a walk runs");
  const CompiledWalk& walk = model.at(next.walk);
  const std::string who = "plan of walk '" + model.declaration().at(next.walk).name + "': ";

  StartPass common;
  common.walk = next.walk;
  common.pass = pass_ + 1;
  common.flags = next.flags;
  for (const auto& [name, cap] : next.caps) {
    const LoopIndex loop = walk.find_loop(name);
    if (loop == kNoLoop) return internal_error(who + "no loop '" + name + "'");
    if (cap < 1) return internal_error(who + "cap of loop '" + name + "' is below 1");
    common.caps.emplace_back(loop, cap);
  }
  for (const auto& [port, to] : out_streams_)
    if (const auto base = std::make_pair(port, at_or(produced_, port, 0));
        !std::count(common.stream_base.begin(), common.stream_base.end(), base))
      common.stream_base.push_back(base);
  for (const auto& [port, values] : next.inputs)
    if (!walk.find_input(port)) return internal_error(who + "gives a port that the walk does not take from outside");

  std::vector<std::pair<WorkerId, StartPass>> starts;
  for (const Fragment& fragment : placed_->fragments(next.walk)) starts.emplace_back(fragment.worker, common);
  for (const ExternalInput& input : walk.inputs) {
    const auto given = std::find_if(next.inputs.begin(), next.inputs.end(),
                                    [&](const auto& each) { return each.first == input.port; });
    const auto kept = kept_.find(input.port);
    if (input.stream) continue;
    if (given == next.inputs.end() && kept == kept_.end())
      return internal_error(who + "nothing gave '" + model.declaration().at(input.port).name + "'");
    const auto owners = placed_->edge_peers(next.walk, input.edge);
    for (auto& [worker, start] : starts) {
      if (!std::count(owners.begin(), owners.end(), worker)) continue;
      if (given != next.inputs.end())
        start.inputs.emplace_back(input.port, Values(given->second.begin(), given->second.end()));
      else
        start.kept.emplace_back(input.port, kept->second);
    }
  }
  for (const decl::PortRef port : next.forget) {
    kept_.erase(port);
    for (const WorkerId worker : placed_->readers(partition_, port)) forget_[worker].push_back(port);
  }
  for (auto& [worker, start] : starts) {
    const auto untold = forget_.find(worker);
    if (untold == forget_.end()) continue;
    start.forget = std::move(untold->second);
    forget_.erase(untold);
  }
  ++pass_;
  walk_ = next.walk;
  loop_ends_.clear();
  waiting_.clear();
  for (const auto& [worker, start] : starts) waiting_.push_back(worker);
  return starts;
}

bool PartitionProgress::on_fragment(WorkerId worker, const FragmentDone& done) {
  if (done.pass != pass_ || std::erase(waiting_, worker) == 0) return false;
  for (const decl::PortRef port : done.kept) kept_[port] = done.pass;
  for (const auto& [port, count] : done.produced) produced_[port] += count;
  for (const auto& [port, count] : done.consumed) consumed_[port] = std::max(consumed_[port], count);
  const CompiledWalk& walk = placed_->model().at(walk_);
  for (const FragmentLoopEnd& each : done.loop_ends) {
    if (each.loop >= walk.loops.size()) continue;
    const auto [at, fresh] = loop_ends_.emplace(walk.loops[each.loop].spec->name, each.end);
    if (!fresh && each.end == decl::LoopEnd::stop) at->second = each.end;
  }
  num_tokens_ += done.num_tokens;
  final_consumed_ = final_consumed_ || done.final_consumed;
  end_partition_ = end_partition_ || done.end_partition;
  budget_spent_ = budget_spent_ || done.budget_spent;
  if (running()) return false;
  finished_ = walk_;
  ++num_walks_;
  return true;
}

std::int64_t PartitionProgress::produced(decl::PortRef port) const { return at_or(produced_, port, 0); }
std::int64_t PartitionProgress::consumed(decl::PortRef port) const { return at_or(consumed_, port, 0); }

}  // namespace mstar::graph
