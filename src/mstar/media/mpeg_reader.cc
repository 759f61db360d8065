// The only caller of libmpg123. libsndfile would decode MP3 too, but lets libmpg123 print on stderr about damaged
// input.
#include <mpg123.h>

#include <array>
#include <string>
#include <utility>

#include "mstar/media/frame_reader.h"

namespace mstar {
namespace {

// How far the decoder may search for the next frame past padding or damage.
constexpr long kResyncLimitBytes = 64 << 10;
// Encoders disagree by up to two frames of 1152 samples on a file's exact length.
constexpr std::uint64_t kLengthTolerance = 2 * 1152;

ssize_t read_bytes(void* cursor, void* out, std::size_t count) {
  return static_cast<ssize_t>(static_cast<ByteCursor*>(cursor)->read(out, static_cast<std::int64_t>(count)));
}
off_t seek_bytes(void* cursor, off_t offset, int whence) {
  return static_cast<off_t>(static_cast<ByteCursor*>(cursor)->seek(offset, whence));
}

class MpegReader final : public FrameReader {
 public:
  explicit MpegReader(std::shared_ptr<const ByteSource> source) : cursor_(std::move(source)) {}
  ~MpegReader() override {
    if (decoder_) mpg123_delete(decoder_);
  }
  MpegReader(const MpegReader&) = delete;
  MpegReader& operator=(const MpegReader&) = delete;

  Status open();
  const AudioFormat& format() const override { return format_; }
  Result<std::size_t> read(std::span<float> interleaved) override;

 private:
  Error damaged(const std::string& what) const {
    return invalid_request("the MP3 file is damaged or truncated: " + what);
  }

  ByteCursor cursor_;  // at a fixed address: the decoder keeps a pointer to it
  mpg123_handle* decoder_ = nullptr;
  AudioFormat format_;
  std::uint64_t num_read_ = 0;
};

Status MpegReader::open() {
  int error = MPG123_OK;
  decoder_ = mpg123_new(nullptr, &error);
  if (!decoder_) return internal_error(std::string("libmpg123 does not start: ") + mpg123_plain_strerror(error));
  const long flags = MPG123_QUIET | MPG123_FORCE_FLOAT | MPG123_GAPLESS | MPG123_NO_FRANKENSTEIN;
  bool ok = mpg123_param(decoder_, MPG123_REMOVE_FLAGS, MPG123_AUTO_RESAMPLE, 0) == MPG123_OK;
  ok = ok && mpg123_param(decoder_, MPG123_ADD_FLAGS, flags, 0) == MPG123_OK;
  ok = ok && mpg123_param(decoder_, MPG123_RESYNC_LIMIT, kResyncLimitBytes, 0) == MPG123_OK;
  ok = ok && mpg123_replace_reader_handle(decoder_, read_bytes, seek_bytes, nullptr) == MPG123_OK;
  if (!ok) return internal_error(std::string("libmpg123 does not start: ") + mpg123_strerror(decoder_));
  long rate_hz = 0;
  int num_channels = 0;
  int encoding = 0;
  const bool opened = mpg123_open_handle(decoder_, &cursor_) == MPG123_OK &&
                      mpg123_getformat(decoder_, &rate_hz, &num_channels, &encoding) == MPG123_OK;
  MSTAR_TRY(Status(cursor_.status()));
  if (!opened || encoding != MPG123_ENC_FLOAT_32) return damaged("no MPEG audio frame was found in it");
  format_ = {"MP3", static_cast<std::uint32_t>(rate_hz), static_cast<std::uint32_t>(num_channels), std::nullopt};
  // Only an encoder's own tag gives a length; without one libmpg123 estimates it from the first frame.
  long encoder_delay = -1;
  mpg123_getstate(decoder_, MPG123_ENC_DELAY, &encoder_delay, nullptr);
  const off_t length = mpg123_length(decoder_);
  if (encoder_delay >= 0 && length > 0) format_.num_frames = static_cast<std::uint64_t>(length);
  return check_audio_format(format_);
}

Result<std::size_t> MpegReader::read(std::span<float> interleaved) {
  const std::size_t wanted = interleaved.size() / format_.num_channels * format_.num_channels;
  std::size_t done_bytes = 0;
  const int status = mpg123_read(decoder_, interleaved.data(), wanted * sizeof(float), &done_bytes);
  MSTAR_TRY(Status(cursor_.status()));
  const std::size_t num_frames = done_bytes / sizeof(float) / format_.num_channels;
  num_read_ += num_frames;
  if (status != MPG123_OK && status != MPG123_DONE) {
    const std::string why = status == MPG123_NEW_FORMAT ? "the sample rate or channel count changes within it"
                                                        : std::string(mpg123_strerror(decoder_));
    return damaged("after frame " + std::to_string(num_read_) + ": " + why);
  }
  if (num_frames == 0 && format_.num_frames && num_read_ + kLengthTolerance < *format_.num_frames) {
    return damaged("it declares " + std::to_string(*format_.num_frames) + " frames, but only " +
                   std::to_string(num_read_) + " can be decoded");
  }
  return num_frames;
}

}  // namespace

Result<std::unique_ptr<FrameReader>> open_mpeg_audio(std::shared_ptr<const ByteSource> bytes) {
  auto reader = std::make_unique<MpegReader>(std::move(bytes));
  MSTAR_TRY(reader->open());
  return std::unique_ptr<FrameReader>(std::move(reader));
}

}  // namespace mstar
