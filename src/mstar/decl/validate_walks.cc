#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "mstar/decl/faults.h"
#include "mstar/decl/walk_flow.h"

namespace mstar::decl {
namespace {

constexpr std::size_t kMaxInputs = 64;  // readiness is a 64-bit mask
constexpr std::size_t kMaxOutputs = 255;
constexpr std::size_t kMaxLoops = 254;
constexpr int kMaxLoopDepth = 4;

// Labels that every labelled resource of a component knows; none = the component has no labelled resource.
std::vector<const std::vector<std::string>*> labels_of(const Decl& model, const Component& component) {
  std::vector<const std::vector<std::string>*> labels;
  if (component.on_host()) return labels;
  for (const ResourceRef ref : component.device().uses) {
    if (ref.value >= model.resources().size()) continue;
    if (const auto* known = labels_of(model.at(ref))) labels.push_back(known);
  }
  return labels;
}

void check_labels(const Decl& model, const Run& run, const std::string& who, Faults& faults) {
  const Component& component = model.at(run.component);
  const auto known = labels_of(model, component);
  const auto check = [&](const std::string& label, const char* what) {
    if (known.empty() && label == "main") return;
    for (const auto* labels : known)
      if (std::find(labels->begin(), labels->end(), label) == labels->end()) {
        faults.add(who + what + " '" + label + "' is not one of every resource of '" + component.name() + "'");
        return;
      }
    if (known.empty())
      faults.add(who + what + " '" + label + "', but '" + component.name() + "' has no labelled resource");
  };
  if (run.labels.empty()) faults.add(who + "has no label");
  std::set<std::string> seen;
  for (const std::string& label : run.labels) {
    check(label, "label");
    if (!seen.insert(label).second) faults.add(who + "label '" + label + "' is there twice");
  }
  for (const auto* forks : {&run.forks_before, &run.forks_after})
    for (const Fork& fork : *forks) {
      if (known.empty()) {
        faults.add(who + "forks '" + fork.from + "', but '" + component.name() + "' has no labelled resource");
        continue;
      }
      check(fork.from, "fork source");
      check(fork.to, "fork target");
      if (fork.from == fork.to) faults.add(who + "forks '" + fork.from + "' to itself");
    }
}

void check_token_stop(const Decl& model, const FlowLoop& loop, int index, const WalkFlow& flow, const TokenStop& stop,
                      const std::string& who, Faults& faults) {
  if (stop.token.value >= model.ports().size()) return faults.add(who + "stops on a port that is not of this model");
  const PortSpec& token = model.at(stop.token);
  if (token.dtype != DType::i32) faults.add(who + "stops on '" + token.name + "', which is not i32");
  bool made = false;
  for (const FlowNode& node : flow.nodes)
    for (const FlowOutput& out : node.outputs)
      made = made || (out.port == stop.token && std::count(node.loops.begin(), node.loops.end(), index) > 0);
  if (!made) faults.add(who + "stops on '" + token.name + "', which its body does not make");
  for (const std::string& name : stop.prefill_walks) {
    const WalkRef walk = model.find_walk(name);
    if (!walk.valid()) {
      faults.add(who + "names an unknown prefill walk '" + name + "'");
      continue;
    }
    bool makes = false;
    for_each_run(model.at(walk).root, [&](const Run& run) {
      makes = makes || std::count(run.outputs.begin(), run.outputs.end(), stop.token) > 0;
    });
    if (!makes) faults.add(who + "prefill walk '" + name + "' does not make '" + token.name + "'");
  }
  (void)loop;
}

void check_loops(const Decl& model, const WalkFlow& flow, const std::string& who, Faults& faults) {
  std::set<std::string> names;
  for (std::size_t l = 0; l < flow.loops.size(); ++l) {
    const Loop& spec = *flow.loops[l].spec;
    if (spec.name.empty())
      faults.add(who + "a loop has no name");
    else if (!names.insert(spec.name).second)
      faults.add(who + "two loops are named '" + spec.name + "'");
    const std::string loop = who + "loop '" + spec.name + "' ";
    if (spec.at_most < 1) faults.add(loop + "must run at least once (at_most)");
    if (flow.loops[l].depth > kMaxLoopDepth) faults.add(loop + "is more than 4 loops deep");
    bool has_node = false;
    for (const FlowNode& node : flow.nodes)
      has_node = has_node || std::count(node.loops.begin(), node.loops.end(), static_cast<int>(l)) > 0;
    if (!has_node) faults.add(loop + "runs nothing");
    for (const PortRef port : spec.outputs)
      if (std::count(spec.accumulated.begin(), spec.accumulated.end(), port))
        faults.add(loop + "has '" + model.at(port).name + "' in both outputs and accumulated");
    if (const auto* stop = std::get_if<TokenStop>(&spec.stop))
      check_token_stop(model, flow.loops[l], static_cast<int>(l), flow, *stop, loop, faults);
  }
}

// Ports that walks of each partition keep, and the port's own sources.
struct Sources {
  std::map<PartitionRef, std::set<PortRef>> kept;
};

Sources sources_of(const Decl& model) {
  Sources sources;
  for (std::size_t w = 0; w < model.walks().size(); ++w) {
    const PartitionRef partition = model.partition_of(WalkRef(static_cast<std::uint16_t>(w)));
    for_each_run(model.walks()[w].root, [&](const Run& run) {
      for (const PortRef port : run.outputs)
        for (const Travel& travel : model.at(port).travel)
          if (std::holds_alternative<Keep>(travel)) sources.kept[partition].insert(port);
    });
  }
  return sources;
}

bool streams_into(const Decl& model, PortRef port, PartitionRef partition) {
  for (const Travel& travel : model.at(port).travel) {
    if (std::holds_alternative<FromClient>(travel)) return true;
    if (const auto* stream = std::get_if<Stream>(&travel))
      if (partition.value < model.partitions().size() && model.at(partition).name == stream->to) return true;
  }
  return false;
}

bool has_source(const Decl& model, PortRef port, PartitionRef partition, Sources& sources) {
  for (const Travel& travel : model.at(port).travel)
    if (std::holds_alternative<FromRequest>(travel) || std::holds_alternative<FromPlan>(travel)) return true;
  return streams_into(model, port, partition) || sources.kept[partition].count(port) > 0;
}

void check_inputs(const Decl& model, WalkRef walk, const WalkFlow& flow, const std::string& who, Sources& sources,
                  Faults& faults) {
  const PartitionRef partition = model.partition_of(walk);
  std::map<PortRef, int> stream_readers;
  std::set<PortRef> reported;
  for (const FlowNode& node : flow.nodes) {
    for (const FlowInput& in : node.inputs) {
      if (in.first.node >= 0) continue;
      const std::string& port = model.at(in.port).name;
      if (!has_source(model, in.port, partition, sources) && reported.insert(in.port).second)
        faults.add(who + "nothing gives '" + port + "' to '" + model.at(node.run->component).name() + "'");
      if (!streams_into(model, in.port, partition)) continue;
      if (++stream_readers[in.port] == 2) faults.add(who + "two runs read the stream '" + port + "'");
      if (!in.backs.empty()) faults.add(who + "the stream '" + port + "' is also looped back");
    }
  }
}

}  // namespace

bool check_references(const Decl& model, Faults& faults) {
  bool good = true;
  const auto bad = [&](const std::string& fault) {
    faults.add(fault);
    good = false;
  };
  const auto port = [&](const std::string& who, PortRef ref) {
    if (ref.value >= model.ports().size()) bad(who + "names a port that is not of this model");
  };
  struct Loops {
    const std::function<void(const Loop&)>& visit;
    void walk(const Section& s) const {
      if (const auto* seq = std::get_if<Sequential>(&s)) list(seq->sections);
      if (const auto* par = std::get_if<Parallel>(&s)) list(par->sections);
      if (const auto* loop = std::get_if<Loop>(&s)) {
        visit(*loop);
        list(loop->body);
      }
    }
    void list(const std::vector<Section>& sections) const {
      for (const Section& each : sections) walk(each);
    }
  };
  for (const Walk& walk : model.walks()) {
    const std::string who = "walk '" + walk.name + "': ";
    for_each_run(walk.root, [&](const Run& run) {
      if (run.component.value >= model.components().size()) bad(who + "names a component that is not of this model");
      for (const PortRef ref : run.inputs) port(who, ref);
      for (const PortRef ref : run.outputs) port(who, ref);
    });
    const std::function<void(const Loop&)> visit = [&](const Loop& loop) {
      for (const PortRef ref : loop.outputs) port(who, ref);
      for (const PortRef ref : loop.accumulated) port(who, ref);
    };
    Loops{visit}.walk(walk.root);
  }
  return good;
}

void check_walks(const Decl& model, Faults& faults) {
  Sources sources = sources_of(model);
  std::vector<bool> runs(model.components().size(), false);
  for (std::size_t w = 0; w < model.walks().size(); ++w) {
    const Walk& walk = model.walks()[w];
    const std::string who = "walk '" + walk.name + "': ";
    WalkFlow flow = trace_flow(model, walk);
    for (std::string& fault : flow.faults) faults.add(std::move(fault));
    if (flow.nodes.empty()) faults.add(who + "runs nothing");
    if (flow.loops.size() > kMaxLoops) faults.add(who + "has more than 254 loops");
    check_loops(model, flow, who, faults);
    check_inputs(model, WalkRef(static_cast<std::uint16_t>(w)), flow, who, sources, faults);
    for (const FlowNode& node : flow.nodes) {
      runs[node.run->component.value] = true;
      const std::string run = who + "run of '" + model.at(node.run->component).name() + "': ";
      if (node.run->inputs.size() > kMaxInputs) faults.add(run + "has more than 64 inputs");
      if (node.run->outputs.size() > kMaxOutputs) faults.add(run + "has more than 255 outputs");
      check_labels(model, *node.run, run, faults);
    }
  }
  for (std::size_t c = 0; c < runs.size(); ++c)
    if (!runs[c]) faults.add("component '" + model.components()[c].name() + "' is run by no walk");
  for (const Component& component : model.components()) {
    if (component.on_host()) continue;
    for (const CombinedWalks& combined : component.device().combined)
      for (const WalkRef ref : combined.walks) {
        if (ref.value >= model.walks().size()) continue;  // reported with the component
        bool ran = false;
        for_each_run(model.at(ref).root, [&](const Run& run) { ran = ran || &model.at(run.component) == &component; });
        if (!ran)
          faults.add("component '" + component.name() + "': combined walk '" + model.at(ref).name +
                     "' does not run it");
      }
  }
}

}  // namespace mstar::decl
