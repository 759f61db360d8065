// The FFmpeg module: the only file that includes or links FFmpeg. See ffmpeg_module.h.
#include "mstar/media/ffmpeg_module.h"

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/log.h>
#include <libswresample/swresample.h>
}

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace {

constexpr int kIoBytes = 32 << 10;
constexpr int kMaxBadPackets = 16;
constexpr int kMaxChannels = 64;
constexpr int kMaxFrameSamples = 1 << 20;
// No playlist or capture format is among these: nothing that makes FFmpeg open a second file or an address.
constexpr char kFormats[] =
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,asf,amr,avi,flv,wav,ogg,mp3,flac,aiff,caf,w64,au";

// A failure by FFmpeg's code, or by a fixed text of ours.
struct Failure {
  int code = 0;
  const char* text = nullptr;
};

void describe(const Failure& failure, mstar_ffmpeg_error* error) {
  if (failure.text) {
    std::snprintf(error->text, sizeof error->text, "%s", failure.text);
  } else {
    av_strerror(failure.code, error->text, sizeof error->text);
  }
}

struct IoDeleter {
  void operator()(AVIOContext* p) const {
    av_freep(&p->buffer);
    avio_context_free(&p);
  }
};
struct FormatDeleter {
  void operator()(AVFormatContext* p) const { avformat_close_input(&p); }
};
struct CodecDeleter {
  void operator()(AVCodecContext* p) const { avcodec_free_context(&p); }
};
struct PacketDeleter {
  void operator()(AVPacket* p) const { av_packet_free(&p); }
};
struct FrameDeleter {
  void operator()(AVFrame* p) const { av_frame_free(&p); }
};
struct SwrDeleter {
  void operator()(SwrContext* p) const { swr_free(&p); }
};

}  // namespace

struct mstar_ffmpeg_stream {
 public:
  explicit mstar_ffmpeg_stream(const mstar_ffmpeg_bytes& bytes) : bytes_(bytes) {}

  bool open(mstar_ffmpeg_format* format);
  // Frames written, 0 at the end, -1 with failure().
  int64_t read(float* interleaved, int64_t max_frames);
  const Failure& failure() const { return failure_; }

 private:
  bool fail(int code) {
    failure_ = {code, nullptr};
    return false;
  }
  bool fail(const char* text) {
    failure_ = {0, text};
    return false;
  }
  static int read_io(void* user, uint8_t* out, int num_bytes);
  static int64_t seek_io(void* user, int64_t offset, int whence);

  bool open_input();
  bool open_decoder();
  // Decodes until samples_ holds something new; sets ended_ at the end.
  bool decode_more();
  bool send_packet();
  bool take_frame();
  bool prepare_convert();

  mstar_ffmpeg_bytes bytes_;
  int64_t position_ = 0;
  std::unique_ptr<AVIOContext, IoDeleter> io_;
  std::unique_ptr<AVFormatContext, FormatDeleter> input_;
  std::unique_ptr<AVCodecContext, CodecDeleter> decoder_;
  std::unique_ptr<AVPacket, PacketDeleter> packet_{av_packet_alloc()};
  std::unique_ptr<AVFrame, FrameDeleter> frame_{av_frame_alloc()};
  std::unique_ptr<SwrContext, SwrDeleter> convert_;
  AVStream* audio_ = nullptr;
  // What convert_ was made for; the decoder may change its mind within a stream.
  int from_rate_hz_ = 0;
  int from_channels_ = 0;
  int from_sample_format_ = AV_SAMPLE_FMT_NONE;
  // What the caller gets: those of the first decoded frame.
  int rate_hz_ = 0;
  int num_channels_ = 0;
  std::vector<float> samples_;
  size_t samples_taken_ = 0;
  int num_bad_packets_ = 0;
  bool draining_ = false;
  bool ended_ = false;
  Failure failure_;
};

int mstar_ffmpeg_stream::read_io(void* user, uint8_t* out, int num_bytes) {
  auto& self = *static_cast<mstar_ffmpeg_stream*>(user);
  const int64_t got = self.bytes_.read_at(self.bytes_.user, self.position_, out, num_bytes);
  if (got < 0) return AVERROR(EIO);
  if (got == 0) return AVERROR_EOF;
  self.position_ += got;
  return static_cast<int>(got);
}

int64_t mstar_ffmpeg_stream::seek_io(void* user, int64_t offset, int whence) {
  auto& self = *static_cast<mstar_ffmpeg_stream*>(user);
  whence &= ~AVSEEK_FORCE;
  if (whence == AVSEEK_SIZE) return self.bytes_.size_bytes;
  const int64_t base = whence == SEEK_CUR ? self.position_ : whence == SEEK_END ? self.bytes_.size_bytes : 0;
  int64_t target = 0;
  if (__builtin_add_overflow(base, offset, &target) || target < 0) return AVERROR(EINVAL);
  self.position_ = target;
  return target;
}

bool mstar_ffmpeg_stream::open_input() {
  auto* buffer = static_cast<unsigned char*>(av_malloc(kIoBytes));
  if (!buffer) return fail(AVERROR(ENOMEM));
  io_.reset(avio_alloc_context(buffer, kIoBytes, 0, this, read_io, nullptr, seek_io));
  if (!io_) {
    av_free(buffer);
    return fail(AVERROR(ENOMEM));
  }
  AVFormatContext* input = avformat_alloc_context();
  if (!input) return fail(AVERROR(ENOMEM));
  input->pb = io_.get();
  input->flags |= AVFMT_FLAG_CUSTOM_IO;
  input->format_whitelist = av_strdup(kFormats);
  input->protocol_whitelist = av_strdup("");
  // avformat_open_input frees its argument on failure.
  int code = avformat_open_input(&input, nullptr, nullptr, nullptr);
  if (code < 0) return fail(code);
  input_.reset(input);
  code = avformat_find_stream_info(input_.get(), nullptr);
  if (code < 0) return fail(code);
  for (unsigned i = 0; i < input_->nb_streams; ++i) {
    AVStream* stream = input_->streams[i];
    const bool is_audio = stream->codecpar->codec_type == AVMEDIA_TYPE_AUDIO;
    if (is_audio && !audio_) {
      audio_ = stream;
    } else {
      stream->discard = AVDISCARD_ALL;
    }
  }
  if (!audio_) return fail("it has no audio stream");
  // An MP4 lists its packets beforehand, so a file that was cut short shows here.
  const int num_listed = avformat_index_get_entries_count(audio_);
  const AVIndexEntry* last = num_listed > 0 ? avformat_index_get_entry(audio_, num_listed - 1) : nullptr;
  if (last && last->pos + last->size > bytes_.size_bytes) return fail("it is truncated");
  return true;
}

bool mstar_ffmpeg_stream::open_decoder() {
  const AVCodec* codec = avcodec_find_decoder(audio_->codecpar->codec_id);
  if (!codec) return fail("its audio codec is not supported");
  decoder_.reset(avcodec_alloc_context3(codec));
  if (!decoder_) return fail(AVERROR(ENOMEM));
  int code = avcodec_parameters_to_context(decoder_.get(), audio_->codecpar);
  if (code < 0) return fail(code);
  decoder_->pkt_timebase = audio_->time_base;
  decoder_->thread_count = 1;
  code = avcodec_open2(decoder_.get(), codec, nullptr);
  return code < 0 ? fail(code) : true;
}

bool mstar_ffmpeg_stream::open(mstar_ffmpeg_format* format) {
  if (!packet_ || !frame_) return fail(AVERROR(ENOMEM));
  if (!open_input() || !open_decoder() || !decode_more()) return false;
  if (rate_hz_ == 0) return fail("it holds no audio that can be decoded");
  *format = {rate_hz_, num_channels_, -1};
  if (audio_->duration > 0) {
    format->num_frames = av_rescale_q(audio_->duration, audio_->time_base, AVRational{1, rate_hz_});
  } else if (input_->duration > 0) {
    format->num_frames = av_rescale(input_->duration, rate_hz_, AV_TIME_BASE);
  }
  return true;
}

bool mstar_ffmpeg_stream::prepare_convert() {
  const int channels = frame_->ch_layout.nb_channels;
  if (frame_->sample_rate <= 0 || channels < 1 || channels > kMaxChannels || frame_->nb_samples > kMaxFrameSamples) {
    return fail("its audio has an absurd sample rate, channel count or frame size");
  }
  if (rate_hz_ == 0) {
    rate_hz_ = frame_->sample_rate;
    num_channels_ = channels;
  }
  const bool is_same = from_rate_hz_ == frame_->sample_rate && from_channels_ == channels &&
                       from_sample_format_ == frame_->format && convert_;
  if (is_same) return true;
  if (channels != num_channels_ || frame_->sample_rate != rate_hz_) {
    return fail("its sample rate or channel count changes within it");
  }
  // One layout on both sides: this only changes the sample format, and mixes nothing.
  SwrContext* made = nullptr;
  int code = swr_alloc_set_opts2(&made, &frame_->ch_layout, AV_SAMPLE_FMT_FLT, rate_hz_, &frame_->ch_layout,
                                 static_cast<AVSampleFormat>(frame_->format), frame_->sample_rate, 0, nullptr);
  convert_.reset(made);
  if (code >= 0) code = swr_init(convert_.get());
  if (code < 0) return fail(code);
  from_rate_hz_ = frame_->sample_rate;
  from_channels_ = channels;
  from_sample_format_ = frame_->format;
  return true;
}

bool mstar_ffmpeg_stream::take_frame() {
  if (!prepare_convert()) return false;
  samples_.resize(static_cast<size_t>(frame_->nb_samples) * static_cast<size_t>(num_channels_));
  samples_taken_ = 0;
  uint8_t* out[] = {reinterpret_cast<uint8_t*>(samples_.data())};
  const auto** in = const_cast<const uint8_t**>(frame_->extended_data);
  const int got = swr_convert(convert_.get(), out, frame_->nb_samples, in, frame_->nb_samples);
  av_frame_unref(frame_.get());
  if (got < 0) return fail(got);
  samples_.resize(static_cast<size_t>(got) * static_cast<size_t>(num_channels_));
  return true;
}

bool mstar_ffmpeg_stream::send_packet() {
  const int code = av_read_frame(input_.get(), packet_.get());
  if (code == AVERROR_EOF) {
    draining_ = true;
    const int flushed = avcodec_send_packet(decoder_.get(), nullptr);
    return flushed < 0 && flushed != AVERROR_EOF ? fail(flushed) : true;
  }
  if (code < 0) return fail(code);
  int sent = 0;
  if (packet_->stream_index == audio_->index) sent = avcodec_send_packet(decoder_.get(), packet_.get());
  av_packet_unref(packet_.get());
  if (sent == AVERROR(ENOMEM)) return fail(sent);
  // Phones and browsers write a bad packet now and then; a file of them is damaged.
  if (sent < 0 && ++num_bad_packets_ > kMaxBadPackets) return fail("it is damaged");
  return true;
}

bool mstar_ffmpeg_stream::decode_more() {
  while (!ended_) {
    const int code = avcodec_receive_frame(decoder_.get(), frame_.get());
    if (code == 0) {
      if (!take_frame()) return false;
      if (!samples_.empty()) return true;
    } else if (code == AVERROR_EOF) {
      ended_ = true;
    } else if (code == AVERROR(EAGAIN) && !draining_) {
      if (!send_packet()) return false;
    } else if (code == AVERROR(ENOMEM) || ++num_bad_packets_ > kMaxBadPackets) {
      return fail(code);
    }
  }
  return true;
}

int64_t mstar_ffmpeg_stream::read(float* interleaved, int64_t max_frames) {
  while (samples_taken_ == samples_.size()) {
    samples_.clear();
    samples_taken_ = 0;
    if (!decode_more()) return -1;
    if (ended_ && samples_.empty()) return 0;
  }
  const size_t limit = static_cast<size_t>(std::max<int64_t>(max_frames, 0)) * static_cast<size_t>(num_channels_);
  const size_t count = std::min(samples_.size() - samples_taken_, limit);
  std::copy_n(samples_.begin() + static_cast<std::ptrdiff_t>(samples_taken_), count, interleaved);
  samples_taken_ += count;
  return static_cast<int64_t>(count) / num_channels_;
}

namespace {

mstar_ffmpeg_stream* open_stream(const mstar_ffmpeg_bytes* bytes, mstar_ffmpeg_format* format,
                                 mstar_ffmpeg_error* error) {
  try {
    auto stream = std::make_unique<mstar_ffmpeg_stream>(*bytes);
    if (stream->open(format)) return stream.release();
    describe(stream->failure(), error);
  } catch (const std::bad_alloc&) {
    describe({AVERROR(ENOMEM), nullptr}, error);
  }
  return nullptr;
}

int64_t read_stream(mstar_ffmpeg_stream* stream, float* interleaved, int64_t max_frames, mstar_ffmpeg_error* error) {
  try {
    const int64_t got = stream->read(interleaved, max_frames);
    if (got < 0) describe(stream->failure(), error);
    return got;
  } catch (const std::bad_alloc&) {
    describe({AVERROR(ENOMEM), nullptr}, error);
    return -1;
  }
}

void close_stream(mstar_ffmpeg_stream* stream) { delete stream; }

}  // namespace

extern "C" __attribute__((visibility("default"))) const mstar_ffmpeg_functions* mstar_ffmpeg(void) {
  static const mstar_ffmpeg_functions functions = [] {
    av_log_set_level(AV_LOG_QUIET);
    return mstar_ffmpeg_functions{MSTAR_FFMPEG_ABI_VERSION, open_stream, read_stream, close_stream};
  }();
  return &functions;
}
