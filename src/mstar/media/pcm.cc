#include "mstar/media/pcm.h"

#include <bit>
#include <cmath>

namespace mstar {
namespace {

constexpr std::uint32_t kStreamBytes = 0xffffffff;

template <class T>
void append_le(std::string& out, T value) {
  for (unsigned i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

unsigned bytes_per_sample(WavEncoding encoding) { return encoding == WavEncoding::pcm16 ? 2 : 4; }

}  // namespace

std::int16_t to_pcm16(float sample) {
  const float scaled = sample * 32768.0f;
  if (scaled >= 32767.0f) return 32767;
  if (scaled <= -32768.0f) return -32768;
  if (std::isnan(scaled)) return 0;
  return static_cast<std::int16_t>(std::nearbyint(scaled));
}

void append_pcm16(std::span<const float> samples, std::string& out) {
  out.reserve(out.size() + samples.size() * 2);
  for (const float sample : samples) append_le(out, static_cast<std::uint16_t>(to_pcm16(sample)));
}

std::string encode_pcm16(std::span<const float> samples) {
  std::string out;
  append_pcm16(samples, out);
  return out;
}

Result<std::string> wav_header(std::uint32_t rate_hz, std::uint16_t num_channels, WavEncoding encoding,
                               std::optional<std::uint64_t> samples_bytes) {
  // The float header carries the extension size and the fact chunk that the format wants for anything but PCM.
  const bool is_pcm = encoding == WavEncoding::pcm16;
  const std::uint32_t format_bytes = is_pcm ? 16 : 18;
  const std::uint32_t rest_bytes = 4 + 8 + format_bytes + (is_pcm ? 0 : 12) + 8;
  const std::uint32_t frame_bytes = bytes_per_sample(encoding) * num_channels;
  if (num_channels == 0) return invalid_request("a WAV file needs at least one channel");
  if (samples_bytes && *samples_bytes > kStreamBytes - rest_bytes - 1) {
    return invalid_request("a WAV file holds less than 4 GiB: " + std::to_string(*samples_bytes) +
                           " bytes are too many");
  }
  const std::uint32_t length = samples_bytes ? static_cast<std::uint32_t>(*samples_bytes) : kStreamBytes;
  std::string out = "RIFF";
  append_le<std::uint32_t>(out, samples_bytes ? length + (length & 1) + rest_bytes : kStreamBytes);
  out += "WAVEfmt ";
  append_le<std::uint32_t>(out, format_bytes);
  append_le<std::uint16_t>(out, is_pcm ? 1 : 3);
  append_le<std::uint16_t>(out, num_channels);
  append_le<std::uint32_t>(out, rate_hz);
  append_le<std::uint32_t>(out, rate_hz * frame_bytes);
  append_le<std::uint16_t>(out, static_cast<std::uint16_t>(frame_bytes));
  append_le<std::uint16_t>(out, static_cast<std::uint16_t>(8 * bytes_per_sample(encoding)));
  if (!is_pcm) {
    append_le<std::uint16_t>(out, 0);
    out += "fact";
    append_le<std::uint32_t>(out, 4);
    append_le<std::uint32_t>(out, samples_bytes ? length / frame_bytes : kStreamBytes);
  }
  out += "data";
  append_le<std::uint32_t>(out, length);
  return out;
}

Result<std::string> encode_wav(std::span<const float> interleaved, std::uint32_t rate_hz, std::uint16_t num_channels,
                               WavEncoding encoding) {
  const std::uint64_t samples_bytes = std::uint64_t{interleaved.size()} * bytes_per_sample(encoding);
  MSTAR_TRY_ASSIGN(std::string out, wav_header(rate_hz, num_channels, encoding, samples_bytes));
  if (encoding == WavEncoding::pcm16) {
    append_pcm16(interleaved, out);
  } else {
    out.reserve(out.size() + samples_bytes);
    for (const float sample : interleaved) append_le(out, std::bit_cast<std::uint32_t>(sample));
  }
  return out;
}

}  // namespace mstar
