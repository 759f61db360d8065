#include "inspect_text.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "inspect_parts.h"
#include "mstar/engine/sequence_rules.h"
#include "mstar/weights/weight_map.h"

namespace mstar::apps {
namespace {

std::size_t widest(const std::vector<std::string>& texts) {
  std::size_t out = 0;
  for (const std::string& each : texts) out = std::max(out, each.size());
  return out;
}

void add_components(const decl::Decl& decl, std::string& out) {
  out += "\ncomponents\n";
  std::vector<std::string> names;
  for (const decl::Component& each : decl.components()) names.push_back(each.name());
  const std::size_t width = widest(names);
  for (const decl::Component& each : decl.components()) {
    out += fmt::format("  {:<{}}  ", each.name(), width);
    if (each.on_host()) {
      out += "host\n";
      continue;
    }
    const decl::DeviceComponent& spec = each.device();
    out += fmt::format("device, {}, at most {} rows", dtype_name(spec.compute), spec.max_batch_rows);
    if (spec.max_batch_tokens > 0) out += fmt::format(" and {} tokens", spec.max_batch_tokens);
    for (std::size_t i = 0; i < spec.uses.size(); ++i)
      out += (i ? ", " : "; uses ") + decl::resource_name(decl.at(spec.uses[i]));
    for (std::size_t i = 0; i < spec.homes.size(); ++i) out += (i ? ", " : "; weights ") + spec.homes[i] + "*";
    out += "\n";
  }
}

void add_ports(const decl::Decl& decl, std::string& out) {
  out += "\nports\n";
  std::vector<std::string> names, types;
  for (const decl::PortSpec& each : decl.ports()) {
    names.push_back(each.name);
    types.push_back(type_text(each));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string line = fmt::format("  {:<{}}  {:<{}}", names[i], widest(names), types[i], widest(types));
    const std::vector<std::string> travels = travel_texts(decl.ports()[i]);
    for (std::size_t t = 0; t < travels.size(); ++t) line += (t ? "; " : "  ") + travels[t];
    if (decl.ports()[i].counts_token) line += travels.empty() ? "  counts as a token" : "; counts as a token";
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
}

void add_resources(const decl::Decl& decl, const resource::PoolLimits& limits, std::string& out) {
  if (decl.resources().empty()) return;
  out += fmt::format("\nresources, for {} requests at once\n", limits.max_requests);
  std::vector<std::string> names;
  for (const decl::ResourceSpec& each : decl.resources()) names.push_back(decl::resource_name(each));
  for (std::uint16_t r = 0; r < decl.resources().size(); ++r) {
    const decl::ResourceRef ref(r);
    const decl::ResourceSpec& each = decl.at(ref);
    out += fmt::format("  {:<{}}  {}", decl::resource_name(each), widest(names), resource_kind(each));
    if (const auto* kv = std::get_if<decl::PagedKv>(&each)) {
      out += fmt::format(", {} a page of {} tokens, at most {} tokens a request", format_bytes(bytes_per_page(each)),
                         kv->page_tokens, kv->max_tokens_per_request);
      const auto rules = engine::sequence_rules(decl, ref);
      out += rules.prefix_cache ? ", prefix cache" : ", no prefix cache (" + rules.why_not + ")";
      if (kv->pool_tokens > 0)
        out +=
            fmt::format(", {} tokens in all: {}", kv->pool_tokens, format_bytes(resource::planned_bytes(each, limits)));
    }
    if (const std::size_t bytes = bytes_per_request(each, limits))
      out += fmt::format(", {} a request, {} in all", format_bytes(bytes),
                         format_bytes(resource::planned_bytes(each, limits)));
    if (const auto* const state = std::get_if<decl::RecurrentState>(&each); state && state->snapshots > 0)
      out += fmt::format(", of which {} snapshots every {} tokens: {}", state->snapshots, state->snapshot_tokens,
                         format_bytes(bytes_per_snapshot(each, limits) * static_cast<std::size_t>(state->snapshots)));
    out += "\n";
  }
}

// A walk as a tree; a sequence at the top stands without a line of its own.
class WalkTree {
 public:
  WalkTree(const decl::Decl& decl, std::string& out) : decl_(decl), out_(out) {}

  void walk(const decl::Section& root) {
    if (const auto* sequence = std::get_if<decl::Sequential>(&root)) return list(sequence->sections, "  ");
    section(root, "  ", true);
  }

 private:
  void list(const std::vector<decl::Section>& sections, const std::string& indent) {
    for (std::size_t i = 0; i < sections.size(); ++i) section(sections[i], indent, i + 1 == sections.size());
  }

  void section(const decl::Section& each, const std::string& indent, bool is_last) {
    out_ += indent + (is_last ? "`- " : "|- ");
    const std::string inner = indent + (is_last ? "   " : "|  ");
    if (const auto* run = std::get_if<decl::Run>(&each)) {
      out_ += decl_.at(run->component).name() + ": " + port_names(decl_, run->inputs) + " -> " +
              port_names(decl_, run->outputs) + labels_of(*run) + "\n";
    } else if (const auto* sequence = std::get_if<decl::Sequential>(&each)) {
      out_ += "in sequence\n";
      list(sequence->sections, inner);
    } else if (const auto* parallel = std::get_if<decl::Parallel>(&each)) {
      out_ += "in parallel\n";
      list(parallel->sections, inner);
    } else if (const auto* loop = std::get_if<decl::Loop>(&each)) {
      out_ += fmt::format("loop {}, at most {} times, {}", loop->name, loop->at_most, stop_text(decl_, loop->stop));
      if (!loop->outputs.empty()) out_ += "; the last " + port_names(decl_, loop->outputs) + " leaves";
      if (!loop->accumulated.empty()) out_ += "; every " + port_names(decl_, loop->accumulated) + " leaves";
      out_ += "\n";
      list(loop->body, inner);
    }
  }

  static std::string labels_of(const decl::Run& run) {
    if (run.labels == std::vector<std::string>{"main"} && run.forks_before.empty() && run.forks_after.empty())
      return "";
    std::string out = "  [";
    for (std::size_t i = 0; i < run.labels.size(); ++i) out += (i ? ", " : "") + run.labels[i];
    for (const decl::Fork& each : run.forks_before) out += "; before: " + each.from + " to " + each.to;
    for (const decl::Fork& each : run.forks_after) out += "; after: " + each.from + " to " + each.to;
    return out + "]";
  }

  const decl::Decl& decl_;
  std::string& out_;
};

void add_walks(const decl::Decl& decl, std::string& out) {
  const auto add = [&](const std::string& partition, const std::vector<decl::WalkRef>& walks) {
    out += "\npartition " + partition + "\n";
    for (const decl::WalkRef each : walks) {
      out += "  walk " + decl.at(each).name + "\n";
      std::string tree;
      WalkTree(decl, tree).walk(decl.at(each).root);
      for (std::size_t at = 0; at < tree.size();) {
        const std::size_t end = tree.find('\n', at);
        out += "  " + tree.substr(at, end - at + 1);
        at = end + 1;
      }
    }
  };
  for (const decl::PartitionSpec& each : decl.partitions()) add(each.name, each.walks);
  if (!decl.partitions().empty()) return;
  std::vector<decl::WalkRef> all;
  for (std::uint16_t w = 0; w < decl.walks().size(); ++w) all.emplace_back(w);
  add("default", all);
}

void add_placement(const OpenedModel& model, std::string& out) {
  out += "\nplacement\n";
  for (const NodeGroup& group : model.groups) {
    const std::vector<int> ranks = group.ranks();
    std::string where = group.on_host() ? "host" : ranks.size() == 1 ? "rank" : "ranks";
    for (std::size_t i = 0; i < ranks.size(); ++i) where += (i ? ", " : " ") + std::to_string(ranks[i]);
    out += "  " + where + ": ";
    for (std::size_t i = 0; i < group.components.size(); ++i)
      out += (i ? ", " : "") + model.decl->at(group.components[i]).name();
    for (std::size_t w = 0; w < group.walks.size(); ++w)
      out += (w ? ", " : " in walk ") + model.decl->at(group.walks[w]).name;
    out += group.num_replicas() > 1 ? fmt::format("  ({} replicas)\n", group.num_replicas()) : "\n";
  }
}

Status add_weights(const OpenedModel& model, std::string& out) {
  if (!model.checkpoint) return ok_status();
  MSTAR_TRY_ASSIGN(const auto map, weights::WeightMap::create(model.checkpoint, model.decl->weight_rules()));
  out += fmt::format("\nweights: {}, {}, {}\n", model.checkpoint->path().string(), model.checkpoint->format_name(),
                     format_bytes(model.checkpoint->total_bytes()));
  const std::string lines = map.describe();
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    out += "  " + lines.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return ok_status();
}

void add_defaults(const decl::Decl& decl, std::string& out) {
  std::string all;  // they are the same on all routes
  for (const decl::Surface& each : decl.surfaces()) {
    const std::string list = defaults_text(each);
    if (list.empty() || list == all) continue;
    out += "where a request does not say: " + list + "\n";
    all = list;
  }
}

}  // namespace

Result<std::string> inspect_text(const OpenedModel& model, const resource::PoolLimits& limits) {
  const decl::Decl& decl = *model.decl;
  std::string out =
      fmt::format("model {}\nfamily {}: {}\n", model.config.name, model.family->name, model.family->summary);
  std::string names;
  for (const std::string& each : model.config.aliases) names += (names.empty() ? "" : ", ") + each;
  for (const std::string& each : decl.aliases()) names += (names.empty() ? "" : ", ") + each;
  if (!names.empty()) out += "also served as " + names + "\n";
  out += "serves";
  for (const decl::Surface& each : decl.surfaces()) out += " " + std::string(decl::route_name(each.route));
  out += "\n";
  add_defaults(decl, out);
  add_components(decl, out);
  add_ports(decl, out);
  add_resources(decl, limits, out);
  add_walks(decl, out);
  add_placement(model, out);
  MSTAR_TRY(add_weights(model, out));
  return out;
}

}  // namespace mstar::apps
