// The table of HTTP routes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mstar/server/form.h"

namespace mstar::server {

enum class Endpoint : std::uint8_t {
  health,
  ready,
  metrics,
  profile,
  workers,
  worker_order,
  models,
  model,
  transcriptions,
  translations,
  chat_completions,
  completions,
  tokenize,
  detokenize,
  generate,
  input,
  realtime
};

struct ApiRoute {
  Endpoint endpoint;
  std::string_view path;
  bool is_prefix;           // matches `path` followed by at least one character
  std::string_view method;  // "GET" also answers HEAD
  unsigned bodies;          // BodyKind bits that it accepts
};
std::span<const ApiRoute> route_table();

struct RouteMatch {
  const ApiRoute* route = nullptr;  // null: no such path
  bool method_matches = false;
  std::string allow;  // the methods of that path
  std::string rest;   // of the path after a prefix
};
// `path` is percent-decoded. OPTIONS matches every path of the table.
RouteMatch find_route(std::string_view method, std::string_view path);

}  // namespace mstar::server
