#include "mstar/graph/sim/random_model.h"

#include <algorithm>
#include <random>
#include <set>

#include "mstar/decl/walk_flow.h"
#include "mstar/graph/fixtures/fixtures.h"

namespace mstar::graph::sim {
namespace {

using namespace mstar::decl;

class Generator {
 public:
  Generator(std::uint64_t seed, const MakeComponent& make) : rng_(seed), make_component_(make) {}

  Decl make() {
    std::vector<Section> roots;
    const std::size_t num_walks = 1 + pick(3);
    for (std::size_t w = 0; w < num_walks; ++w) {
      Ports seen = kept_;
      for (std::size_t i = 0; i <= pick(3); ++i) seen.push_back(add_port({FromPlan{}}));
      budget_ = 9;
      roots.push_back(Sequential{sections(seen, 0)});
      written_.clear();
    }
    return assemble(std::move(roots));
  }

 private:
  using Ports = std::vector<PortRef>;

  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng_); }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(rng_) < p; }

  PortRef add_port(std::vector<Travel> travel) {
    ports_.push_back({.name = "p" + std::to_string(ports_.size()), .travel = std::move(travel)});
    return PortRef(static_cast<std::uint16_t>(ports_.size() - 1));
  }

  Ports some(const Ports& from, std::size_t most) {
    Ports ports = from;
    std::shuffle(ports.begin(), ports.end(), rng_);
    ports.resize(std::min(ports.size(), pick(most + 1)));
    return ports;
  }

  // `seen`: ports that a reader here may name; grows by what the sections make.
  std::vector<Section> sections(Ports& seen, int depth) {
    std::vector<Section> list;
    const std::size_t count = 1 + pick(3);
    for (std::size_t i = 0; i < count && budget_ > 0; ++i) list.push_back(section(seen, depth));
    if (list.empty()) list.push_back(run(seen));
    return list;
  }

  Section section(Ports& seen, int depth) {
    const std::size_t kind = pick(10);
    if (kind < 5 || budget_ < 2) return run(seen);
    if (kind < 7) return parallel(seen, depth);
    if (kind == 7) return Sequential{sections(seen, depth)};
    return loop(seen, depth);
  }

  Section run(Ports& seen) {
    --budget_;
    Run run{ComponentRef(static_cast<std::uint16_t>(num_components_++)), some(seen, 3), {}};
    for (std::size_t i = 0; i <= pick(2); ++i) {
      std::vector<Travel> travel;
      if (chance(0.3)) travel.push_back(ToClient{});
      if (chance(0.2)) travel.push_back(Keep{});
      run.outputs.push_back(add_port(std::move(travel)));
      seen.push_back(run.outputs.back());
    }
    // Inside of loops, ports of outside may be written anew: they are looped back.
    if (!carried_.empty() && chance(0.7)) {
      Ports carried;
      for (const PortRef port : carried_.back())
        if (!written_.count(port)) carried.push_back(port);
      for (const PortRef port : some(carried, 2)) {
        run.outputs.push_back(port);
        written_.insert(port);
        if (std::find(seen.begin(), seen.end(), port) == seen.end()) seen.push_back(port);
      }
    }
    return run;
  }

  static bool has(const Ports& ports, PortRef port) {
    return std::find(ports.begin(), ports.end(), port) != ports.end();
  }

  // What sections that began with `seen` made, and lost to loops that don't export it.
  static Ports added(const Ports& seen, const Ports& after) {
    Ports ports;
    for (const PortRef port : after)
      if (!has(seen, port)) ports.push_back(port);
    return ports;
  }

  Section parallel(Ports& seen, int depth) {
    Parallel parallel;
    const Ports start = seen;
    for (std::size_t i = 0; i < 2 + pick(2); ++i) {
      Ports mine = start;
      parallel.sections.push_back(section(mine, depth));
      for (const PortRef port : added(start, mine)) seen.push_back(port);
      for (const PortRef port : added(mine, start)) seen.erase(std::remove(seen.begin(), seen.end(), port), seen.end());
    }
    return parallel;
  }

  Section loop(Ports& seen, int depth) {
    if (depth >= 3) return run(seen);
    Loop loop;
    loop.name = "loop" + std::to_string(num_loops_++);
    loop.at_most = 1 + static_cast<int>(pick(4));
    if (chance(0.4)) loop.stop = ComponentSignal{};
    const std::set<PortRef> written_outside = written_;
    carried_.push_back(some(seen, 3));
    Ports inside = seen;
    loop.body = sections(inside, depth + 1);
    Ports made = added(seen, inside);
    for (const PortRef port : added(inside, seen)) seen.erase(std::remove(seen.begin(), seen.end(), port), seen.end());
    for (const PortRef port : carried_.back())
      if (written_.count(port) && !written_outside.count(port)) made.push_back(port);
    carried_.pop_back();
    for (const PortRef port : made) {
      const auto at = std::find(seen.begin(), seen.end(), port);
      const std::size_t kind = pick(4);
      if (kind == 0) loop.accumulated.push_back(port);
      if (kind == 1 || kind == 2) loop.outputs.push_back(port);
      const bool exported = kind < 3;
      if (exported && at == seen.end()) seen.push_back(port);
      if (!exported && at != seen.end()) seen.erase(at);
    }
    return loop;
  }

  Decl assemble(std::vector<Section> roots) {
    Decl d("random");
    std::set<PortRef> read;
    std::set<PortRef> made;
    for (const Section& root : roots)
      for_each_run(root, [&](const Run& run) {
        read.insert(run.inputs.begin(), run.inputs.end());
        made.insert(run.outputs.begin(), run.outputs.end());
      });
    const bool stream = chance(0.6) && !made.empty();
    PortRef streamed;
    if (stream) {
      auto at = made.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(pick(made.size())));
      streamed = *at;
      const auto size = [&](std::size_t n) { return static_cast<int>(1 + pick(n)); };
      const int window = size(5);
      const ChunkPolicy policies[] = {
          FixedChunks{size(4)}, SlidingWindow{window, static_cast<int>(1 + pick(static_cast<std::size_t>(window)))},
          LeftContext{size(4), static_cast<int>(pick(4)), {1, 2}}};
      ports_[streamed.value].travel.push_back(Stream{"sink", policies[pick(3)]});
    }
    for (std::size_t p = 0; p < ports_.size(); ++p) {
      const PortRef port(static_cast<std::uint16_t>(p));
      auto& travel = ports_[p].travel;
      if (!read.count(port) && made.count(port) && travel.empty()) travel.push_back(ToClient{});
      if (!read.count(port) && !made.count(port)) continue;  // dropped below
    }
    // Ports that nobody named would be faults: name them in one more run.
    Run rest{ComponentRef(static_cast<std::uint16_t>(num_components_++)), {}, {}};
    for (std::size_t p = 0; p < ports_.size(); ++p) {
      const PortRef port(static_cast<std::uint16_t>(p));
      const bool from_plan = std::any_of(ports_[p].travel.begin(), ports_[p].travel.end(),
                                         [](const Travel& t) { return std::holds_alternative<FromPlan>(t); });
      if (from_plan && !read.count(port) && rest.inputs.size() < 60) rest.inputs.push_back(port);
    }
    for (const PortSpec& port : ports_) d.port(port);
    const PortRef end = d.port({.name = "end", .travel = {ToClient{}}});
    rest.outputs.push_back(end);
    roots.push_back(rest);
    for (int c = 0; c < num_components_; ++c) component(d, "c" + std::to_string(c));
    std::vector<NextWalk> walks;
    std::vector<WalkRef> refs;
    for (std::size_t w = 0; w < roots.size(); ++w) {
      refs.push_back(d.walk("w" + std::to_string(w), roots[w]));
      NextWalk next{.walk = refs.back()};
      const WalkFlow flow = trace_flow(d, d.at(refs.back()));
      std::set<PortRef> given;
      for (const FlowNode& node : flow.nodes)
        for (const FlowInput& in : node.inputs)
          if (in.first.node < 0 && given.insert(in.port).second)
            for (const Travel& t : d.at(in.port).travel)
              if (std::holds_alternative<FromPlan>(t)) next.inputs.push_back(fixtures::give(in.port));
      for (const FlowLoop& each : flow.loops)
        if (chance(0.5)) next.caps[each.spec->name] = static_cast<int>(1 + pick(5));
      walks.push_back(next);
    }
    d.partition({.name = "default", .walks = refs, .plan = fixtures::schedule([walks](const RequestParams&) {
                                                     return walks;
                                                   })});
    if (stream) {
      const ComponentRef sink = component(d, "sink");
      const PortRef heard = d.port({.name = "heard", .travel = {ToClient{}}});
      Section body = Run{sink, {streamed}, {heard}};
      if (chance(0.4)) body = Loop{.name = "sink_loop", .body = {body}, .at_most = 1000};
      const WalkRef walk = d.walk("sink_walk", body);
      d.partition({.name = "sink", .walks = {walk}, .plan = each_chunk(walk)});
    }
    return d;
  }

  ComponentRef component(Decl& d, std::string name) const {
    const ComponentRef ref(static_cast<std::uint16_t>(d.components().size()));
    return d.component(make_component_ ? make_component_(std::move(name), ref) : DeviceComponent{.name = name});
  }

  std::mt19937_64 rng_;
  const MakeComponent& make_component_;
  std::vector<PortSpec> ports_;
  Ports kept_;
  std::vector<Ports> carried_;
  std::set<PortRef> written_;  // carried ports that have their writer
  int num_components_ = 0;
  int num_loops_ = 0;
  int budget_ = 0;
};

}  // namespace

Decl random_model(std::uint64_t seed, const MakeComponent& make) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    Decl model = Generator(seed * 1000 + attempt, make).make();
    if (model.validate().empty()) return model;
  }
}

}  // namespace mstar::graph::sim
