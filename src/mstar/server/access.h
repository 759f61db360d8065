// Who may ask: API keys, and the web pages of other origins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mstar::server {

// Whether an Authorization header's value is "Bearer KEY" with one of the keys. Takes as long for a wrong key as for a
// right one of its length.
bool has_known_key(std::string_view authorization, const std::vector<std::string>& keys);

// Access-Control-Allow-Origin for a page of `origin`: "*" when the list has it, the origin itself when that is in the
// list, else empty.
std::string_view allowed_origin(std::string_view origin, const std::vector<std::string>& origins);

}  // namespace mstar::server
