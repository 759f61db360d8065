#include "mstar/decl/walk_flow.h"

#include <algorithm>
#include <set>

namespace mstar::decl {
namespace {

struct Visible {
  PortRef port;
  int node = -1;
  int output = -1;
  bool looped_back = false;  // by a loop round it: it continues an earlier writer's value
};
struct Open {
  int node = -1;
  int input = -1;
};
// What a section shows to the sections round it.
struct Boundary {
  std::vector<Visible> visible;
  std::vector<Open> open;         // inputs without a first source so far
  std::vector<Visible> enclosed;  // made in a loop that doesn't export them
};

class Tracer {
 public:
  Tracer(const Decl& model, const Walk& walk) : model_(model), walk_(walk) {}

  WalkFlow trace() {
    (void)section(walk_.root);
    set_travel_depths();
    find_cycles();
    return std::move(flow_);
  }

 private:
  Boundary section(const Section& s) {
    if (const auto* run = std::get_if<Run>(&s)) return node(*run);
    if (const auto* seq = std::get_if<Sequential>(&s)) return sequence(seq->sections);
    if (const auto* par = std::get_if<Parallel>(&s)) return parallel(par->sections);
    return loop(std::get<Loop>(s));
  }

  Boundary node(const Run& run) {
    const int index = static_cast<int>(flow_.nodes.size());
    FlowNode& n = flow_.nodes.emplace_back();
    n.run = &run;
    n.loops = enclosing_;
    Boundary b;
    for (std::size_t i = 0; i < run.inputs.size(); ++i) {
      if (std::count(run.inputs.begin(), run.inputs.end(), run.inputs[i]) > 1 && first_use(run.inputs, i))
        fault("run " + at(index) + " reads port '" + name(run.inputs[i]) + "' twice");
      n.inputs.push_back({run.inputs[i], {}, {}});
      b.open.push_back({index, static_cast<int>(i)});
    }
    for (std::size_t i = 0; i < run.outputs.size(); ++i) {
      if (std::count(run.outputs.begin(), run.outputs.end(), run.outputs[i]) > 1 && first_use(run.outputs, i))
        fault("run " + at(index) + " writes port '" + name(run.outputs[i]) + "' twice");
      n.outputs.push_back({run.outputs[i], 0});
      b.visible.push_back({run.outputs[i], index, static_cast<int>(i), false});
    }
    return b;
  }

  Boundary sequence(const std::vector<Section>& sections) {
    Boundary all;
    for (const Section& each : sections) {
      Boundary b = section(each);
      for (const Open& open : b.open) {
        const PortRef port = port_of(open);
        if (find(all.enclosed, port))
          fault("'" + name(port) + "' is read by " + at(open.node) +
                " after a loop that makes it but does not export it");
        else if (connect(open, all.visible))
          continue;
        all.open.push_back(open);
      }
      for (const std::vector<Visible>* writers : {&b.enclosed, &b.visible})
        for (const Visible& v : *writers) {
          const Visible* earlier = find(all.visible, v.port);
          if (const Visible* hidden = find(all.enclosed, v.port))
            two_writers(*hidden, v);
          else if (earlier && !v.looped_back)
            two_writers(*earlier, v);
        }
      add_new(b.enclosed, all.enclosed);
      for (const Visible& v : b.visible) {
        if (Visible* earlier = find(all.visible, v.port))
          *earlier = v;
        else
          all.visible.push_back(v);
      }
    }
    return all;
  }

  Boundary parallel(const std::vector<Section>& sections) {
    std::vector<Boundary> parts;
    for (const Section& each : sections) parts.push_back(section(each));
    Boundary all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<Visible> others;
      for (std::size_t j = 0; j < parts.size(); ++j)
        if (j != i) others.insert(others.end(), parts[j].visible.begin(), parts[j].visible.end());
      for (const Open& open : parts[i].open)
        if (!connect(open, others)) all.open.push_back(open);
    }
    for (const Boundary& part : parts) {
      for (const std::vector<Visible>* writers : {&part.enclosed, &part.visible})
        for (const Visible& v : *writers)
          for (const std::vector<Visible>* others : {&all.enclosed, &all.visible})
            if (const Visible* other = find(*others, v.port)) two_writers(*other, v);
      add_new(part.enclosed, all.enclosed);
      add_new(part.visible, all.visible);
    }
    return all;
  }

  Boundary loop(const Loop& spec) {
    const int index = static_cast<int>(flow_.loops.size());
    flow_.loops.push_back(
        {&spec, enclosing_.empty() ? -1 : enclosing_.back(), static_cast<int>(enclosing_.size()) + 1, {}});
    enclosing_.push_back(index);
    Boundary body = sequence(spec.body);
    enclosing_.pop_back();

    Boundary out;
    out.open = body.open;
    std::set<PortRef> looped;
    for (const Open& open : body.open) {
      const Visible* v = find(body.visible, port_of(open));
      if (!v) continue;
      flow_.nodes[static_cast<std::size_t>(open.node)].inputs[static_cast<std::size_t>(open.input)].backs.push_back(
          {index, v->node, v->output});
      looped.insert(v->port);
    }
    out.enclosed = body.enclosed;
    for (Visible v : body.visible) {
      v.looped_back = looped.count(v.port) > 0;
      if (!find(out.enclosed, v.port)) out.enclosed.push_back(v);
    }
    add_exports(spec, index, spec.outputs, false, body, looped, out);
    add_exports(spec, index, spec.accumulated, true, body, looped, out);
    return out;
  }

  void add_exports(const Loop& spec, int index, const std::vector<PortRef>& ports, bool all, const Boundary& body,
                   const std::set<PortRef>& looped, Boundary& out) {
    for (const PortRef port : ports) {
      const Visible* v = find(body.visible, port);
      if (!v) {
        fault("loop '" + spec.name + "' exports '" + name(port) + "', which its body does not make");
        continue;
      }
      if (find(body.enclosed, port)) {
        fault("loop '" + spec.name + "' exports '" + name(port) +
              "', which a loop inside of it makes anew but does not export");
        continue;
      }
      if (find(out.visible, port)) {
        fault("loop '" + spec.name + "' exports '" + name(port) + "' more than once");
        continue;
      }
      flow_.loops[static_cast<std::size_t>(index)].exports.push_back({v->node, v->output, all});
      out.visible.push_back({port, v->node, v->output, looped.count(port) > 0});
      out.enclosed.erase(
          std::remove_if(out.enclosed.begin(), out.enclosed.end(), [port](const Visible& e) { return e.port == port; }),
          out.enclosed.end());
    }
  }

  bool connect(const Open& open, const std::vector<Visible>& from) {
    for (const Visible& v : from) {
      if (v.port != port_of(open)) continue;
      FlowInput& in = flow_.nodes[static_cast<std::size_t>(open.node)].inputs[static_cast<std::size_t>(open.input)];
      in.first = {v.node, v.output, static_cast<int>(enclosing_.size())};
      return true;
    }
    return false;
  }

  void set_travel_depths() {
    for (std::size_t n = 0; n < flow_.nodes.size(); ++n) {
      FlowNode& node = flow_.nodes[n];
      for (std::size_t o = 0; o < node.outputs.size(); ++o) {
        int depth = static_cast<int>(node.loops.size());
        while (depth > 0 && exported(node.loops[static_cast<std::size_t>(depth - 1)], n, o)) --depth;
        if (depth > 0 && lists(node.loops[static_cast<std::size_t>(depth - 1)], node.outputs[o].port)) depth = -1;
        node.outputs[o].travel_depth = depth;
      }
    }
  }
  bool exported(int loop_index, std::size_t node, std::size_t output) const {
    const auto& exports = flow_.loops[static_cast<std::size_t>(loop_index)].exports;
    return std::any_of(exports.begin(), exports.end(), [&](const FlowExport& e) {
      return e.node == static_cast<int>(node) && e.output == static_cast<int>(output);
    });
  }
  bool lists(int loop_index, PortRef port) const {
    const Loop& spec = *flow_.loops[static_cast<std::size_t>(loop_index)].spec;
    return std::count(spec.outputs.begin(), spec.outputs.end(), port) > 0 ||
           std::count(spec.accumulated.begin(), spec.accumulated.end(), port) > 0;
  }

  // The node, or the loop that stands for it, among the parts of the loop at `depth`. Loops follow the nodes in
  // numbering.
  std::size_t part_at(int node, int depth) const {
    const auto& loops = flow_.nodes[static_cast<std::size_t>(node)].loops;
    if (static_cast<int>(loops.size()) == depth) return static_cast<std::size_t>(node);
    return flow_.nodes.size() + static_cast<std::size_t>(loops[static_cast<std::size_t>(depth)]);
  }

  void find_cycles() {
    const std::size_t size = flow_.nodes.size() + flow_.loops.size();
    std::vector<std::vector<std::size_t>> after(size);
    std::vector<int> waits(size, 0);
    for (std::size_t n = 0; n < flow_.nodes.size(); ++n)
      for (const FlowInput& in : flow_.nodes[n].inputs) {
        if (in.first.node < 0) continue;
        const std::size_t to = part_at(static_cast<int>(n), in.first.depth);
        after[part_at(in.first.node, in.first.depth)].push_back(to);
        ++waits[to];
      }
    std::vector<std::size_t> free;
    for (std::size_t i = 0; i < size; ++i)
      if (!waits[i]) free.push_back(i);
    std::size_t done = 0;
    while (!free.empty()) {
      const std::size_t i = free.back();
      free.pop_back();
      ++done;
      for (const std::size_t next : after[i])
        if (--waits[next] == 0) free.push_back(next);
    }
    if (done == size) return;
    std::string parts;
    for (std::size_t n = 0; n < flow_.nodes.size(); ++n)
      if (waits[n]) parts += (parts.empty() ? "" : ", ") + at(static_cast<int>(n));
    for (std::size_t l = 0; l < flow_.loops.size(); ++l)
      if (waits[flow_.nodes.size() + l])
        parts += (parts.empty() ? "loop '" : ", loop '") + flow_.loops[l].spec->name + "'";
    fault("parts wait for each other: " + parts);
  }

  static void add_new(const std::vector<Visible>& from, std::vector<Visible>& list) {
    for (const Visible& v : from)
      if (!find(list, v.port)) list.push_back(v);
  }
  static Visible* find(std::vector<Visible>& list, PortRef port) {
    for (Visible& v : list)
      if (v.port == port) return &v;
    return nullptr;
  }
  static const Visible* find(const std::vector<Visible>& list, PortRef port) {
    return find(const_cast<std::vector<Visible>&>(list), port);
  }
  static bool first_use(const std::vector<PortRef>& ports, std::size_t i) {
    return std::find(ports.begin(), ports.end(), ports[i]) - ports.begin() == static_cast<std::ptrdiff_t>(i);
  }
  PortRef port_of(const Open& open) const {
    return flow_.nodes[static_cast<std::size_t>(open.node)].inputs[static_cast<std::size_t>(open.input)].port;
  }
  const std::string& name(PortRef port) const { return model_.at(port).name; }
  std::string at(int node) const {
    return "'" + model_.at(flow_.nodes[static_cast<std::size_t>(node)].run->component).name() + "'";
  }
  void two_writers(const Visible& a, const Visible& b) {
    fault("port '" + name(a.port) + "' has two writers, " + at(a.node) + " and " + at(b.node));
  }
  void fault(std::string what) { flow_.faults.push_back("walk '" + walk_.name + "': " + std::move(what)); }

  const Decl& model_;
  const Walk& walk_;
  WalkFlow flow_;
  std::vector<int> enclosing_;
};

}  // namespace

WalkFlow trace_flow(const Decl& model, const Walk& walk) { return Tracer(model, walk).trace(); }

}  // namespace mstar::decl
