// The id that a request keeps in its answer's X-Request-Id and in the logs.
#pragma once

#include <string>
#include <string_view>

namespace mstar::server {

// 1 to 128 of letters, digits and "-_.:".
bool is_sane_request_id(std::string_view id);
// "req-" and 16 hexadecimal digits; distinct within a process. Thread: any.
std::string fresh_request_id();

}  // namespace mstar::server
