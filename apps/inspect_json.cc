#include <nlohmann/json.hpp>

#include "inspect_parts.h"
#include "inspect_text.h"
#include "mstar/engine/sequence_rules.h"
#include "mstar/weights/weight_map.h"

namespace mstar::apps {
namespace {

using Json = nlohmann::ordered_json;

Json names(const decl::Decl& decl, const std::vector<decl::PortRef>& ports) {
  Json out = Json::array();
  for (const decl::PortRef each : ports) out.push_back(decl.at(each).name);
  return out;
}

Json section_json(const decl::Decl& decl, const decl::Section& section);

Json list_json(const decl::Decl& decl, const std::vector<decl::Section>& sections) {
  Json out = Json::array();
  for (const decl::Section& each : sections) out.push_back(section_json(decl, each));
  return out;
}

Json section_json(const decl::Decl& decl, const decl::Section& section) {
  if (const auto* sequence = std::get_if<decl::Sequential>(&section))
    return {{"sequential", list_json(decl, sequence->sections)}};
  if (const auto* parallel = std::get_if<decl::Parallel>(&section))
    return {{"parallel", list_json(decl, parallel->sections)}};
  if (const auto* loop = std::get_if<decl::Loop>(&section))
    return {{"loop", loop->name},
            {"at_most", loop->at_most},
            {"stop", stop_text(decl, loop->stop)},
            {"outputs", names(decl, loop->outputs)},
            {"accumulated", names(decl, loop->accumulated)},
            {"body", list_json(decl, loop->body)}};
  const auto& run = std::get<decl::Run>(section);
  Json out = {{"run", decl.at(run.component).name()},
              {"inputs", names(decl, run.inputs)},
              {"outputs", names(decl, run.outputs)},
              {"labels", run.labels}};
  return out;
}

Json components_json(const decl::Decl& decl) {
  Json out = Json::array();
  for (const decl::Component& each : decl.components()) {
    Json one = {{"name", each.name()}, {"on", each.on_host() ? "host" : "device"}};
    if (!each.on_host()) {
      const decl::DeviceComponent& spec = each.device();
      one["compute"] = dtype_name(spec.compute);
      one["max_batch_rows"] = spec.max_batch_rows;
      one["max_batch_tokens"] = spec.max_batch_tokens;
      one["uses"] = Json::array();
      for (const decl::ResourceRef ref : spec.uses) one["uses"].push_back(decl::resource_name(decl.at(ref)));
      one["homes"] = spec.homes;
    }
    out.push_back(std::move(one));
  }
  return out;
}

Json ports_json(const decl::Decl& decl) {
  Json out = Json::array();
  for (const decl::PortSpec& each : decl.ports()) {
    Json axes = Json::array();
    for (const decl::Axis& axis : each.axes) axes.push_back({{"name", axis.name}, {"size", axis.size}});
    out.push_back({{"name", each.name},
                   {"dtype", dtype_name(each.dtype)},
                   {"axes", std::move(axes)},
                   {"travel", travel_texts(each)},
                   {"counts_token", each.counts_token}});
  }
  return out;
}

Json resources_json(const decl::Decl& decl, const resource::PoolLimits& limits) {
  Json out = Json::array();
  for (std::uint16_t r = 0; r < decl.resources().size(); ++r) {
    const decl::ResourceSpec& each = decl.resources()[r];
    Json& added = out.emplace_back(Json{{"name", decl::resource_name(each)},
                                        {"kind", resource_kind(each)},
                                        {"page_bytes", bytes_per_page(each)},
                                        {"request_bytes", bytes_per_request(each, limits)},
                                        {"total_bytes", resource::planned_bytes(each, limits)}});
    if (const auto* const state = std::get_if<decl::RecurrentState>(&each))
      added.update({{"snapshots", state->snapshots},
                    {"snapshot_tokens", state->snapshot_tokens},
                    {"snapshot_bytes", bytes_per_snapshot(each, limits)}});
    if (resource_kind(each) != "paged_kv") continue;
    const auto rules = engine::sequence_rules(decl, decl::ResourceRef(r));
    added["prefix_cache"] = rules.prefix_cache;
    if (!rules.prefix_cache) added["why_no_prefix_cache"] = rules.why_not;
  }
  return out;
}

Result<Json> weights_json(const OpenedModel& model) {
  if (!model.checkpoint) return Json(nullptr);
  MSTAR_TRY_ASSIGN(const auto map, weights::WeightMap::create(model.checkpoint, model.decl->weight_rules()));
  Json homes = Json::array();
  for (const weights::WeightMapping& home : map.mappings()) {
    Json sources = Json::array();
    for (const auto& source : home.sources)
      sources.push_back({{"name", source.name}, {"dtype", source.type.name()}, {"shape", to_string(source.shape)}});
    homes.push_back({{"home", home.home}, {"from", std::move(sources)}});
  }
  return Json{{"path", model.checkpoint->path().string()},
              {"format", model.checkpoint->format_name()},
              {"bytes", model.checkpoint->total_bytes()},
              {"homes", std::move(homes)},
              {"dropped", map.dropped()}};
}

}  // namespace

Result<std::string> inspect_json(const OpenedModel& model, const resource::PoolLimits& limits, const MemoryPlan& plan) {
  const decl::Decl& decl = *model.decl;
  Json out = {{"name", model.config.name},       {"family", model.family->name},
              {"aliases", model.config.aliases}, {"routes", Json::array()},
              {"defaults", Json::object()},      {"components", components_json(decl)},
              {"ports", ports_json(decl)},       {"resources", resources_json(decl, limits)}};
  for (const std::string& each : decl.aliases()) out["aliases"].push_back(each);
  for (const decl::Surface& each : decl.surfaces()) {
    out["routes"].push_back(decl::route_name(each.route));
    for (const auto& [name, value] : each.defaults.values())
      std::visit([&, field = name](const auto& v) { out["defaults"][field] = v; }, value);
  }
  out["walks"] = Json::array();
  for (const decl::Walk& each : decl.walks())
    out["walks"].push_back({{"name", each.name}, {"root", section_json(decl, each.root)}});
  out["partitions"] = Json::array();
  for (const decl::PartitionSpec& each : decl.partitions()) {
    Json walks = Json::array();
    for (const decl::WalkRef walk : each.walks) walks.push_back(decl.at(walk).name);
    out["partitions"].push_back({{"name", each.name}, {"walks", std::move(walks)}});
  }
  out["placement"] = Json::array();
  for (const NodeGroup& group : model.groups) {
    Json components = Json::array();
    for (const decl::ComponentRef each : group.components) components.push_back(decl.at(each).name());
    Json walks = Json::array();
    for (const decl::WalkRef each : group.walks) walks.push_back(decl.at(each).name);
    out["placement"].push_back({{"components", std::move(components)},
                                {"walks", std::move(walks)},
                                {"host", group.on_host()},
                                {"ranks", group.ranks()},
                                {"tp_size", group.mesh.tensor},
                                {"sp_size", group.mesh.sequence},
                                {"replica_ranks", group.replica_ranks}});
  }
  out["memory"] = Json::array();
  for (const MemoryLine& each : plan.lines)
    if (each.model == model.config.name)
      out["memory"].push_back({{"rank", each.rank}, {"part", each.part}, {"kind", each.kind}, {"bytes", each.bytes}});
  MSTAR_TRY_ASSIGN(out["weights"], weights_json(model));
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mstar::apps
