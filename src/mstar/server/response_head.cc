#include "mstar/server/response_head.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>

#include "mstar/server/access.h"
#include "mstar/server/api_error.h"

namespace mstar::server {
namespace {

void append_date(std::string& out) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  char text[96];
  std::snprintf(text, sizeof text, "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n", kDays[parts.tm_wday], parts.tm_mday,
                kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
  out += text;
}

bool is_header_list(std::string_view names) {
  return !names.empty() && names.size() <= 1024 && std::all_of(names.begin(), names.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-_, ").find(c) != std::string_view::npos;
  });
}

}  // namespace

std::string response_head(const ResponseHead& response, const RequestHead& request,
                          const std::vector<std::string>& cors_origins) {
  std::string out = "HTTP/1.1 " + std::to_string(response.status) + " ";
  const auto line = [&out](std::string_view name, std::string_view value) {
    out.append(name).append(": ").append(value).append("\r\n");
  };
  out.append(status_text(response.status)).append("\r\n");
  line("Server", "mstar");
  append_date(out);
  line("X-Request-Id", request.request_id);
  if (!response.content_type.empty()) line("Content-Type", response.content_type);
  if (response.content_length) {
    if (response.status != 204) line("Content-Length", std::to_string(*response.content_length));
  } else {
    if (request.version >= 11) line("Transfer-Encoding", "chunked");
    line("Cache-Control", "no-cache");
    line("X-Accel-Buffering", "no");
  }
  if (response.retry_after_s > 0) line("Retry-After", std::to_string(response.retry_after_s));
  if (!response.allow.empty()) line("Allow", response.allow);
  if (response.status == 401) line("WWW-Authenticate", "Bearer");
  const std::string_view cors_origin = allowed_origin(request.header("origin"), cors_origins);
  if (!cors_origins.empty() && cors_origin != "*") line("Vary", "Origin");
  if (!cors_origin.empty()) {
    line("Access-Control-Allow-Origin", cors_origin);
    line("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (response.preflight) {
      line("Access-Control-Allow-Methods", response.allow.empty() ? "GET, HEAD, POST, OPTIONS" : response.allow);
      const std::string_view wanted = request.header("access-control-request-headers");
      line("Access-Control-Allow-Headers", is_header_list(wanted) ? wanted : "*");
      line("Access-Control-Max-Age", "86400");
    }
  }
  if (!response.keep_alive) {
    line("Connection", "close");
  } else if (request.version < 11) {
    line("Connection", "keep-alive");
  }
  out += "\r\n";
  return out;
}

void append_http_chunk(std::string& out, std::string_view bytes, bool last) {
  if (!bytes.empty()) {
    char size[2 * sizeof(std::size_t)];
    const char* const end = std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr;
    out.append(std::string_view(size, static_cast<std::size_t>(end - size)))
        .append("\r\n")
        .append(bytes)
        .append("\r\n");
  }
  if (last) out += "0\r\n\r\n";
}

}  // namespace mstar::server
