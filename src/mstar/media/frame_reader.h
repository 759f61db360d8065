// One opened audio stream behind whichever library decodes it. Inside media/: everyone else uses AudioSource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "mstar/media/byte_source.h"
#include "mstar/media/container.h"

namespace mstar {

struct AudioFormat {
  std::string container;                    // "WAV", "FLAC", "MP4/M4A" ...
  std::uint32_t rate_hz = 0;                // of the source
  std::uint32_t num_channels = 0;           // of the source
  std::optional<std::uint64_t> num_frames;  // at rate_hz, where the file says so before it is decoded
  bool is_16_bit = false;                   // samples are whole 32768ths in [-1, 1), as those of 8 bits are too
};

// Wider or faster sources are refused: nothing that records speech makes them, and buffers are sized by these.
inline constexpr std::uint32_t kMaxChannels = 64;
inline constexpr std::uint32_t kMinRateHz = 1000;
inline constexpr std::uint32_t kMaxRateHz = 768000;

// Error: invalid_request when the rate or the channel count is outside the limits above.
Status check_audio_format(const AudioFormat& format);

// Decodes from the first frame to the last, once. One thread; memory does not grow with the file.
class FrameReader {
 public:
  virtual ~FrameReader() = default;
  virtual const AudioFormat& format() const = 0;
  // Fills `interleaved` (a multiple of num_channels floats, nominally in [-1, 1], possibly not finite) with whole
  // frames; returns their count. Fewer than fit does not mean the end; 0 does. Error: invalid_request where the stream
  // is damaged or ends before its header says.
  virtual Result<std::size_t> read(std::span<float> interleaved) = 0;
};

// WAV, W64, AIFF, AU, CAF, FLAC and one logical Ogg stream, by libsndfile. Null if it can't read the header: damaged
// beyond what the WAV and Ogg checks see, or of a codec that it does not know.
Result<std::unique_ptr<FrameReader>> open_sndfile(std::shared_ptr<const ByteSource> bytes, Container container);
// MPEG-1/2 layers I to III, by libmpg123.
Result<std::unique_ptr<FrameReader>> open_mpeg_audio(std::shared_ptr<const ByteSource> bytes);
// Ogg files of one or several streams in a row. Damaged and cut files are refused before anything is decoded:
// libsndfile would end quietly at the first bad page. Cost: one pass over the bytes at open.
Result<std::unique_ptr<FrameReader>> open_ogg(std::shared_ptr<const ByteSource> bytes);
// Whatever the FFmpeg module decodes. Error: unavailable if the module is not installed.
Result<std::unique_ptr<FrameReader>> open_ffmpeg(std::shared_ptr<const ByteSource> bytes, Container container);
// Whether the FFmpeg module was found; looked for once in a process.
bool has_ffmpeg();

}  // namespace mstar
