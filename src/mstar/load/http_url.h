// Where a server is: "http://host:port", with or without a path.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mstar/base/result.h"

namespace mstar::load {

struct HttpUrl {
  std::string host;  // a name or an address; an IPv6 address without its brackets
  std::uint16_t port = 80;
  std::string base_path;  // before "/v1/..."; empty, or begins with '/' and ends without one

  std::string authority() const;  // as the header Host has it
  std::string text() const;
};

// The scheme may be left out. A path that ends in "/v1" is taken without it, as clients of OpenAI's are configured with
// it. invalid_request says what is wrong; https is not spoken.
Result<HttpUrl> parse_http_url(std::string_view text);

}  // namespace mstar::load
