#include "mstar/graph/compiled.h"

#include <algorithm>

#include "mstar/decl/walk_flow.h"

namespace mstar::graph {
namespace {

using decl::FlowInput;
using decl::FlowNode;
using decl::WalkFlow;

constexpr std::size_t kMaxNodes = 10'000;  // keeps every index far inside its type
constexpr std::size_t kMaxEdges = 30'000;

template <class To, class From>
To narrow(From value) {
  return static_cast<To>(value);
}

bool streams_into(const CompiledPartition& partition, decl::PortRef port) { return partition.find_stream(port) >= 0; }

class WalkCompiler {
 public:
  WalkCompiler(const decl::Decl& model, decl::WalkRef ref, decl::PartitionRef partition, const CompiledPartition& owner)
      : model_(model), owner_(owner), flow_(decl::trace_flow(model, model.at(ref))) {
    walk_.ref = ref;
    walk_.partition = partition;
  }

  Result<CompiledWalk> compile() {
    if (flow_.nodes.size() > kMaxNodes) return bad_model("walk '" + model_.at(walk_.ref).name + "' has too many runs");
    add_nodes();
    add_loops();
    for (const FlowNode& node : flow_.nodes) add_outputs(node);
    for (std::size_t n = 0; n < flow_.nodes.size(); ++n) connect(narrow<NodeIndex>(n));
    add_caches();
    add_stops();
    if (walk_.edges.size() > kMaxEdges) return bad_model("walk '" + model_.at(walk_.ref).name + "' has too many edges");
    return std::move(walk_);
  }

 private:
  void add_nodes() {
    std::size_t num_outputs = 0;
    for (const FlowNode& flow : flow_.nodes) {
      Node& node = walk_.nodes.emplace_back();
      node.component = flow.run->component;
      node.run = flow.run;
      node.first_slot = narrow<std::uint16_t>(walk_.slots.size());
      node.first_output = narrow<std::uint16_t>(num_outputs);
      num_outputs += flow.outputs.size();
      node.depth = narrow<std::uint8_t>(flow.loops.size());
      for (std::size_t d = 0; d < flow.loops.size(); ++d) node.loops[d] = narrow<LoopIndex>(flow.loops[d]);
      for (std::size_t i = 0; i < flow.inputs.size(); ++i) {
        Slot& slot = walk_.slots.emplace_back();
        slot.port = flow.inputs[i].port;
        slot.external = flow.inputs[i].first.node < 0;
        slot.level = narrow<std::uint8_t>(slot.external ? 0 : flow.inputs[i].first.depth);
        slot.stream = slot.external && streams_into(owner_, slot.port);
        if (!slot.external)
          slot.first_from = {narrow<NodeIndex>(flow.inputs[i].first.node),
                             narrow<std::uint8_t>(flow.inputs[i].first.output)};
        for (const decl::FlowBack& back : flow.inputs[i].backs) {
          const auto depth = static_cast<std::size_t>(flow_.loops[static_cast<std::size_t>(back.loop)].depth);
          slot.back_levels = narrow<std::uint8_t>(slot.back_levels | (1U << depth));
          slot.back_from[depth] = {narrow<NodeIndex>(back.node), narrow<std::uint8_t>(back.output)};
        }
        node.need |= std::uint64_t{1} << i;
        if (slot.stream) node.streams |= std::uint64_t{1} << i;
        if (needs_entry(slot, node.depth)) slot.entry = narrow<std::int16_t>(walk_.num_entries++);
      }
    }
  }

  // A loop inside of one that doesn't loop the value back starts each of its runs from the first value again.
  static bool needs_entry(const Slot& slot, int depth) {
    bool plain_outer = false;
    for (int d = slot.level + 1; d <= depth; ++d) {
      if (slot.back_levels & (1U << d)) {
        if (plain_outer) return true;
      } else {
        plain_outer = true;
      }
    }
    return false;
  }

  void add_loops() {
    for (const decl::FlowLoop& flow : flow_.loops) {
      CompiledLoop& loop = walk_.loops.emplace_back();
      loop.spec = flow.spec;
      loop.parent = flow.parent < 0 ? kNoLoop : narrow<LoopIndex>(flow.parent);
      loop.depth = narrow<std::uint8_t>(flow.depth);
      for (const decl::FlowExport& each : flow.exports)
        loop.exports.push_back({narrow<NodeIndex>(each.node), narrow<std::uint8_t>(each.output)});
    }
    for (std::size_t l = 0; l < walk_.loops.size(); ++l) {
      const LoopIndex index = narrow<LoopIndex>(l);
      if (walk_.loops[l].parent == kNoLoop)
        walk_.top_loops.push_back(index);
      else
        walk_.loops[walk_.loops[l].parent].direct_loops.push_back(index);
      for (LoopIndex up = walk_.loops[l].parent; up != kNoLoop; up = walk_.loops[up].parent)
        walk_.loops[up].all_loops.push_back(index);
    }
    for (std::size_t n = 0; n < walk_.nodes.size(); ++n) {
      const Node& node = walk_.nodes[n];
      if (node.depth == 0)
        walk_.top_nodes.push_back(narrow<NodeIndex>(n));
      else
        walk_.loops[node.inner_loop()].direct_nodes.push_back(narrow<NodeIndex>(n));
      for (int d = 0; d < node.depth; ++d)
        walk_.loops[node.loops[static_cast<std::size_t>(d)]].all_nodes.push_back(narrow<NodeIndex>(n));
    }
  }

  void add_outputs(const FlowNode& flow) {
    for (const decl::FlowOutput& from : flow.outputs) {
      Output& out = walk_.outputs.emplace_back();
      const decl::PortSpec& port = model_.at(from.port);
      out.port = from.port;
      out.counts_token = port.counts_token;
      out.travel_depth = narrow<std::uint8_t>(std::max(from.travel_depth, 0));
      if (from.travel_depth < 0) continue;
      for (const decl::Travel& travel : port.travel) {
        out.keep = out.keep || std::holds_alternative<decl::Keep>(travel);
        out.to_client = out.to_client || std::holds_alternative<decl::ToClient>(travel);
        if (const auto* stream = std::get_if<decl::Stream>(&travel)) {
          for (std::size_t p = 0; p < model_.partitions().size(); ++p)
            if (model_.partitions()[p].name == stream->to)
              out.streams_to.push_back(decl::PartitionRef(narrow<std::uint16_t>(p)));
        }
      }
    }
  }

  void connect(NodeIndex node) {
    const FlowNode& flow = flow_.nodes[node];
    for (std::size_t i = 0; i < flow.inputs.size(); ++i) {
      const FlowInput& in = flow.inputs[i];
      const Target target{node, narrow<std::uint8_t>(i)};
      if (in.first.node >= 0) {
        Output& out = output(in.first.node, in.first.output);
        const int depth = in.first.depth;
        add_target(out.forward[static_cast<std::size_t>(depth)],
                   {out.port,
                    narrow<NodeIndex>(in.first.node),
                    narrow<std::uint8_t>(in.first.output),
                    narrow<std::uint8_t>(depth),
                    kNoLoop,
                    {}},
                   target);
      } else {
        add_external(in.port, target);
      }
      for (const decl::FlowBack& back : in.backs) {
        Output& out = output(back.node, back.output);
        const int depth = flow_.loops[static_cast<std::size_t>(back.loop)].depth;
        add_target(out.back[static_cast<std::size_t>(depth)],
                   {out.port,
                    narrow<NodeIndex>(back.node),
                    narrow<std::uint8_t>(back.output),
                    narrow<std::uint8_t>(depth),
                    narrow<LoopIndex>(back.loop),
                    {}},
                   target);
      }
    }
  }

  void add_target(EdgeIndex& edge, Edge fresh, Target target) {
    if (edge == kNoEdge) {
      edge = narrow<EdgeIndex>(walk_.edges.size());
      walk_.edges.push_back(std::move(fresh));
    }
    walk_.edges[edge].targets.push_back(target);
  }

  void add_external(decl::PortRef port, Target target) {
    for (ExternalInput& input : walk_.inputs)
      if (input.port == port) return walk_.edges[input.edge].targets.push_back(target);
    EdgeIndex edge = kNoEdge;
    add_target(edge, {port, kNoNode, 0, 0, kNoLoop, {}}, target);
    walk_.inputs.push_back({port, edge, streams_into(owner_, port)});
  }

  void add_caches() {
    for (const decl::FlowLoop& loop : flow_.loops)
      for (const decl::FlowExport& each : loop.exports) {
        Output& out = output(each.node, each.output);
        out.exports[static_cast<std::size_t>(loop.depth)] = each.all ? Export::all : Export::last;
        out.cache[static_cast<std::size_t>(loop.depth)] = narrow<std::int16_t>(walk_.num_cached++);
      }
  }

  void add_stops() {
    for (std::size_t n = 0; n < walk_.nodes.size(); ++n) {
      Node& node = walk_.nodes[n];
      for (int d = node.depth; d-- > 0;) {
        const LoopIndex loop = node.loops[static_cast<std::size_t>(d)];
        if (const auto* rule = std::get_if<decl::TokenStop>(&walk_.loops[loop].spec->stop)) add_stop(node, *rule, loop);
      }
    }
    // A prefill walk obeys the token stops that name it, in walks of its partition.
    for (const decl::WalkRef other : owner_.walks) {
      const WalkFlow flow = decl::trace_flow(model_, model_.at(other));
      for (const decl::FlowLoop& loop : flow.loops) {
        const auto* rule = std::get_if<decl::TokenStop>(&loop.spec->stop);
        if (!rule || !std::count(rule->prefill_walks.begin(), rule->prefill_walks.end(), model_.at(walk_.ref).name))
          continue;
        for (Node& node : walk_.nodes) add_stop(node, *rule, kNoLoop);
      }
    }
  }

  static void add_stop(Node& node, const decl::TokenStop& rule, LoopIndex loop) {
    const auto& outputs = node.run->outputs;
    const auto at = std::find(outputs.begin(), outputs.end(), rule.token);
    if (at != outputs.end()) node.stops.push_back({&rule, narrow<std::uint8_t>(at - outputs.begin()), loop});
  }

  Output& output(int node, int index) {
    return walk_.outputs[walk_.nodes[static_cast<std::size_t>(node)].first_output + static_cast<std::size_t>(index)];
  }

  const decl::Decl& model_;
  const CompiledPartition& owner_;
  WalkFlow flow_;
  CompiledWalk walk_;
};

CompiledPartition make_partition(const decl::Decl& model, std::string name, decl::MakePlan plan,
                                 std::vector<decl::WalkRef> walks) {
  CompiledPartition partition;
  partition.name = std::move(name);
  partition.plan = std::move(plan);
  partition.walks = std::move(walks);
  std::vector<bool> reads(model.ports().size(), false);
  for (const decl::WalkRef walk : partition.walks)
    for (const FlowNode& node : decl::trace_flow(model, model.at(walk)).nodes)
      for (const FlowInput& in : node.inputs)
        if (in.first.node < 0) reads[in.port.value] = true;
  const auto producer_of = [&](decl::PortRef port) {
    decl::PartitionRef producer;
    for (std::size_t w = 0; w < model.walks().size(); ++w)
      decl::for_each_run(model.walks()[w].root, [&](const decl::Run& run) {
        if (std::count(run.outputs.begin(), run.outputs.end(), port))
          producer = model.partition_of(decl::WalkRef(narrow<std::uint16_t>(w)));
      });
    return producer;
  };
  for (std::size_t p = 0; p < model.ports().size(); ++p) {
    if (!reads[p]) continue;
    const decl::PortRef port(narrow<std::uint16_t>(p));
    for (const decl::Travel& travel : model.at(port).travel) {
      if (std::holds_alternative<decl::Keep>(travel)) partition.kept.push_back(port);
      if (std::holds_alternative<decl::FromRequest>(travel)) partition.request_inputs.push_back(port);
      if (const auto* client = std::get_if<decl::FromClient>(&travel))
        partition.streams.push_back({port, client->chunks, true, {}});
      if (const auto* stream = std::get_if<decl::Stream>(&travel); stream && stream->to == partition.name)
        partition.streams.push_back({port, stream->chunks, false, producer_of(port)});
    }
  }
  return partition;
}

}  // namespace

LoopIndex CompiledWalk::find_loop(std::string_view name) const {
  for (std::size_t l = 0; l < loops.size(); ++l)
    if (loops[l].spec->name == name) return narrow<LoopIndex>(l);
  return kNoLoop;
}

const ExternalInput* CompiledWalk::find_input(decl::PortRef port) const {
  for (const ExternalInput& input : inputs)
    if (input.port == port) return &input;
  return nullptr;
}

int CompiledPartition::find_stream(decl::PortRef port) const {
  for (std::size_t s = 0; s < streams.size(); ++s)
    if (streams[s].port == port) return static_cast<int>(s);
  return -1;
}

Result<CompiledModel> CompiledModel::compile(const decl::Decl& model) {
  const std::vector<std::string> faults = model.validate();
  if (!faults.empty()) {
    std::string all = "model '" + model.name() + "':";
    for (const std::string& fault : faults) all += "\n  " + fault;
    return bad_model(std::move(all));
  }
  CompiledModel compiled(model);
  for (std::size_t p = 0; p < model.partitions().size(); ++p) {
    const decl::PartitionSpec& spec = model.partitions()[p];
    compiled.partitions_.push_back(make_partition(model, spec.name, spec.plan, spec.walks));
  }
  if (model.partitions().empty()) {
    std::vector<decl::WalkRef> walks;
    for (std::size_t w = 0; w < model.walks().size(); ++w) walks.push_back(decl::WalkRef(narrow<std::uint16_t>(w)));
    compiled.partitions_.push_back(make_partition(model, decl::PartitionSpec{}.name, decl::in_order(walks), walks));
  }
  for (std::size_t w = 0; w < model.walks().size(); ++w) {
    const decl::WalkRef ref(narrow<std::uint16_t>(w));
    const decl::PartitionRef partition = model.partition_of(ref);
    MSTAR_TRY_ASSIGN(CompiledWalk walk, WalkCompiler(model, ref, partition, compiled.at(partition)).compile());
    compiled.walks_.push_back(std::move(walk));
  }
  return compiled;
}

}  // namespace mstar::graph
