// The head of one HTTP request, free of the library that parsed it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mstar::server {

struct RequestHead {
  std::string method;  // "GET"; HEAD is answered as GET without the body
  std::string path;    // percent-decoded, begins with '/' (or is "*")
  std::string query;   // as sent
  int version = 11;    // 10 or 11
  bool keep_alive = true;
  bool chunked = false;
  bool expect_continue = false;
  std::optional<std::uint64_t> content_length;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string request_id;                                    // the client's X-Request-Id if sane, else a fresh one

  // The first header of that (lower case) name; empty if there is none.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (key == name) return value;
    return {};
  }
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

}  // namespace mstar::server
