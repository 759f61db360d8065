#include "config_yaml.h"

#include <charconv>
#include <filesystem>
#include <optional>

#include "output_files.h"
#include "weight_cache.h"
#include "yaml_tree.h"

namespace mstar::apps {
namespace {

void read_node_group(const YamlNode& node, YamlFaults& faults, NodeGroupConfig& out) {
  YamlMap map(node, "node_groups", faults);
  // The reference's names of the two keys work too.
  const bool has_components = map.has("components"), has_node_names = map.has("node_names");
  map.texts("components", out.components);
  map.texts("node_names", out.components);
  if (has_components && has_node_names)
    faults.add(node, "'components' and 'node_names' are two names of one key; give one");
  if (!has_components && !has_node_names) faults.add(node, "a node group needs 'components'");
  map.texts("walks", out.walks);
  if (map.texts("graph_walks", out.walks) && map.has("walks"))
    faults.add(node, "'walks' and 'graph_walks' are two names of one key; give one");
  const bool has_ranks = map.has("ranks");
  if (map.integers("ranks", 0, kMaxRank, out.ranks) ? out.ranks.empty() : !has_ranks)
    faults.add(node, "a node group needs 'ranks', such as [0]");
  map.integer("tp_size", 1, 64, out.tp_size);
  map.integer("sp_size", 1, 64, out.sp_size);
  map.text("weights", out.weights);
  map.finish();
  if (!out.ranks.empty() && out.ranks.size() % static_cast<std::size_t>(out.tp_size * out.sp_size) != 0)
    faults.add(node, "the number of ranks, " + std::to_string(out.ranks.size()) +
                         ", must be a multiple of tp_size x sp_size = " + std::to_string(out.tp_size * out.sp_size));
}

// The keys of one model, at the top of the file or in an item of `models`.
void read_model(YamlMap& map, YamlFaults& faults, ModelConfig& out) {
  if (!map.has("model"))
    faults.add(map.node(), "a model needs 'model': a checkpoint directory, or the name of fetched weights");
  map.text("model", out.model);
  map.text("name", out.name);
  map.texts("aliases", out.aliases);
  map.params("options", out.options);
  const YamlNode* const groups = map.find("node_groups");
  if (!groups) return;
  if (groups->kind != YamlNode::Kind::list) return faults.add(*groups, "'node_groups' must be a list");
  for (const YamlNode& each : groups->items) read_node_group(each, faults, out.node_groups.emplace_back());
}

void read_models(YamlMap& top, YamlFaults& faults, std::vector<ModelConfig>& out) {
  const YamlNode* const models = top.find("models");
  if (!models) {
    read_model(top, faults, out.emplace_back());
    return;
  }
  for (const char* key : {"model", "name", "aliases", "options", "node_groups"})
    if (top.find(key)) faults.add(*models, "'models' and '" + std::string(key) + "' at the top exclude each other");
  if (models->kind != YamlNode::Kind::list || models->items.empty())
    return faults.add(*models, "'models' must be a list with at least one model");
  for (const YamlNode& each : models->items) {
    YamlMap map(each, "models", faults);
    read_model(map, faults, out.emplace_back());
    map.finish();
  }
}

void seconds(YamlMap& map, std::string_view key, std::chrono::milliseconds& out) {
  double value = 0;
  if (map.number(key, 0.001, 86400, value)) out = std::chrono::milliseconds(static_cast<std::int64_t>(value * 1000.0));
}

void read_server(const YamlNode& node, YamlFaults& faults, server::ServerConfig& out) {
  YamlMap map(node, "server", faults);
  int port = out.port, connections = static_cast<int>(out.max_connections),
      rate = static_cast<int>(out.min_bytes_per_s);
  map.text("host", out.host);
  map.integer("port", 0, 65535, port);
  map.size_bytes("header_limit", out.header_limit_bytes);
  map.size_bytes("body_limit", out.body_limit_bytes);
  map.size_bytes("json_limit", out.json_limit_bytes);
  map.size_bytes("max_buffered", out.max_buffered_bytes);
  map.size_bytes("max_pending_out", out.max_pending_out_bytes);
  map.integer("max_connections", 1, 1'000'000, connections);
  map.integer("io_threads", 1, 256, out.num_io_threads);
  map.boolean("keep_alive", out.keep_alive);
  map.boolean("io_uring", out.io_uring);
  std::string cors_origin;
  if (map.text("cors_origin", cors_origin)) {
    out.cors_origins.clear();
    if (!cors_origin.empty()) out.cors_origins.push_back(cors_origin);
  }
  if (map.texts("cors_origins", out.cors_origins) && map.has("cors_origin"))
    faults.add(node, "'cors_origin' and 'cors_origins' are two names of one key; give one");
  if (map.texts("api_keys", out.api_keys))
    for (const std::string& each : out.api_keys)
      if (each.empty()) faults.add(*map.find("api_keys"), "'server.api_keys' holds an empty key");
  seconds(map, "header_timeout_s", out.header_timeout);
  seconds(map, "body_timeout_s", out.body_timeout);
  seconds(map, "write_timeout_s", out.write_timeout);
  seconds(map, "transfer_timeout_s", out.transfer_timeout);
  seconds(map, "idle_timeout_s", out.idle_timeout);
  seconds(map, "request_timeout_s", out.request_timeout);
  seconds(map, "sse_keep_alive_s", out.sse_keep_alive);
  seconds(map, "linger_timeout_s", out.linger_timeout);
  map.integer("min_bytes_per_s", 1, 1'000'000'000, rate);
  map.finish();
  out.port = static_cast<std::uint16_t>(port);
  out.max_connections = static_cast<std::size_t>(connections);
  out.min_bytes_per_s = static_cast<std::size_t>(rate);
}

void read_warmup(const YamlNode& node, YamlFaults& faults, WarmupRequest& out) {
  YamlMap map(node, "warmup_requests", faults);
  std::vector<std::string> modalities;
  map.text("model", out.model);
  map.text("text", out.text);
  map.texts("files", out.files);
  if (map.texts("output_modalities", modalities)) {
    for (const std::string& each : modalities) {
      const auto modality = decl::modality_from_name(each);
      if (modality) out.output_modalities.push_back(*modality);
      if (!modality) faults.add(node, "'output_modalities' holds '" + each + "', which is none");
    }
  }
  map.params("model_kwargs", out.model_kwargs);
  map.integer("concurrency", 1, 1024, out.concurrency);
  map.finish();
}

// Of workers' processes.
void read_timeout(YamlMap& top, const char* key, YamlFaults& faults, std::chrono::milliseconds& out) {
  double seconds = std::chrono::duration<double>(out).count();
  if (!top.number(key, 0, 86400, seconds)) return;
  if (seconds > 0 && seconds < 1)
    faults.add(*top.find(key), "'" + std::string(key) + "' must be 0 (never) or at least 1");
  out = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

void read_limits(const YamlNode& node, YamlFaults& faults, RuntimeConfig& out) {
  YamlMap map(node, "limits", faults);
  map.integer("step_rows", 1, 4096, out.max_step_rows);
  map.integer("step_tokens", 1, 1 << 20, out.max_step_tokens);
  map.finish();
}

// "cpu", "cuda:1".
std::optional<RankDevice> rank_device(const std::string& text) {
  if (text == "cpu") return RankDevice{};
  constexpr std::string_view kCuda = "cuda:";
  if (!text.starts_with(kCuda)) return std::nullopt;
  RankDevice out{.backend = Backend::cuda};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + kCuda.size(), end, out.index);
  if (read.ec != std::errc() || read.ptr != end || out.index < 0 || out.index > kMaxRank) return std::nullopt;
  return out;
}

void read_rank_devices(const YamlNode& node, YamlFaults& faults, std::map<int, RankDevice>& out) {
  if (node.kind != YamlNode::Kind::map)
    return faults.add(node,
                      "'rank_devices' must be a map of ranks and devices, such as {0: \"cuda:0\", 1: \"cuda:0\"}");
  for (const YamlMember& each : node.members) {
    int rank = -1;
    const char* const end = each.key.data() + each.key.size();
    const auto read = std::from_chars(each.key.data(), end, rank);
    if (read.ec != std::errc() || read.ptr != end || rank < 0 || rank > kMaxRank)
      faults.add(each.line, each.column,
                 "'rank_devices' has '" + each.key + "' as a rank; ranks are whole numbers from 0 to " +
                     std::to_string(kMaxRank));
    const auto device = rank_device(each.value.text);
    if (each.value.kind != YamlNode::Kind::scalar || !device)
      faults.add(each.value, "the device of rank " + each.key + " must be cpu or cuda:N, such as cuda:0, not '" +
                                 each.value.text + "'");
    else
      out[rank] = *device;
  }
}

void read_top(YamlMap& top, YamlFaults& faults, Settings& out) {
  RuntimeConfig& runtime = out.runtime;
  read_models(top, faults, runtime.models);
  runtime.max_requests_given = top.integer("max_concurrent_requests", 1, 4096, runtime.max_concurrent_requests);
  top.integer("max_queued_requests", 0, 1'000'000, runtime.max_queued_requests);
  std::size_t routing = 0, isolation = 0, device = 0;
  if (top.choice("device", {"auto", "cpu", "cuda"}, device)) runtime.device = static_cast<DeviceChoice>(device);
  if (const YamlNode* node = top.find("rank_devices")) read_rank_devices(*node, faults, runtime.rank_devices);
  if (top.choice("routing", {"least_loaded", "random", "prefix"}, routing))
    runtime.routing = static_cast<conductor::Routing>(routing);
  top.integer("prefix_excess", 0, 4096, runtime.prefix_excess);
  top.integer("threads", 0, 1024, runtime.num_threads);
  int stay_awake_us = 0;
  if (top.integer("stay_awake_us", 0, 1'000'000, stay_awake_us)) runtime.stay_awake_us = stay_awake_us;
  top.size_bytes("memory", runtime.memory_bytes);
  if (top.choice("isolation", {"thread", "process"}, isolation)) runtime.isolation = static_cast<Isolation>(isolation);
  // Idle workers turn every 0.2 s, and are looked at four times.
  read_timeout(top, "hang_timeout_s", faults, runtime.hang_timeout);
  read_timeout(top, "load_timeout_s", faults, runtime.load_timeout);
  if (const YamlNode* node = top.find("limits")) read_limits(*node, faults, runtime);
  if (const YamlNode* node = top.find("server")) read_server(*node, faults, out.server);
  const YamlNode* const warmup = top.find("warmup_requests");
  if (!warmup) return;
  if (warmup->kind != YamlNode::Kind::list) return faults.add(*warmup, "'warmup_requests' must be a list");
  for (const YamlNode& each : warmup->items) read_warmup(each, faults, out.warmup.emplace_back());
}

std::string beside(const std::filesystem::path& directory, const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path joined = directory / path;
  return !path.empty() && std::filesystem::exists(joined, ignored) ? joined.string() : path;
}

}  // namespace

Result<Settings> parse_config(std::string_view text, const std::string& file) {
  MSTAR_TRY_ASSIGN(const YamlNode root, parse_yaml(text, file));
  Settings out;
  YamlFaults faults(file);
  YamlMap top(root, "", faults);
  if (root.kind == YamlNode::Kind::map || root.kind == YamlNode::Kind::null) {
    read_top(top, faults, out);
    top.finish();
  }
  MSTAR_TRY(faults.status());
  return out;
}

Result<Settings> read_config(const std::string& path) {
  auto text = read_whole(path);
  if (!text) return std::move(text.error()).in(path);
  MSTAR_TRY_ASSIGN(Settings out, parse_config(*text, path));
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  for (ModelConfig& each : out.runtime.models) each.model = find_model(beside(directory, each.model));
  for (WarmupRequest& each : out.warmup)
    for (std::string& file : each.files) file = beside(directory, file);
  return out;
}

}  // namespace mstar::apps
