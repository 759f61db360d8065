#include "mstar/server/access.h"

#include <algorithm>

#include "mstar/server/ascii.h"

namespace mstar::server {
namespace {

// Reads all of `given`, whatever of it differs.
bool same_secret(std::string_view given, std::string_view key) {
  volatile unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = key.empty() ? '\0' : key[i % key.size()];
    difference = static_cast<unsigned char>(difference | static_cast<unsigned char>(given[i] ^ other));
  }
  return difference == 0;
}

}  // namespace

bool has_known_key(std::string_view authorization, const std::vector<std::string>& keys) {
  constexpr std::string_view kScheme = "bearer ";
  if (lower(authorization.substr(0, kScheme.size())) != kScheme) return false;
  const std::string_view given = trim(authorization.substr(kScheme.size()));
  bool known = false;
  for (const std::string& key : keys) known = same_secret(given, key) || known;
  return known && !given.empty();
}

std::string_view allowed_origin(std::string_view origin, const std::vector<std::string>& origins) {
  if (std::find(origins.begin(), origins.end(), "*") != origins.end()) return "*";
  if (origin.empty() || std::find(origins.begin(), origins.end(), origin) == origins.end()) return {};
  return origin;
}

}  // namespace mstar::server
