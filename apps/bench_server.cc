#include "bench_server.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

namespace mstar::apps {
namespace {

// A number of its own, so that no request of the run finds the probe's prompt in a cache.
constexpr std::uint64_t kProbeIndex = 1ull << 62;

std::vector<std::string> model_names(const std::string& body) {
  std::vector<std::string> out;
  const nlohmann::json parsed = nlohmann::json::parse(body, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("data") || !parsed["data"].is_array()) return out;
  for (const auto& each : parsed["data"])
    if (each.is_object() && each.contains("id") && each["id"].is_string()) out.push_back(each["id"].get<std::string>());
  return out;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& each : names) out += (out.empty() ? "" : ", ") + each;
  return out;
}

Error key_refused(const std::string& api_key, int status) {
  const std::string code = " (" + std::to_string(status) + ")";
  return invalid_request(api_key.empty()
                             ? "the server wants an API key" + code + ": give it with --api-key or OPENAI_API_KEY"
                             : "the server refuses this API key" + code);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

Result<BenchServer> look_at_server(const load::HttpUrl& url, const std::string& api_key, const std::string& wanted) {
  auto answer = load::http_get(url, "/v1/models", api_key);
  if (!answer && answer.error().code == Code::unavailable)
    return unavailable(answer.error().message +
                       ". Start a server first (mstar serve MODEL), or name another one with --url");
  if (!answer) return std::move(answer.error());
  if (answer->status == 401 || answer->status == 403) return key_refused(api_key, answer->status);
  BenchServer out{.software = answer->server, .models = {}, .model = wanted};
  if (answer->status == 200) out.models = model_names(answer->body);
  if (!wanted.empty()) return out;
  if (out.models.empty())
    return invalid_request("the server does not say which models it has (" + url.base_path + "/v1/models answers " +
                           std::to_string(answer->status) + "): correct --url, or name the model");
  if (out.models.size() > 1)
    return invalid_request("the server has more than one model: name one of " + joined(out.models));
  out.model = out.models.front();
  return out;
}

Status probe_server(const load::LoadConfig& config, const BenchServer& server) {
  load::LoadConfig probe = config;
  probe.mode = load::LoadMode::closed;
  probe.num_requests = probe.concurrency = probe.num_threads = 1;
  probe.first_index = kProbeIndex;
  probe.workload.output_tokens = {1, 1};
  MSTAR_TRY_ASSIGN(const auto run, load::LoadRun::make(probe));
  const auto records = run->run();
  if (records.empty() || records.front().failure.empty() || records.front().failure == "empty") return ok_status();
  const load::RequestRecord& record = records.front();
  if (record.failure == "http 401" || record.failure == "http 403")
    return key_refused(config.api_key, record.failure == "http 401" ? 401 : 403);
  std::string text = "the server does not answer a first request as it should: " + record.failure;
  if (!record.message.empty()) text += ": " + record.message;
  if (record.failure == "http 404" && !server.models.empty()) text += " (it lists: " + joined(server.models) + ")";
  return unavailable(std::move(text));
}

std::int64_t cpu_ticks(const std::string& stat) {
  const std::size_t name_end = stat.rfind(')');  // a name may hold anything
  if (name_end == stat.npos) return -1;
  std::istringstream rest(stat.substr(name_end + 1));
  std::string skipped;
  std::int64_t user = -1, system = -1;
  for (int i = 3; i < 14; ++i) rest >> skipped;
  rest >> user >> system;
  return rest && user >= 0 && system >= 0 ? user + system : -1;
}

Result<std::int64_t> cpu_time_us(int pid) {
  const std::string path = "/proc/" + std::to_string(pid);
  const std::int64_t ticks = cpu_ticks(read_file(path + "/stat"));
  if (ticks < 0) return invalid_request("there is no process " + std::to_string(pid));
  std::int64_t out = ticks * 1'000'000 / ::sysconf(_SC_CLK_TCK);
  std::istringstream children(read_file(path + "/task/" + std::to_string(pid) + "/children"));
  for (int child; children >> child;)
    if (const auto more = cpu_time_us(child)) out += *more;
  return out;
}

}  // namespace mstar::apps
