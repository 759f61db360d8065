#include "mstar/server/workers_api.h"

#include <charconv>
#include <optional>

#include "mstar/server/api_error.h"
#include "mstar/server/json_text.h"

namespace mstar::server {
namespace {

void append_worker(std::string& out, const WorkerInfo& worker) {
  out += "{\"rank\":" + std::to_string(worker.rank) + ",\"state\":";
  append_json_string(out, worker_state_name(worker.state));
  out += ",\"live_requests\":" + std::to_string(worker.num_requests) + ",\"models\":[";
  for (std::size_t i = 0; i < worker.parts.size(); ++i) {
    const WorkerInfo::Part& part = worker.parts[i];
    out += i ? ",{\"model\":" : "{\"model\":";
    append_json_string(out, part.model);
    out += ",\"components\":[";
    for (std::size_t c = 0; c < part.components.size(); ++c) {
      if (c) out += ',';
      append_json_string(out, part.components[c]);
    }
    out += "]}";
  }
  out += ']';
  if (!worker.reason.empty()) {
    out += ",\"reason\":";
    append_json_string(out, worker.reason);
  }
  out += '}';
}

Reply refusal(const HttpError& error) {
  return {.status = error.status, .body = error_body(error), .retry_after_s = error.retry_after_s};
}

std::optional<WorkerOrder> order_of(std::string_view name) {
  if (name == "drain") return WorkerOrder::drain;
  if (name == "remove") return WorkerOrder::remove;
  if (name == "resume") return WorkerOrder::resume;
  return std::nullopt;
}

}  // namespace

Reply list_workers(const Frontend& frontend) {
  Reply out;
  out.body = "{\"workers\":[";
  bool first = true;
  for (const WorkerInfo& worker : frontend.workers()) {
    if (!first) out.body += ',';
    first = false;
    append_worker(out.body, worker);
  }
  out.body += "]}";
  return out;
}

Reply order_worker(std::string_view rest, Frontend& frontend) {
  const std::size_t slash = rest.find('/');
  const std::string_view number = rest.substr(0, slash);
  const auto order = order_of(slash == rest.npos ? std::string_view() : rest.substr(slash + 1));
  if (!order)
    return refusal(
        http_error(404, "no such order; there is POST /debug/workers/RANK/drain, /remove and /resume", "not_found"));
  int rank = 0;
  const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), rank);
  if (fault != std::errc() || end != number.data() + number.size()) {
    HttpError error =
        http_error(400, "'" + std::string(number) + "' is no rank; ranks are whole numbers from 0", "bad_rank");
    error.param = "rank";
    return refusal(error);
  }
  const auto worker = frontend.order_worker(rank, *order);
  if (!worker) {
    HttpError error = to_http(worker.error(), Stage::submit);
    if (worker.error().field == "rank") {
      error.status = 404;
      error.code = "rank_not_found";
    }
    return refusal(error);
  }
  Reply out;
  append_worker(out.body, *worker);
  return out;
}

}  // namespace mstar::server
