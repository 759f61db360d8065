#include "mstar/graph/sim/oracle.h"

#include <algorithm>
#include <set>

namespace mstar::graph::sim {
namespace {

bool starts_with(const LoopPath& path, const LoopPath& prefix, int depth) {
  return std::equal(path.at.begin(), path.at.begin() + depth, prefix.at.begin());
}

}  // namespace

Ids ids_of(const Values& values) {
  Ids ids;
  for (const Value& value : values) {
    const auto* tracked = dynamic_cast<const Tracked*>(value.device.get());
    ids.push_back(tracked ? tracked->id() : 0);
  }
  return ids;
}

std::string print(const Ids& ids) {
  std::string text = "[";
  for (const std::int64_t id : ids) text += std::to_string(id) + " ";
  return text + "]";
}

std::string print(const LoopPath& path) {
  std::string text = "(";
  for (int d = 0; d < path.depth; ++d) text += std::to_string(path.at[static_cast<std::size_t>(d)]) + " ";
  return text + ")";
}

Oracle::Oracle(const CompiledModel& model) {
  for (const decl::Walk& walk : model.declaration().walks())
    flows_.push_back(decl::trace_flow(model.declaration(), walk));
}

void Oracle::begin_pass(decl::PartitionRef partition, decl::WalkRef walk) { passes_[partition] = {walk, {}}; }

void Oracle::made(decl::PartitionRef partition, NodeIndex node, int output, const LoopPath& path, Ids ids) {
  passes_[partition].log[{node, output}].push_back({path, std::move(ids)});
}

Ids Oracle::value_at(const Pass& pass, int node, int output, int depth, const LoopPath& prefix) const {
  const auto at = pass.log.find({node, output});
  if (at == pass.log.end()) return {};
  const auto& loops = flow(pass).nodes[static_cast<std::size_t>(node)].loops;
  if (depth == static_cast<int>(loops.size())) {
    for (const Record& record : at->second)
      if (starts_with(record.path, prefix, depth)) return record.ids;
    return {};
  }
  const decl::FlowLoop& loop = flow(pass).loops[static_cast<std::size_t>(loops[static_cast<std::size_t>(depth)])];
  bool all = false;
  for (const decl::FlowExport& each : loop.exports)
    if (each.node == node && each.output == output) all = each.all;
  std::int32_t most = -1;
  for (const Record& record : at->second)
    if (starts_with(record.path, prefix, depth)) most = std::max(most, record.path.at[static_cast<std::size_t>(depth)]);
  Ids ids;
  for (std::int32_t i = 0; i <= most; ++i) {
    LoopPath inner = prefix;
    inner.at[static_cast<std::size_t>(depth)] = i;
    Ids one = value_at(pass, node, output, depth + 1, inner);
    if (one.empty()) continue;
    if (!all) ids.clear();
    ids.insert(ids.end(), one.begin(), one.end());
  }
  return ids;
}

bool Oracle::expected(decl::PartitionRef partition, NodeIndex node, std::size_t input, const LoopPath& path,
                      Ids& out) const {
  const Pass& pass = passes_.at(partition);
  const decl::FlowInput& in = flow(pass).nodes[node].inputs[input];
  for (const decl::FlowBack& back : in.backs) {  // innermost first
    const auto depth = static_cast<std::size_t>(flow(pass).loops[static_cast<std::size_t>(back.loop)].depth);
    if (path.at[depth - 1] == 0) continue;
    LoopPath before = path;
    --before.at[depth - 1];
    out = value_at(pass, back.node, back.output, static_cast<int>(depth), before);
    return true;
  }
  if (in.first.node < 0) return false;
  out = value_at(pass, in.first.node, in.first.output, in.first.depth, path);
  return true;
}

Ids Oracle::last_travelled(decl::PartitionRef partition, decl::PortRef port) const {
  const Pass& pass = passes_.at(partition);
  Ids last;
  for (const auto& [key, records] : pass.log) {  // in the order of the walk's nodes
    const decl::FlowOutput& out =
        flow(pass).nodes[static_cast<std::size_t>(key.first)].outputs[static_cast<std::size_t>(key.second)];
    if (out.port != port || out.travel_depth < 0) continue;
    last = value_at(pass, key.first, key.second, out.travel_depth, records.back().path);
  }
  return last;
}

Ids Oracle::all_travelled(decl::PartitionRef partition, decl::PortRef port) const {
  const Pass& pass = passes_.at(partition);
  Ids all;
  for (const auto& [key, records] : pass.log) {
    const decl::FlowOutput& out =
        flow(pass).nodes[static_cast<std::size_t>(key.first)].outputs[static_cast<std::size_t>(key.second)];
    if (out.port != port || out.travel_depth < 0) continue;
    std::set<std::vector<std::int32_t>> seen;
    for (const Record& record : records) {
      if (!seen.insert({record.path.at.begin(), record.path.at.begin() + out.travel_depth}).second) continue;
      const Ids one = value_at(pass, key.first, key.second, out.travel_depth, record.path);
      all.insert(all.end(), one.begin(), one.end());
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace mstar::graph::sim
