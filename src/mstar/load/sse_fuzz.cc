// The first byte says in pieces of how many bytes the rest arrives; whatever it is, the events are those of one piece.
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "mstar/load/completion_event.h"
#include "mstar/load/sse_parser.h"

namespace {

using Events = std::vector<std::pair<std::string, std::string>>;

bool parse(std::string_view body, std::size_t piece_bytes, Events& events) {
  mstar::load::SseParser parser(4096);
  const auto keep = [&](std::string_view name, std::string_view data) { events.emplace_back(name, data); };
  for (std::size_t at = 0; at < body.size(); at += piece_bytes)
    if (!parser.push(body.substr(at, piece_bytes), keep)) return false;
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  Events whole, pieces;
  const bool fits = parse(body, body.size() + 1, whole);
  if (parse(body, std::size_t{1} + bytes[0], pieces) != fits) std::abort();
  if (fits && whole != pieces) std::abort();
  mstar::load::CompletionEventReader reader;
  for (const auto& [name, data] : whole) {
    if (data.find('\r') != data.npos) std::abort();  // a CR always ends its line
    (void)reader.read(data);
  }
  return 0;
}
