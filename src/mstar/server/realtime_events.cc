#include "mstar/server/realtime_events.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "mstar/server/base64.h"
#include "mstar/server/json_text.h"

namespace mstar::server {
namespace {

using nlohmann::json;

constexpr std::size_t kMostText = 4096;  // bytes of a prompt or a name

Error bad(const std::string& field, const std::string& message) {
  return invalid_request("'" + field + "' " + message).with_field(field);
}

const json* member(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

Status read_text(const json& object, const char* name, const std::string& field, std::string& out) {
  const json* const value = member(object, name);
  if (!value) return ok_status();
  if (value->is_null()) {
    out.clear();
    return ok_status();
  }
  if (!value->is_string() || value->get_ref<const std::string&>().size() > kMostText)
    return bad(field + name, "must be a string of at most " + std::to_string(kMostText) + " bytes");
  out = value->get<std::string>();
  return ok_status();
}

Status read_number(const json& object, const char* name, const std::string& field, double least, double most,
                   double& out) {
  const json* const value = member(object, name);
  if (!value || value->is_null()) return ok_status();
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    char text[80];
    std::snprintf(text, sizeof text, "must be a number from %g to %g", least, most);
    return bad(field + name, text);
  }
  out = value->get<double>();
  return ok_status();
}

Status read_turns(const json& given, const std::string& field, std::optional<TurnOptions>& out) {
  if (given.is_null()) {
    out.reset();
    return ok_status();
  }
  if (!given.is_object()) return bad(field, "must be an object, or null for turns that the client ends");
  const json* const type = member(given, "type");
  if (type && *type != "server_vad") return bad(field + ".type", "must be server_vad; others are not supported");
  TurnOptions turns = out.value_or(TurnOptions());
  MSTAR_TRY(read_number(given, "threshold", field + ".", 0.01, 0.99, turns.threshold));
  MSTAR_TRY(read_number(given, "prefix_padding_ms", field + ".", 0, 2000, turns.prefix_padding_ms));
  MSTAR_TRY(read_number(given, "silence_duration_ms", field + ".", 50, 10000, turns.silence_duration_ms));
  out = turns;
  return ok_status();
}

Status read_transcription(const json& given, const std::string& field, RealtimeSettings& out) {
  if (given.is_null()) return ok_status();
  if (!given.is_object()) return bad(field, "must be an object");
  MSTAR_TRY(read_text(given, "model", field + ".", out.model));
  MSTAR_TRY(read_text(given, "language", field + ".", out.language));
  return read_text(given, "prompt", field + ".", out.prompt);
}

// {"type":"audio/pcm","rate":24000}
Status read_format(const json& given, const std::string& field, SoundFormat& out) {
  const json* const type = given.is_object() ? member(given, "type") : nullptr;
  if (!type || !type->is_string()) return bad(field, "must be an object with a type");
  if (*type == "audio/pcmu") {
    out = {SoundCoding::ulaw, 8000};
  } else if (*type == "audio/pcma") {
    out = {SoundCoding::alaw, 8000};
  } else if (*type == "audio/pcm") {
    double rate = 24000;
    MSTAR_TRY(read_number(given, "rate", field + ".", 8000, 48000, rate));
    if (rate != std::floor(rate)) return bad(field + ".rate", "must be a whole number");
    out = {SoundCoding::pcm16, static_cast<std::uint32_t>(rate)};
  } else {
    return bad(field + ".type", "must be audio/pcm, audio/pcmu or audio/pcma");
  }
  return ok_status();
}

// session.audio.input of session.update.
Status read_general(const json& session, RealtimeSettings& out) {
  const json* const type = member(session, "type");
  if (type && *type != "transcription") return bad("session.type", "must be transcription; this server does not speak");
  const json* const audio = member(session, "audio");
  if (!audio) return ok_status();
  const json* const input = audio->is_object() ? member(*audio, "input") : nullptr;
  if (!input || !input->is_object()) return bad("session.audio.input", "must be an object");
  const std::string field = "session.audio.input.";
  if (const json* const given = member(*input, "format")) MSTAR_TRY(read_format(*given, field + "format", out.format));
  if (const json* const given = member(*input, "transcription"))
    MSTAR_TRY(read_transcription(*given, field + "transcription", out));
  if (const json* const given = member(*input, "turn_detection"))
    MSTAR_TRY(read_turns(*given, field + "turn_detection", out.turns));
  return ok_status();
}

// The flat session of transcription_session.update.
Status read_beta(const json& session, RealtimeSettings& out) {
  if (const json* const given = member(session, "input_audio_format")) {
    if (*given == "pcm16") {
      out.format = {};
    } else if (*given == "g711_ulaw") {
      out.format = {SoundCoding::ulaw, 8000};
    } else if (*given == "g711_alaw") {
      out.format = {SoundCoding::alaw, 8000};
    } else {
      return bad("session.input_audio_format", "must be pcm16, g711_ulaw or g711_alaw");
    }
  }
  if (const json* const given = member(session, "input_audio_transcription"))
    MSTAR_TRY(read_transcription(*given, "session.input_audio_transcription", out));
  if (const json* const given = member(session, "turn_detection"))
    MSTAR_TRY(read_turns(*given, "session.turn_detection", out.turns));
  return ok_status();
}

Result<ClientAction> read_action(const json& event, const RealtimeSettings& now) {
  const json* const type = member(event, "type");
  if (!type || !type->is_string()) return bad("type", "is missing");
  if (*type == "input_audio_buffer.append") {
    const json* const audio = member(event, "audio");
    if (!audio || !audio->is_string()) return bad("audio", "must be a string of base64");
    auto bytes = base64_decode(audio->get_ref<const std::string&>());
    if (!bytes) return bad("audio", "is malformed base64");
    return ClientAction(AppendSound{std::move(*bytes)});
  }
  if (*type == "input_audio_buffer.commit") return ClientAction(CommitSound{});
  if (*type == "input_audio_buffer.clear") return ClientAction(ClearSound{});
  const bool is_beta = *type == "transcription_session.update";
  if (is_beta || *type == "session.update") {
    const json* const session = member(event, "session");
    if (!session || !session->is_object()) return bad("session", "must be an object");
    UpdateSession out{.settings = now, .is_beta = is_beta};
    MSTAR_TRY(is_beta ? read_beta(*session, out.settings) : read_general(*session, out.settings));
    return ClientAction(std::move(out));
  }
  return bad("type",
             "'" + type->get<std::string>().substr(0, 60) +
                 "' is not known here; transcription sessions have session.update, transcription_session.update and "
                 "input_audio_buffer.append, .commit and .clear");
}

const char* format_name(const SoundFormat& format, bool is_beta) {
  switch (format.coding) {
    case SoundCoding::ulaw:
      return is_beta ? "g711_ulaw" : "audio/pcmu";
    case SoundCoding::alaw:
      return is_beta ? "g711_alaw" : "audio/pcma";
    case SoundCoding::pcm16:
      break;
  }
  return is_beta ? "pcm16" : "audio/pcm";
}

// ITU-T G.711.
float ulaw_sample(unsigned char code) {
  code = static_cast<unsigned char>(~code);
  const int magnitude = (((code & 15) << 3) + 132) << (code >> 4 & 7);
  return static_cast<float>(code & 128 ? 132 - magnitude : magnitude - 132) / 32768.0f;
}
float alaw_sample(unsigned char code) {
  code ^= 0x55;
  const int exponent = code >> 4 & 7;
  int magnitude = (code & 15) << 4;
  magnitude = exponent == 0 ? magnitude + 8 : (magnitude + 264) << (exponent - 1);
  return static_cast<float>(code & 128 ? magnitude : -magnitude) / 32768.0f;
}

}  // namespace

Result<ClientEvent> read_client_event(std::string_view text, const RealtimeSettings& now, std::string& event_id) {
  event_id.clear();
  MSTAR_TRY(check_json_bounds(text, "the message", 64));
  const json event = json::parse(text, nullptr, false);
  if (!event.is_object()) return invalid_request("the message is no JSON object").with_field("type");
  if (const json* const id = member(event, "event_id"); id && id->is_string())
    event_id = id->get<std::string>().substr(0, 512);
  MSTAR_TRY_ASSIGN(ClientAction action, read_action(event, now));
  return ClientEvent{event_id, std::move(action)};
}

std::string session_json(const std::string& id, const RealtimeSettings& settings, bool is_beta) {
  json transcription = {{"model", settings.model}, {"prompt", settings.prompt}};
  transcription["language"] = settings.language.empty() ? json() : json(settings.language);
  json turns;
  if (settings.turns)
    turns = {{"type", "server_vad"},
             {"threshold", settings.turns->threshold},
             {"prefix_padding_ms", settings.turns->prefix_padding_ms},
             {"silence_duration_ms", settings.turns->silence_duration_ms}};
  json out;
  if (is_beta) {
    out = {{"id", id},
           {"object", "realtime.transcription_session"},
           {"input_audio_format", format_name(settings.format, true)},
           {"input_audio_transcription", transcription},
           {"turn_detection", turns}};
  } else {
    json format = {{"type", format_name(settings.format, false)}};
    if (settings.format.coding == SoundCoding::pcm16) format["rate"] = settings.format.rate_hz;
    out = {{"id", id},
           {"object", "realtime.session"},
           {"type", "transcription"},
           {"audio", {{"input", {{"format", format}, {"transcription", transcription}, {"turn_detection", turns}}}}}};
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<float> samples_of(std::string_view bytes, SoundCoding coding) {
  std::vector<float> out;
  if (coding == SoundCoding::pcm16) {
    out.reserve(bytes.size() / 2);
    for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
      const auto low = static_cast<unsigned char>(bytes[i]), high = static_cast<unsigned char>(bytes[i + 1]);
      out.push_back(static_cast<float>(static_cast<std::int16_t>(low | high << 8)) / 32768.0f);
    }
    return out;
  }
  out.reserve(bytes.size());
  for (const char c : bytes)
    out.push_back(coding == SoundCoding::ulaw ? ulaw_sample(static_cast<unsigned char>(c))
                                              : alaw_sample(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace mstar::server
