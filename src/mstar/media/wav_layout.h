// Where the samples of a WAV file lie and whether its header can be believed. libsndfile decodes; this finds the faults
// that it lets through: streamed headers with no length, files cut short, frames that do not fit their sample size.
#pragma once

#include <cstdint>

#include "mstar/media/byte_source.h"

namespace mstar {

struct WavLayout {
  std::uint16_t format_tag = 0;  // 1 PCM, 3 float, 6 A-law, 7 mu-law, 0xfffe extensible ...
  std::uint16_t num_channels = 0;
  std::uint32_t rate_hz = 0;
  std::uint16_t block_bytes = 0;
  std::uint16_t bits = 0;
  std::uint64_t samples_offset = 0;   // of the first sample byte
  std::uint64_t declared_bytes = 0;   // of samples, by the header (RF64: by its ds64 chunk)
  std::uint64_t available_bytes = 0;  // from samples_offset to the end of the file
  bool streamed = false;              // written by a program that could not go back to fill in the length
  bool big_endian = false;            // RIFX
};

// Walks the chunks up to `data`. Errors: invalid_request, naming what is damaged or missing.
Result<WavLayout> read_wav_layout(const ByteSource& bytes);

// Refuses a header whose fields contradict each other, and a file that ends more than a header's length before its
// samples do. Error: invalid_request.
Status check_wav_layout(const WavLayout& layout);

}  // namespace mstar
