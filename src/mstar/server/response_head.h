// The head of an HTTP answer as bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/server/request_head.h"

namespace mstar::server {

struct ResponseHead {
  int status = 200;
  std::string_view content_type;
  std::optional<std::size_t> content_length;  // none: chunked for HTTP/1.1, until close for HTTP/1.0
  bool keep_alive = true;
  int retry_after_s = 0;
  std::string_view allow;
  bool preflight = false;  // answers a CORS preflight
};

// Status line and headers, with the blank line. The answer's version is HTTP/1.1 for every request.
std::string response_head(const ResponseHead& response, const RequestHead& request,
                          const std::vector<std::string>& cors_origins);

// One chunk of a chunked body; `last` adds the end. Empty bytes make no chunk.
void append_http_chunk(std::string& out, std::string_view bytes, bool last);

}  // namespace mstar::server
