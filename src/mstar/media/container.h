// What kind of media file some bytes are, told by their first bytes alone (never by a file name).
#pragma once

#include <cstdint>
#include <string_view>

#include "mstar/media/byte_source.h"

namespace mstar {

enum class Container : std::uint8_t {
  unknown,
  wav,   // RIFF, RIFX and RF64
  w64,   // Sony Wave64
  aiff,  // AIFF and AIFF-C
  au,
  caf,
  flac,
  ogg,
  mpeg_audio,  // MPEG-1/2 layers I to III: "MP3"
  mp4,         // MP4, M4A, MOV, 3GP
  matroska,    // Matroska and WebM
  adts,        // bare AAC
  asf,         // WMA
  amr,
  avi,
  flv,
};

// The name to show to a user: "WAV", "MP4/M4A" ...
std::string_view container_name(Container container);

struct Sniffed {
  Container container = Container::unknown;
  std::uint64_t offset_bytes = 0;  // where the container starts: past any ID3v2 tags
};

// Reads at most a few dozen bytes. Error: only where the source cannot be read.
Result<Sniffed> sniff_container(const ByteSource& bytes);

}  // namespace mstar
