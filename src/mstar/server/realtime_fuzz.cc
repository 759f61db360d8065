// libFuzzer: any bytes as a realtime client's message: an event or an error; a session's object of what it asks for
// must be read again as the same.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "mstar/base/check.h"
#include "mstar/server/realtime_events.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mstar::server;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string event_id;
  const auto event = read_client_event(text, {}, event_id);
  if (!event) {
    MSTAR_CHECK(!event.error().message.empty(), "an error without words");
    return 0;
  }
  if (const auto* const sound = std::get_if<AppendSound>(&event->action))
    for (const SoundCoding coding : {SoundCoding::pcm16, SoundCoding::ulaw, SoundCoding::alaw})
      for (const float x : samples_of(sound->bytes, coding)) MSTAR_CHECK(x >= -1 && x <= 1, "a sample out of range");
  if (const auto* const update = std::get_if<UpdateSession>(&event->action))
    for (const bool is_beta : {false, true})
      MSTAR_CHECK(!nlohmann::json::parse(session_json("s", update->settings, is_beta), nullptr, false).is_discarded(),
                  "a session that is no JSON");
  return 0;
}
