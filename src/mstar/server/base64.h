// Base64 of RFC 4648 with padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mstar::server {

void append_base64(std::string& out, std::string_view bytes);
// Accepts padded and unpadded text, no blanks; none when it is malformed.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace mstar::server
