// The messages of OpenAI's realtime transcription sessions. Pure: JSON in, typed values out, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/base/result.h"
#include "mstar/media/speech_segments.h"

namespace mstar::server {

enum class SoundCoding : std::uint8_t { pcm16, ulaw, alaw };
struct SoundFormat {
  SoundCoding coding = SoundCoding::pcm16;
  std::uint32_t rate_hz = 24000;
};

struct RealtimeSettings {
  SoundFormat format;
  std::string model, language, prompt;
  std::optional<TurnOptions> turns = TurnOptions{};
};

// What a client asks for.
struct UpdateSession {
  RealtimeSettings settings;  // what there was, changed
  bool is_beta = false;       // in the shape of transcription_session.update
};
struct AppendSound {
  std::string bytes;  // decoded
};
struct CommitSound {};
struct ClearSound {};
using ClientAction = std::variant<UpdateSession, AppendSound, CommitSound, ClearSound>;
struct ClientEvent {
  std::string event_id;  // the client's, for errors
  ClientAction action;
};
// invalid_request with the field ("session.audio.input.format", ...) and, for JSON that can be read, `event_id` filled.
Result<ClientEvent> read_client_event(std::string_view json, const RealtimeSettings& now, std::string& event_id);

// The session's object, in the general or in the beta's shape.
std::string session_json(const std::string& id, const RealtimeSettings& settings, bool is_beta);

// Samples of a sound's bytes; an odd last byte of pcm16 is left out. From -1 to 1.
std::vector<float> samples_of(std::string_view bytes, SoundCoding coding);

}  // namespace mstar::server
