// Faults of a declaration as a whole, its ports and its partitions; validate_walks.cc and validate_parts.cc hold the
// rest.
#include <set>
#include <string>

#include "mstar/decl/decl.h"
#include "mstar/decl/faults.h"

namespace mstar::decl {
namespace {

constexpr std::size_t kMaxAxes = 5;  // a tensor of a step has one more, for its rows

void check_chunks(const ChunkPolicy& policy, const std::string& port, Faults& faults) {
  const std::string who = "port '" + port + "': ";
  if (const auto* fixed = std::get_if<FixedChunks>(&policy)) {
    if (fixed->items < 1) faults.add(who + "a fixed chunk needs at least 1 item");
  } else if (const auto* window = std::get_if<SlidingWindow>(&policy)) {
    if (window->window < 1 || window->stride < 1) faults.add(who + "window and stride must be at least 1");
    if (window->stride > window->window) faults.add(who + "a stride past the window would skip items");
  } else if (const auto* context = std::get_if<LeftContext>(&policy)) {
    if (context->items < 1) faults.add(who + "a chunk needs at least 1 new item");
    if (context->context < 0) faults.add(who + "left context must not be negative");
    for (const int size : context->ramp)
      if (size < 1) {
        faults.add(who + "ramp sizes must be at least 1");
        break;
      }
  }
}

// Which walks read or write each port.
struct PortUse {
  std::set<WalkRef> readers;
  std::set<WalkRef> writers;
};

std::vector<PortUse> uses_of(const Decl& model) {
  std::vector<PortUse> uses(model.ports().size());
  for (std::size_t w = 0; w < model.walks().size(); ++w) {
    const WalkRef walk(static_cast<std::uint16_t>(w));
    for_each_run(model.walks()[w].root, [&](const Run& run) {
      for (const PortRef port : run.inputs) uses[port.value].readers.insert(walk);
      for (const PortRef port : run.outputs) uses[port.value].writers.insert(walk);
    });
  }
  return uses;
}

PartitionRef find_partition(const Decl& model, std::string_view name) {
  for (std::size_t i = 0; i < model.partitions().size(); ++i)
    if (model.partitions()[i].name == name) return PartitionRef(static_cast<std::uint16_t>(i));
  if (model.partitions().empty() && name == PartitionSpec{}.name) return PartitionRef(0);
  return {};
}

void check_stream(const Decl& model, const PortSpec& port, const Stream& stream, const PortUse& use, Faults& faults) {
  const std::string who = "port '" + port.name + "': ";
  check_chunks(stream.chunks, port.name, faults);
  const PartitionRef to = find_partition(model, stream.to);
  if (!to.valid()) return faults.add(who + "streams to an unknown partition '" + stream.to + "'");
  std::set<PartitionRef> from;
  for (const WalkRef walk : use.writers) from.insert(model.partition_of(walk));
  if (from.count(to)) faults.add(who + "streams to its own partition '" + stream.to + "'");
  if (from.size() > 1) faults.add(who + "is streamed by more than one partition");
  if (from.empty()) faults.add(who + "is streamed but no walk makes it");
  bool read = false;
  for (const WalkRef walk : use.readers) read = read || model.partition_of(walk) == to;
  if (!read) faults.add(who + "streams to partition '" + stream.to + "', which does not read it");
}

void check_port(const Decl& model, const PortSpec& port, const PortUse& use, Faults& faults) {
  const std::string who = "port '" + port.name + "': ";
  if (use.readers.empty() && use.writers.empty()) faults.add(who + "no run names it");
  if (use.readers.empty() && !use.writers.empty() && port.travel.empty())
    faults.add(who + "is made, but nobody reads it and it does not travel");
  std::set<std::string> seen;
  const auto once = [&](const std::string& kind) {
    if (!seen.insert(kind).second) faults.add(who + "says " + kind + " more than once");
  };
  const auto must_be = [&](const std::set<WalkRef>& walks, const std::string& kind, const char* verb) {
    once(kind);
    if (walks.empty()) faults.add(who + "says " + kind + ", but no walk " + verb + " it");
  };
  for (const Travel& travel : port.travel) {
    if (std::holds_alternative<Keep>(travel)) must_be(use.writers, "Keep", "makes");
    if (std::holds_alternative<ToClient>(travel)) must_be(use.writers, "ToClient", "makes");
    if (std::holds_alternative<FromRequest>(travel)) must_be(use.readers, "FromRequest", "reads");
    if (std::holds_alternative<FromPlan>(travel)) must_be(use.readers, "FromPlan", "reads");
    if (const auto* client = std::get_if<FromClient>(&travel)) {
      must_be(use.readers, "FromClient", "reads");
      check_chunks(client->chunks, port.name, faults);
    }
    if (const auto* stream = std::get_if<Stream>(&travel)) {
      once("Stream to '" + stream->to + "'");
      check_stream(model, port, *stream, use, faults);
    }
  }
  if (port.axes.size() > kMaxAxes) faults.add(who + "has more than " + std::to_string(kMaxAxes) + " axes");
  if (port.shard_axis && (*port.shard_axis < 0 || static_cast<std::size_t>(*port.shard_axis) >= port.axes.size()))
    faults.add(who + "shard_axis is not one of its axes");
  if (port.counts_token && use.writers.empty()) faults.add(who + "counts tokens, but no walk makes it");
}

void check_partitions(const Decl& model, Faults& faults) {
  faults.names("partition", model.partitions(), [](const PartitionSpec& p) -> const std::string& { return p.name; });
  std::vector<int> owners(model.walks().size(), model.partitions().empty() ? 1 : 0);
  for (const PartitionSpec& partition : model.partitions()) {
    const std::string who = "partition '" + partition.name + "': ";
    if (!partition.plan) faults.add(who + "has no plan");
    if (partition.walks.empty()) faults.add(who + "has no walk");
    for (const WalkRef walk : partition.walks) {
      if (walk.value < owners.size())
        ++owners[walk.value];
      else
        faults.add(who + "names a walk that is not of this model");
    }
  }
  for (std::size_t w = 0; w < owners.size(); ++w) {
    if (owners[w] == 0) faults.add("walk '" + model.walks()[w].name + "' is in no partition");
    if (owners[w] > 1) faults.add("walk '" + model.walks()[w].name + "' is in more than one partition");
  }
}

void check_surfaces(const Decl& model, Faults& faults) {
  std::set<Route> routes;
  for (const Surface& surface : model.surfaces()) {
    const std::string who = "surface '" + std::string(route_name(surface.route)) + "': ";
    if (!routes.insert(surface.route).second) faults.add(who + "is there twice");
    if (!surface.intake) faults.add(who + "has no intake");
  }
}

}  // namespace

std::vector<std::string> Decl::validate() const {
  Faults faults;
  if (name_.empty()) faults.add("the model has no name");
  if (walks_.empty()) faults.add("the model has no walk");
  faults.names("port", ports_, [](const PortSpec& p) -> const std::string& { return p.name; });
  faults.names("walk", walks_, [](const Walk& w) -> const std::string& { return w.name; });
  faults.names("alias", aliases_, [](const std::string& a) -> const std::string& { return a; });
  check_partitions(*this, faults);
  check_surfaces(*this, faults);
  check_resources(*this, faults);
  check_components(*this, faults);
  check_weights(*this, faults);
  // What follows looks references up: it needs them to be in range.
  if (check_references(*this, faults)) {
    const std::vector<PortUse> uses = uses_of(*this);
    for (std::size_t p = 0; p < ports_.size(); ++p) check_port(*this, ports_[p], uses[p], faults);
    check_walks(*this, faults);
  }
  return std::move(faults).list();
}

}  // namespace mstar::decl
