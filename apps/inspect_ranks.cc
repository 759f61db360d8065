// A deployment's placement as a drawing.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>
#include <set>

#include "inspect_text.h"
#include "placement_check.h"

namespace mstar::apps {
namespace {

struct Box {
  std::string title;
  std::vector<std::string> lines;
};

std::string ranks_text(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) out += (i ? ", " : "") + std::to_string(ranks[i]);
  return out;
}

std::string where_text(const NodeGroup& group) { return group.on_host() ? "host" : ranks_text(group.ranks()); }

std::string group_text(const OpenedModel& model, const NodeGroup& group) {
  std::string out = model.config.name + ": ";
  for (std::size_t i = 0; i < group.components.size(); ++i)
    out += (i ? ", " : "") + model.decl->at(group.components[i]).name();
  for (std::size_t w = 0; w < group.walks.size(); ++w)
    out += (w ? ", " : " in walk ") + model.decl->at(group.walks[w]).name;
  return out;
}

Box rank_box(const std::vector<OpenedModel>& models, const RuntimeConfig& config, Backend backend,
             const MemoryPlan& plan, int rank) {
  Box out{.title = "rank " + std::to_string(rank) + " on " +
                   (backend == Backend::cuda ? "cuda:" + std::to_string(cuda_index(config, rank)) : "cpu"),
          .lines = {}};
  for (const OpenedModel& model : models)
    for (const NodeGroup& group : model.groups)
      for (std::size_t i = 0; i < group.num_replicas(); ++i) {
        const std::vector<int>& ranks = group.replica_ranks[i];
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        std::string line = group_text(model, group);
        if (group.num_replicas() > 1) line += fmt::format(", replica {} of {}", i + 1, group.num_replicas());
        if (ranks.size() > 1)
          line += rank == ranks.front() ? ", leads " + ranks_text({ranks.begin() + 1, ranks.end()})
                                        : ", follows " + ranks_text({ranks.front()});
        out.lines.push_back(std::move(line));
      }
  if (out.lines.empty()) out.lines.push_back("runs nothing");
  std::map<std::string, std::size_t> kinds;
  for (const MemoryLine& each : plan.lines)
    if (each.rank == rank) kinds[each.kind] += each.bytes;
  std::string memory;
  for (const auto& [kind, bytes] : kinds) memory += (memory.empty() ? "" : " + ") + kind + " " + format_bytes(bytes);
  if (!memory.empty()) out.lines.push_back(memory + " = " + format_bytes(plan.rank_bytes(rank)));
  return out;
}

std::string draw(const std::vector<Box>& boxes) {
  std::size_t width = 0;
  for (const Box& box : boxes) {
    width = std::max(width, box.title.size() + 3);
    for (const std::string& line : box.lines) width = std::max(width, line.size());
  }
  std::string out;
  for (const Box& box : boxes) {
    out += "  +- " + box.title + " " + std::string(width - box.title.size() - 1, '-') + "+\n";
    for (const std::string& line : box.lines) out += fmt::format("  | {:<{}} |\n", line, width);
  }
  return out + "  +" + std::string(width + 2, '-') + "+\n";
}

// Ports that one group writes and another reads, in one walk or kept for a later one.
std::string links(const OpenedModel& model) {
  const decl::Decl& decl = *model.decl;
  std::map<decl::PortRef, std::set<std::size_t>> writers, readers;
  const auto group_of = [&](decl::ComponentRef component, decl::WalkRef walk) {
    const auto found = std::find_if(model.groups.begin(), model.groups.end(),
                                    [&](const NodeGroup& each) { return each.runs(component, walk); });
    return static_cast<std::size_t>(found - model.groups.begin());
  };
  for (std::uint16_t w = 0; w < decl.walks().size(); ++w)
    decl::for_each_run(decl.walks()[w].root, [&](const decl::Run& run) {
      const std::size_t group = group_of(run.component, decl::WalkRef(w));
      for (const decl::PortRef each : run.inputs) readers[each].insert(group);
      for (const decl::PortRef each : run.outputs) writers[each].insert(group);
    });
  std::map<std::pair<std::size_t, std::size_t>, std::string> ports;
  for (const auto& [port, from] : writers)
    for (const std::size_t a : from)
      for (const std::size_t b : readers[port])
        if (a != b) ports[{a, b}] += (ports[{a, b}].empty() ? "" : ", ") + decl.at(port).name;
  std::string out;
  for (const auto& [ends, names] : ports)
    out += fmt::format("  {}: {} -> {}: {}\n", model.config.name, where_text(model.groups[ends.first]),
                       where_text(model.groups[ends.second]), names);
  return out;
}

}  // namespace

std::string draw_ranks(const std::vector<OpenedModel>& models, const RuntimeConfig& config, Backend backend,
                       const MemoryPlan& plan) {
  std::vector<Box> boxes = {{.title = "host", .lines = {}}};
  for (const OpenedModel& model : models)
    for (const NodeGroup& group : model.groups)
      if (group.on_host()) boxes.front().lines.push_back(group_text(model, group));
  if (boxes.front().lines.empty()) boxes.clear();
  for (int rank = 0; rank < num_ranks(models); ++rank) boxes.push_back(rank_box(models, config, backend, plan, rank));
  std::string out = "ranks\n" + draw(boxes), between;
  for (const OpenedModel& model : models) between += links(model);
  return between.empty() ? out : out + "between them\n" + between;
}

}  // namespace mstar::apps
