#include "mstar/server/routes.h"

namespace mstar::server {
namespace {

constexpr ApiRoute kRoutes[] = {
    {Endpoint::health, "/health", false, "GET", kNoBody},
    {Endpoint::ready, "/ready", false, "GET", kNoBody},
    {Endpoint::metrics, "/metrics", false, "GET", kNoBody},
    {Endpoint::profile, "/debug/profile", false, "GET", kNoBody},
    {Endpoint::workers, "/debug/workers", false, "GET", kNoBody},
    {Endpoint::worker_order, "/debug/workers/", true, "POST", kNoBody},
    {Endpoint::models, "/v1/models", false, "GET", kNoBody},
    {Endpoint::model, "/v1/models/", true, "GET", kNoBody},
    {Endpoint::transcriptions, "/v1/audio/transcriptions", false, "POST", kMultipart},
    {Endpoint::translations, "/v1/audio/translations", false, "POST", kMultipart},
    {Endpoint::chat_completions, "/v1/chat/completions", false, "POST", kJsonText},
    {Endpoint::completions, "/v1/completions", false, "POST", kJsonText},
    {Endpoint::tokenize, "/tokenize", false, "POST", kJsonText},
    {Endpoint::detokenize, "/detokenize", false, "POST", kJsonText},
    {Endpoint::generate, "/generate", false, "POST", kMultipart | kUrlencoded | kJson},
    {Endpoint::realtime, "/v1/realtime", false, "GET", kNoBody},
    {Endpoint::input, "/generate/", true, "POST", kRaw},
};

bool path_matches(const ApiRoute& route, std::string_view path) {
  if (route.is_prefix) return path.size() > route.path.size() && path.starts_with(route.path);
  return path == route.path;
}

}  // namespace

std::span<const ApiRoute> route_table() { return kRoutes; }

RouteMatch find_route(std::string_view method, std::string_view path) {
  RouteMatch out;
  for (const ApiRoute& route : kRoutes) {
    if (!path_matches(route, path)) continue;
    if (!out.allow.empty()) out.allow += ", ";
    out.allow += route.method == "GET" ? std::string_view("GET, HEAD") : route.method;
    const bool matches = method == route.method || (method == "HEAD" && route.method == "GET") || method == "OPTIONS";
    if (out.route == nullptr || (matches && !out.method_matches)) out.route = &route;
    out.method_matches = out.method_matches || matches;
    if (route.is_prefix) out.rest = path.substr(route.path.size());
  }
  if (out.route) out.allow += ", OPTIONS";
  return out;
}

}  // namespace mstar::server
