// Encoded audio from outside (an upload, a file) as a stream of mono float samples at the rate that a model wants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/media/byte_source.h"

namespace mstar {

class FrameReader;
class Resampler;

// Decodes, averages the channels and resamples piece by piece: memory does not grow with the audio's length. Formats:
// WAV (8/16/24/32-bit, float, A-law, mu-law, ADPCM), FLAC, OGG (Vorbis, Opus), MP3, AIFF, AU, CAF, W64; with the
// FFmpeg module MP4/M4A, WebM, AAC, WMA, AMR, FLAC and Speex in OGG. The format is told by the bytes, never by a name.
//
// Samples: integers of 16 bits divided by 32768, rounded after mixing and resampling: what FFmpeg's default conversion
// to 16-bit PCM gives, which is what speech models were trained and are compared on (docs/adr/0012-resampling.md).
// 16-bit PCM at the wanted rate comes out as it is. Samples that are not finite become 0. The same bytes give the same
// samples for any sizes of read().
//
// Move-only; one thread at a time. Every error about the bytes is invalid_request and says what is wrong with them:
// empty, of no known format (the formats are named), damaged, truncated, or holding no audio. Streams without a length
// of their own (raw captures of Ogg or MP3) that were cut between two pages or frames can't be told from whole ones.
class AudioSource {
 public:
  static constexpr std::uint32_t kSpeechRateHz = 16000;

  // `rate_hz` of the output: 1000 to 768000. Cost: reads the header (Ogg: one pass over the bytes).
  static Result<AudioSource> open(std::shared_ptr<const ByteSource> bytes, std::uint32_t rate_hz = kSpeechRateHz);
  static Result<AudioSource> open(std::shared_ptr<const std::string> bytes, std::uint32_t rate_hz = kSpeechRateHz);
  // `owner` keeps `bytes` alive and unchanged.
  static Result<AudioSource> open(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                  std::uint32_t rate_hz = kSpeechRateHz);
  // A regular file, read as it is decoded.
  static Result<AudioSource> open_file(const std::string& path, std::uint32_t rate_hz = kSpeechRateHz);

  AudioSource(AudioSource&&) noexcept;
  AudioSource& operator=(AudioSource&&) noexcept;
  ~AudioSource();

  // Fills `out` with the next samples; returns how many. Fewer than asked only at the end; 0 for a non-empty `out` is
  // the end. An error stays: later reads repeat it until rewind(). Error besides those above: unavailable (the file
  // can't be read), internal.
  Result<std::size_t> read(std::span<float> out);
  // Starts again at the first sample; the samples are the same bits again.
  Status rewind();

  // Length where the file says it before it is decoded; a file can lie.
  std::optional<double> duration_s() const;
  std::uint32_t rate_hz() const { return rate_hz_; }  // of the samples that read() gives
  std::uint32_t source_rate_hz() const;
  std::uint32_t source_num_channels() const;
  const std::string& format_name() const;  // "WAV", "FLAC", "OGG", "MP3", "MP4/M4A" ...

 private:
  AudioSource(std::shared_ptr<const ByteSource> bytes, std::uint32_t rate_hz);

  Status start();
  Result<std::size_t> read_as_it_is(std::span<float> out);
  Result<std::size_t> read_converted(std::span<float> out);
  Result<std::size_t> note_decoded(std::size_t num_frames);
  Status refill();
  Status decode_block();
  Status resample_block();

  std::shared_ptr<const ByteSource> bytes_;
  std::uint32_t rate_hz_;
  std::unique_ptr<FrameReader> frames_;
  std::unique_ptr<Resampler> resampler_;  // null when the rates are equal
  bool is_as_wanted_ = false;             // what the reader gives needs no conversion; then the buffers are empty
  std::vector<float> interleaved_;
  std::vector<float> mono_;
  std::vector<float> resampled_;
  std::span<const float> unsampled_;  // the rest of mono_ that the resampler has not taken
  std::span<const float> ready_;      // samples for read()
  bool decoded_all_ = false;
  std::uint64_t num_decoded_ = 0;
  std::optional<Error> failure_;
};

// One sentence for error messages and `--help`: the formats that this installation decodes.
std::string supported_audio_formats();

}  // namespace mstar
