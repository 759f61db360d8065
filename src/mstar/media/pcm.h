// Float samples to PCM bytes and WAV files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "mstar/base/result.h"

namespace mstar {

// Sample formats of a WAV file that we write.
enum class WavEncoding : std::uint8_t { pcm16, float32 };

// round(sample * 32768) to nearest even, clipped to [-32768, 32767]; NaN becomes 0. The inverse of decoding sample /
// 32768.
std::int16_t to_pcm16(float sample);
// Appends 2 little-endian bytes a sample.
void append_pcm16(std::span<const float> samples, std::string& out);
// The bytes of append_pcm16 alone: headerless PCM16 LE, as the audio chunks of the API carry it.
std::string encode_pcm16(std::span<const float> samples);

// The header before `samples_bytes` of interleaved little-endian samples. Without a length: the header of a stream
// whose end is not known yet, both sizes 0xffffffff. num_channels 1 to 65535. Error: invalid_request over 4 GiB less
// the header.
Result<std::string> wav_header(std::uint32_t rate_hz, std::uint16_t num_channels, WavEncoding encoding,
                               std::optional<std::uint64_t> samples_bytes);

// A whole WAV file. `interleaved` holds whole frames of num_channels samples. Errors as wav_header.
Result<std::string> encode_wav(std::span<const float> interleaved, std::uint32_t rate_hz,
                               std::uint16_t num_channels = 1, WavEncoding encoding = WavEncoding::pcm16);

}  // namespace mstar
