#include "mstar/load/http_url.h"

#include <charconv>

namespace mstar::load {
namespace {

Error wrong(std::string_view text, const std::string& why) {
  return invalid_request("'" + std::string(text) + "' is no address of a server: " + why +
                         " (it looks like http://127.0.0.1:8000)");
}

bool is_plain(std::string_view text) {
  for (const char c : text)
    if (c <= ' ' || c >= 0x7F || c == '@' || c == '?' || c == '#') return false;
  return true;
}

// "host", "host:port", "[::1]:port"
Status read_authority(std::string_view text, std::string_view whole, HttpUrl& out) {
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == text.npos) return wrong(whole, "its ']' is missing");
    out.host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && port.front() != ':') return wrong(whole, "after ']' comes ':' and the port");
  } else {
    const std::size_t colon = text.find(':');
    out.host = text.substr(0, colon);
    if (colon != text.npos) port = text.substr(colon);
  }
  if (out.host.empty()) return wrong(whole, "it names no host");
  if (port.empty()) return ok_status();
  port.remove_prefix(1);
  unsigned value = 0;
  const auto [end, fault] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (fault != std::errc() || end != port.data() + port.size() || value < 1 || value > 65535)
    return wrong(whole, "its port is not a number from 1 to 65535");
  out.port = static_cast<std::uint16_t>(value);
  return ok_status();
}

}  // namespace

std::string HttpUrl::authority() const {
  const std::string name = host.find(':') == host.npos ? host : "[" + host + "]";
  return port == 80 ? name : name + ":" + std::to_string(port);
}

std::string HttpUrl::text() const { return "http://" + authority() + base_path; }

Result<HttpUrl> parse_http_url(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("https://")) return wrong(text, "https is not spoken here, only http");
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.find("://") != rest.npos) return wrong(text, "only http is spoken here");
  if (!is_plain(rest)) return wrong(text, "it has characters that do not belong there");
  HttpUrl out;
  const std::size_t slash = rest.find('/');
  MSTAR_TRY(read_authority(rest.substr(0, slash), text, out));
  std::string_view path = slash == rest.npos ? std::string_view() : rest.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  while (path.ends_with('/')) path.remove_suffix(1);
  out.base_path = path;
  return out;
}

}  // namespace mstar::load
