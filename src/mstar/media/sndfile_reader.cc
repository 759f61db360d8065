// The only caller of libsndfile.
#include <sndfile.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "mstar/media/frame_reader.h"
#include "mstar/media/wav_layout.h"

namespace mstar {
namespace {

// What libsndfile reads: the source, with the length field of a streamed WAV filled in where libsndfile needs it.
struct VirtualFile {
  explicit VirtualFile(std::shared_ptr<const ByteSource> source) : cursor(std::move(source)) {}

  ByteCursor cursor;
  std::int64_t patch_offset = -1;
  std::array<unsigned char, 4> patch = {};
};

sf_count_t vio_size(void* user) { return static_cast<VirtualFile*>(user)->cursor.size(); }
sf_count_t vio_tell(void* user) { return static_cast<VirtualFile*>(user)->cursor.tell(); }
sf_count_t vio_seek(sf_count_t offset, int whence, void* user) {
  return static_cast<VirtualFile*>(user)->cursor.seek(offset, whence);
}
sf_count_t vio_read(void* out, sf_count_t count, void* user) {
  auto& file = *static_cast<VirtualFile*>(user);
  const std::int64_t at = file.cursor.tell();
  const std::int64_t got = file.cursor.read(out, count);
  if (file.patch_offset >= 0) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(file.patch.size()); ++i) {
      const std::int64_t to = file.patch_offset + i - at;
      if (to >= 0 && to < got) static_cast<unsigned char*>(out)[to] = file.patch[static_cast<std::size_t>(i)];
    }
  }
  return got;
}
sf_count_t vio_write(const void*, sf_count_t, void*) { return 0; }

class SndfileReader final : public FrameReader {
 public:
  explicit SndfileReader(std::shared_ptr<const ByteSource> source) : file_(std::move(source)) {}
  ~SndfileReader() override {
    if (stream_) sf_close(stream_);
  }
  SndfileReader(const SndfileReader&) = delete;
  SndfileReader& operator=(const SndfileReader&) = delete;

  // Leaves is_open() false if libsndfile refuses the header.
  Status open(const ByteSource& source, Container container);
  bool is_open() const { return stream_ != nullptr; }
  const AudioFormat& format() const override { return format_; }
  Result<std::size_t> read(std::span<float> interleaved) override;

 private:
  Status prepare_wav(const ByteSource& source);
  Error damaged(const std::string& what) const {
    return invalid_request("the " + format_.container + " file is damaged or truncated: " + what);
  }

  VirtualFile file_;  // at a fixed address: libsndfile keeps a pointer to it
  SNDFILE* stream_ = nullptr;
  AudioFormat format_;
  std::uint64_t num_read_ = 0;
};

// Refuses a WAV that libsndfile would misread, and fills in the sample length of a streamed one.
Status SndfileReader::prepare_wav(const ByteSource& source) {
  MSTAR_TRY_ASSIGN(const WavLayout layout, read_wav_layout(source));
  MSTAR_TRY(check_audio_format({format_.container, layout.rate_hz, layout.num_channels, std::nullopt}));
  MSTAR_TRY(check_wav_layout(layout));
  if (!layout.streamed || layout.declared_bytes > 0) return ok_status();
  file_.patch_offset = static_cast<std::int64_t>(layout.samples_offset) - 4;
  const std::uint64_t length = std::min<std::uint64_t>(layout.available_bytes, 0xfffffffe);
  for (unsigned i = 0; i < 4; ++i) {
    file_.patch[i] = static_cast<unsigned char>(length >> (8 * (layout.big_endian ? 3 - i : i)));
  }
  return ok_status();
}

Status SndfileReader::open(const ByteSource& source, Container container) {
  format_.container = container_name(container);
  if (container == Container::wav) MSTAR_TRY(prepare_wav(source));
  SF_VIRTUAL_IO io = {vio_size, vio_seek, vio_read, vio_write, vio_tell};
  SF_INFO found = {};
  stream_ = sf_open_virtual(&io, SFM_READ, &found, &file_);
  MSTAR_TRY(Status(file_.cursor.status()));
  if (!stream_) return ok_status();
  format_.rate_hz = found.samplerate > 0 ? static_cast<std::uint32_t>(found.samplerate) : 0;
  format_.num_channels = found.channels > 0 ? static_cast<std::uint32_t>(found.channels) : 0;
  const int samples = found.format & SF_FORMAT_SUBMASK;
  format_.is_16_bit = samples == SF_FORMAT_PCM_16 || samples == SF_FORMAT_PCM_S8 || samples == SF_FORMAT_PCM_U8;
  if (found.frames >= 0 && found.frames < SF_COUNT_MAX) format_.num_frames = static_cast<std::uint64_t>(found.frames);
  return check_audio_format(format_);
}

Result<std::size_t> SndfileReader::read(std::span<float> interleaved) {
  const auto wanted = static_cast<sf_count_t>(interleaved.size() / format_.num_channels);
  const sf_count_t got = sf_readf_float(stream_, interleaved.data(), wanted);
  const int error = sf_error(stream_);
  MSTAR_TRY(Status(file_.cursor.status()));
  if (error != SF_ERR_NO_ERROR) {
    return damaged("after frame " + std::to_string(num_read_) + ": " + sf_error_number(error));
  }
  num_read_ += static_cast<std::uint64_t>(std::max<sf_count_t>(got, 0));
  if (got <= 0 && format_.num_frames && num_read_ < *format_.num_frames) {
    return damaged("it declares " + std::to_string(*format_.num_frames) + " frames, but only " +
                   std::to_string(num_read_) + " can be decoded");
  }
  return static_cast<std::size_t>(std::max<sf_count_t>(got, 0));
}

}  // namespace

Status check_audio_format(const AudioFormat& format) {
  if (format.num_channels < 1 || format.num_channels > kMaxChannels) {
    return invalid_request("the " + format.container + " file has " + std::to_string(format.num_channels) +
                           " channels; 1 to " + std::to_string(kMaxChannels) + " are supported");
  }
  if (format.rate_hz < kMinRateHz || format.rate_hz > kMaxRateHz) {
    return invalid_request("the " + format.container + " file has a sample rate of " + std::to_string(format.rate_hz) +
                           " Hz; " + std::to_string(kMinRateHz) + " to " + std::to_string(kMaxRateHz) +
                           " Hz are supported");
  }
  return ok_status();
}

Result<std::unique_ptr<FrameReader>> open_sndfile(std::shared_ptr<const ByteSource> bytes, Container container) {
  auto reader = std::make_unique<SndfileReader>(bytes);
  MSTAR_TRY(reader->open(*bytes, container));
  if (!reader->is_open()) return std::unique_ptr<FrameReader>();
  return std::unique_ptr<FrameReader>(std::move(reader));
}

}  // namespace mstar
