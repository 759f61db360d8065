#include "mstar/media/audio_source.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mstar/media/container.h"
#include "mstar/media/frame_reader.h"
#include "mstar/media/resampler.h"

namespace mstar {
namespace {

// Frames decoded at a time. Fixed, so that the resampler sees the same pieces whatever sizes the reader asks for.
constexpr std::size_t kBlockFrames = 4096;
constexpr std::size_t kResampledBlock = 8192;
// Cut before the resampler, whose sums stay finite then.
constexpr float kMaxMagnitude = 65536.0f;

constexpr char kFfmpegHint[] =
    "install the package with mstar_media_ffmpeg.so, or build it with -DMSTAR_FFMPEG=ON and put it beside the mstar "
    "program or into ../lib/mstar";

// By the libraries of the core; null where they do not know the container or the codec inside.
Result<std::unique_ptr<FrameReader>> open_core(const std::shared_ptr<const ByteSource>& bytes, const Sniffed& found) {
  switch (found.container) {
    case Container::wav:
    case Container::w64:
    case Container::aiff:
    case Container::au:
    case Container::caf:
    case Container::flac:
      return open_sndfile(sub_bytes(bytes, found.offset_bytes, bytes->size_bytes()), found.container);
    case Container::ogg:
      return open_ogg(sub_bytes(bytes, found.offset_bytes, bytes->size_bytes()));
    case Container::mpeg_audio:
      return open_mpeg_audio(bytes);
    default:
      return std::unique_ptr<FrameReader>();
  }
}

bool is_core_container(Container container) {
  return container >= Container::wav && container <= Container::mpeg_audio;
}

Result<std::unique_ptr<FrameReader>> open_frames(const std::shared_ptr<const ByteSource>& bytes) {
  if (bytes->size_bytes() == 0) return invalid_request("the audio file is empty");
  MSTAR_TRY_ASSIGN(const Sniffed found, sniff_container(*bytes));
  if (found.container == Container::unknown) {
    return invalid_request("the file is not audio in a known format (" + supported_audio_formats() + ")");
  }
  MSTAR_TRY_ASSIGN(std::unique_ptr<FrameReader> reader, open_core(bytes, found));
  if (reader) return reader;
  if (has_ffmpeg()) return open_ffmpeg(bytes, found.container);
  const std::string name(container_name(found.container));
  const std::string what = is_core_container(found.container)
                               ? "the " + name + " file is damaged, or its codec needs the FFmpeg module"
                               : name + " files need the FFmpeg module";
  return invalid_request(what + ", which is not installed: " + kFfmpegHint +
                         ". Supported now: " + supported_audio_formats());
}

float clean(float sample) {
  if (!std::isfinite(sample)) return 0.0f;
  return std::clamp(sample, -kMaxMagnitude, kMaxMagnitude);
}

void average_channels(std::span<const float> interleaved, std::size_t num_channels, std::span<float> mono) {
  if (num_channels == 1) {
    std::transform(interleaved.begin(), interleaved.end(), mono.begin(), clean);
    return;
  }
  for (std::size_t i = 0; i < mono.size(); ++i) {
    double sum = 0;
    for (std::size_t c = 0; c < num_channels; ++c) sum += clean(interleaved[i * num_channels + c]);
    mono[i] = static_cast<float>(sum / static_cast<double>(num_channels));
  }
}

// Halves, which only the mean of channels has, go up, as in FFmpeg. What is cast is positive, so that is a floor()
// without a call.
void round_to_16_bits(std::span<float> samples) {
  constexpr std::int32_t kLevels = 32768;
  for (float& sample : samples) {
    const double scaled = std::min(std::max(sample * 32768.0, -32768.0), 32767.0);
    sample = static_cast<float>(static_cast<std::int32_t>(scaled + (kLevels + 0.5)) - kLevels) * (1.0f / kLevels);
  }
}

}  // namespace

std::string supported_audio_formats() {
  std::string formats = "WAV, FLAC, OGG (Vorbis, Opus), MP3, AIFF, AU, CAF, W64";
  if (has_ffmpeg()) formats += ", MP4/M4A, WebM, AAC, WMA, AMR, AVI, FLV";
  return formats;
}

AudioSource::AudioSource(std::shared_ptr<const ByteSource> bytes, std::uint32_t rate_hz)
    : bytes_(std::move(bytes)), rate_hz_(rate_hz) {}
AudioSource::AudioSource(AudioSource&&) noexcept = default;
AudioSource& AudioSource::operator=(AudioSource&&) noexcept = default;
AudioSource::~AudioSource() = default;

Result<AudioSource> AudioSource::open(std::shared_ptr<const ByteSource> bytes, std::uint32_t rate_hz) {
  if (!bytes) return invalid_request("no audio was given");
  if (rate_hz < kMinRateHz || rate_hz > kMaxRateHz) {
    return invalid_request("cannot resample to " + std::to_string(rate_hz) + " Hz");
  }
  AudioSource source(std::move(bytes), rate_hz);
  MSTAR_TRY(source.start());
  return source;
}

Result<AudioSource> AudioSource::open(std::shared_ptr<const std::string> bytes, std::uint32_t rate_hz) {
  return open(memory_bytes(std::move(bytes)), rate_hz);
}

Result<AudioSource> AudioSource::open(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                      std::uint32_t rate_hz) {
  return open(memory_bytes(bytes, std::move(owner)), rate_hz);
}

Result<AudioSource> AudioSource::open_file(const std::string& path, std::uint32_t rate_hz) {
  MSTAR_TRY_ASSIGN(auto bytes, file_bytes(path));
  return open(std::move(bytes), rate_hz);
}

// Opens a fresh decoder, also for rewind(): no decoder's seek gives the same bits as a fresh start for every format.
Status AudioSource::start() {
  MSTAR_TRY_ASSIGN(frames_, open_frames(bytes_));
  const AudioFormat& format = frames_->format();
  if (format.num_frames && *format.num_frames == 0) {
    return invalid_request("the " + format.container + " file holds no audio");
  }
  resampler_.reset();
  unsampled_ = {};
  ready_ = {};
  decoded_all_ = false;
  num_decoded_ = 0;
  failure_.reset();
  is_as_wanted_ = format.is_16_bit && format.num_channels == 1 && format.rate_hz == rate_hz_;
  if (is_as_wanted_) return ok_status();
  if (format.rate_hz != rate_hz_) {
    resampler_ = std::make_unique<Resampler>(format.rate_hz, rate_hz_);
    resampled_.resize(kResampledBlock);
  }
  interleaved_.resize(kBlockFrames * format.num_channels);
  mono_.resize(kBlockFrames);
  return ok_status();
}

Status AudioSource::rewind() {
  Status status = start();
  if (!status) failure_ = status.error();
  return status;
}

Result<std::size_t> AudioSource::read(std::span<float> out) {
  if (failure_) return Error(*failure_);
  auto num_read = is_as_wanted_ ? read_as_it_is(out) : read_converted(out);
  if (!num_read) failure_ = num_read.error();
  return num_read;
}

Result<std::size_t> AudioSource::read_as_it_is(std::span<float> out) {
  std::size_t num_read = 0;
  while (!decoded_all_ && num_read < out.size()) {
    MSTAR_TRY_ASSIGN(const std::size_t got, frames_->read(out.subspan(num_read)));
    num_read += got;
    decoded_all_ = got == 0;
  }
  return note_decoded(num_read);
}

Result<std::size_t> AudioSource::read_converted(std::span<float> out) {
  std::size_t num_read = 0;
  while (num_read < out.size()) {
    if (ready_.empty()) {
      MSTAR_TRY(refill());
      if (ready_.empty()) break;
    }
    const std::size_t count = std::min(out.size() - num_read, ready_.size());
    std::copy_n(ready_.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(num_read));
    ready_ = ready_.subspan(count);
    num_read += count;
  }
  return num_read;
}

// Gives the number back.
Result<std::size_t> AudioSource::note_decoded(std::size_t num_frames) {
  num_decoded_ += num_frames;
  if (decoded_all_ && num_decoded_ == 0)
    return invalid_request("the " + frames_->format().container + " file holds no audio");
  return num_frames;
}

// Makes ready_ non-empty, or leaves it empty at the end.
Status AudioSource::refill() {
  if (resampler_) return resample_block();
  MSTAR_TRY(decode_block());
  round_to_16_bits(std::span(mono_).first(unsampled_.size()));
  ready_ = std::exchange(unsampled_, {});
  return ok_status();
}

// Decodes up to one whole block into unsampled_; empty at the end.
Status AudioSource::decode_block() {
  const std::size_t num_channels = frames_->format().num_channels;
  std::size_t num_frames = 0;
  while (!decoded_all_ && num_frames < kBlockFrames) {
    MSTAR_TRY_ASSIGN(const std::size_t got, frames_->read(std::span(interleaved_).subspan(num_frames * num_channels)));
    num_frames += got;
    decoded_all_ = got == 0;
  }
  MSTAR_TRY(note_decoded(num_frames));
  average_channels(std::span(interleaved_).first(num_frames * num_channels), num_channels,
                   std::span(mono_).first(num_frames));
  unsampled_ = std::span(mono_).first(num_frames);
  return ok_status();
}

Status AudioSource::resample_block() {
  while (ready_.empty()) {
    if (unsampled_.empty()) MSTAR_TRY(decode_block());
    std::size_t num_produced = 0;
    if (unsampled_.empty()) {
      num_produced = resampler_->finish(resampled_);
      if (num_produced == 0) return ok_status();
    } else {
      const Resampler::Progress progress = resampler_->push(unsampled_, resampled_);
      unsampled_ = unsampled_.subspan(progress.num_consumed);
      num_produced = progress.num_produced;
    }
    const std::span<float> produced = std::span(resampled_).first(num_produced);
    round_to_16_bits(produced);
    ready_ = produced;
  }
  return ok_status();
}

std::optional<double> AudioSource::duration_s() const {
  const AudioFormat& format = frames_->format();
  if (!format.num_frames) return std::nullopt;
  return static_cast<double>(*format.num_frames) / format.rate_hz;
}
std::uint32_t AudioSource::source_rate_hz() const { return frames_->format().rate_hz; }
std::uint32_t AudioSource::source_num_channels() const { return frames_->format().num_channels; }
const std::string& AudioSource::format_name() const { return frames_->format().container; }

}  // namespace mstar
