// Finds and loads the FFmpeg module, and reads through its C interface.
#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "mstar/base/log.h"
#include "mstar/media/ffmpeg_module.h"
#include "mstar/media/frame_reader.h"

namespace mstar {
namespace {

constexpr char kFileName[] = "mstar_media_ffmpeg.so";

// MSTAR_FFMPEG_MODULE names the file itself, or is empty for none; else beside the executable, or in ../lib/mstar from
// it.
std::vector<std::string> module_paths() {
  if (const char* path = std::getenv("MSTAR_FFMPEG_MODULE"))
    return *path ? std::vector<std::string>{path} : std::vector<std::string>{};
  std::string executable(PATH_MAX, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", executable.data(), executable.size());
  if (length <= 0) return {};
  executable.resize(static_cast<std::size_t>(length));
  const std::string directory = executable.substr(0, executable.rfind('/') + 1);
  return {directory + kFileName, directory + "../lib/mstar/" + kFileName};
}

const mstar_ffmpeg_functions* load_module() {
  for (const std::string& path : module_paths()) {
    if (::access(path.c_str(), R_OK) != 0) continue;
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      log_warn("the FFmpeg module {} does not load: {}", path, ::dlerror());
      continue;
    }
    const auto entry = reinterpret_cast<mstar_ffmpeg_entry>(::dlsym(library, MSTAR_FFMPEG_ENTRY_NAME));
    const mstar_ffmpeg_functions* functions = entry ? entry() : nullptr;
    if (functions && functions->abi_version == MSTAR_FFMPEG_ABI_VERSION) return functions;
    log_warn("the FFmpeg module {} is of another version of mstar and is not used", path);
    ::dlclose(library);
  }
  return nullptr;
}

const mstar_ffmpeg_functions* ffmpeg_functions() {
  static const mstar_ffmpeg_functions* const functions = load_module();
  return functions;
}

std::int64_t read_source(void* user, std::int64_t offset, std::uint8_t* out, std::int64_t num_bytes) {
  if (offset < 0 || num_bytes < 0) return -1;
  const auto* source = static_cast<const ByteSource*>(user);
  const std::span<std::uint8_t> target(out, static_cast<std::size_t>(num_bytes));
  const auto got = source->read_at(static_cast<std::uint64_t>(offset), std::as_writable_bytes(target));
  return got ? static_cast<std::int64_t>(*got) : -1;
}

class FfmpegReader final : public FrameReader {
 public:
  explicit FfmpegReader(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}
  ~FfmpegReader() override {
    if (stream_) ffmpeg_functions()->close(stream_);
  }
  FfmpegReader(const FfmpegReader&) = delete;
  FfmpegReader& operator=(const FfmpegReader&) = delete;

  Status open(Container container) {
    // The callback only reads; the C interface has no const user pointer.
    bytes_ = {const_cast<ByteSource*>(source_.get()), static_cast<std::int64_t>(source_->size_bytes()), read_source};
    format_.container = container_name(container);
    mstar_ffmpeg_format found = {};
    mstar_ffmpeg_error error = {};
    stream_ = ffmpeg_functions()->open(&bytes_, &found, &error);
    if (!stream_) return refused(error);
    format_.rate_hz = static_cast<std::uint32_t>(std::max(found.rate_hz, 0));
    format_.num_channels = static_cast<std::uint32_t>(std::max(found.num_channels, 0));
    if (found.num_frames > 0) format_.num_frames = static_cast<std::uint64_t>(found.num_frames);
    return check_audio_format(format_);
  }
  const AudioFormat& format() const override { return format_; }
  Result<std::size_t> read(std::span<float> interleaved) override {
    const auto max_frames = static_cast<std::int64_t>(interleaved.size() / format_.num_channels);
    mstar_ffmpeg_error error = {};
    const std::int64_t got = ffmpeg_functions()->read(stream_, interleaved.data(), max_frames, &error);
    if (got < 0) return refused(error);
    return static_cast<std::size_t>(got);
  }

 private:
  Error refused(const mstar_ffmpeg_error& error) const {
    return invalid_request("the " + format_.container + " file is damaged or cannot be decoded: " + error.text);
  }

  std::shared_ptr<const ByteSource> source_;
  mstar_ffmpeg_bytes bytes_ = {};
  mstar_ffmpeg_stream* stream_ = nullptr;
  AudioFormat format_;
};

}  // namespace

bool has_ffmpeg() { return ffmpeg_functions() != nullptr; }

Result<std::unique_ptr<FrameReader>> open_ffmpeg(std::shared_ptr<const ByteSource> bytes, Container container) {
  if (!has_ffmpeg()) return unavailable("the FFmpeg module is not installed");
  auto reader = std::make_unique<FfmpegReader>(std::move(bytes));
  MSTAR_TRY(reader->open(container));
  return std::unique_ptr<FrameReader>(std::move(reader));
}

}  // namespace mstar
