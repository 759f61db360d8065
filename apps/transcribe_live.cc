#include "transcribe_live.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

#include "mstar/live/live_hearing.h"
#include "mstar/media/resampler.h"
#include "mstar/models/silero/voice_weights.h"
#include "runtime.h"
#include "signals.h"
#include "weight_cache.h"

namespace mstar::apps {
namespace {

constexpr std::chrono::milliseconds kTick{100};

int complain(const Error& error, int status) {
  std::fprintf(stderr, "mstar: %s\n", error.message.c_str());
  return status;
}

// A line for each turn; its words as they become certain.
class LiveLines {
 public:
  void tell(const LiveEvent& event) {
    std::lock_guard lock(mutex_);
    if (event.kind == LiveEvent::Kind::delta) {
      std::fwrite(event.text.data(), 1, event.text.size(), stdout);
      std::fflush(stdout);
      is_open_ = true;
    } else if (event.kind == LiveEvent::Kind::completed) {
      end_line();
    } else if (event.kind == LiveEvent::Kind::failed) {
      end_line();
      std::fprintf(stderr, "mstar: %s\n", event.error.message.c_str());
      num_failed_ = num_failed_ + 1;
    }
  }
  void end_line() {
    if (std::exchange(is_open_, false)) std::fputc('\n', stdout);
    std::fflush(stdout);
  }
  int num_failed() const { return num_failed_; }

 private:
  std::mutex mutex_;
  bool is_open_ = false;
  std::atomic<int> num_failed_{0};
};

// 16-bit samples of any channels and rate, as mono ones of the voice's rate.
class LiveSound {
 public:
  LiveSound(const LiveFormat& format, LiveHearing& hearing)
      : num_channels_(static_cast<std::size_t>(format.num_channels)), hearing_(hearing) {
    if (format.rate_hz != kVoiceRateHz) resampler_ = std::make_unique<Resampler>(format.rate_hz, kVoiceRateHz);
  }
  void push(std::string_view bytes) {
    rest_ += bytes;
    const std::size_t frame_bytes = 2 * num_channels_, count = rest_.size() / frame_bytes;
    std::vector<float> mono(count);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (std::size_t c = 0; c < num_channels_; ++c) {
        std::int16_t sample = 0;
        std::memcpy(&sample, rest_.data() + i * frame_bytes + 2 * c, sizeof sample);
        sum += static_cast<float>(sample);
      }
      mono[i] = sum / (32768.0f * static_cast<float>(num_channels_));
    }
    rest_.erase(0, count * frame_bytes);
    if (!resampler_) return hearing_.append(mono);
    std::vector<float> out(4096);
    for (std::span<const float> left(mono); !left.empty();) {
      const Resampler::Progress progress = resampler_->push(left, out);
      left = left.subspan(progress.num_consumed);
      hearing_.append(std::span<const float>(out).first(progress.num_produced));
    }
  }

 private:
  const std::size_t num_channels_;
  LiveHearing& hearing_;
  std::unique_ptr<Resampler> resampler_;
  std::string rest_;  // of a frame
};

std::uint32_t number_at(std::string_view bytes, std::size_t at, int count) {
  std::uint32_t out = 0;
  for (int i = 0; i < count; ++i)
    out |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)])) << (8 * i);
  return out;
}

}  // namespace

Result<std::optional<LiveFormat>> live_format(std::string_view begin, const LiveFormat& raw) {
  constexpr std::size_t kMostHeader = 4096;
  if (begin.size() < 12) return std::optional<LiveFormat>();
  for (const char* const other : {"fLaC", "OggS", "ID3", "\x1A\x45\xDF\xA3"})
    if (begin.starts_with(other))
      return invalid_request(
          "--live reads WAV or raw 16-bit samples; pipe it through ffmpeg -i - -f s16le -ar 16000 -ac 1 -");
  if (!begin.starts_with("RIFF") || begin.substr(8, 4) != "WAVE") return std::optional(raw);
  LiveFormat out;
  bool has_format = false;
  for (std::size_t at = 12; at + 8 <= begin.size();) {
    const std::string_view name = begin.substr(at, 4);
    const std::uint32_t size = number_at(begin, at + 4, 4);
    if (name == "data") {
      if (!has_format) return invalid_request("the WAV stream has samples before it says what they are");
      out.header_bytes = at + 8;
      return std::optional(out);
    }
    if (name == "fmt ") {
      if (at + 24 > begin.size()) break;
      const std::uint32_t tag = number_at(begin, at + 8, 2), bits = number_at(begin, at + 22, 2);
      out.num_channels = static_cast<int>(number_at(begin, at + 10, 2));
      out.rate_hz = number_at(begin, at + 12, 4);
      if ((tag != 1 && tag != 0xFFFE) || bits != 16 || out.num_channels < 1 || out.num_channels > 8 ||
          out.rate_hz < 8000 || out.rate_hz > 192000)
        return invalid_request("--live reads WAV of 16-bit samples, 1 to 8 channels and 8 to 192 kHz");
      has_format = true;
    }
    at += 8 + static_cast<std::size_t>(size) + (size & 1);
  }
  if (begin.size() >= kMostHeader) return invalid_request("the WAV stream has no samples within its first 4096 bytes");
  return std::optional<LiveFormat>();
}

int run_transcribe_live(const TranscribeFlags& flags, const RuntimeConfig& config) {
  if (flags.files.size() != 1 || flags.files.front() != "-")
    return complain(invalid_request("--live hears standard input: mstar transcribe --live -"), 2);
  if (!flags.output.empty() || flags.format != "txt")
    return complain(invalid_request("--live writes text to standard output; leave out --output and --format"), 2);
  auto network = models::VoiceWeights(find_model("silero-vad")).get();
  if (!network) return complain(network.error(), 1);
  auto runtime = Runtime::build(config);
  if (!runtime) return complain(runtime.error(), 1);
  LiveOptions options{
      .model = (*runtime)->frontend().models().front().name, .fields = flags.params, .turns = TurnOptions{}};
  if (!flags.language.empty()) options.fields.set("language", flags.language);
  if (!flags.prompt.empty()) options.fields.set("prompt", flags.prompt);
  options.fields.set("task", flags.task);
  LiveLines lines;
  const auto hearing = std::make_shared<LiveHearing>((*runtime)->frontend(), *network, std::move(options),
                                                     [&lines](LiveEvent event) { lines.tell(event); });
  std::atomic<bool> stopped{false};
  const SignalWatch signals([&](int signal, int count) {
    if (count > 1) ::_exit(exit_status_of(signal));
    stopped = true;
  });
  if (!flags.quiet) std::fprintf(stderr, "listening; Ctrl-C ends it\n");
  LiveFormat raw;
  raw.rate_hz = flags.rate;
  raw.num_channels = flags.num_channels;
  std::optional<LiveSound> sound;
  std::string begin, bytes(32768, '\0');
  while (!stopped) {
    hearing->tick();
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, static_cast<int>(kTick.count())) <= 0) continue;
    // A file is read no faster than it is heard.
    if (hearing->backlog_s() > 60) {
      std::this_thread::sleep_for(kTick);
      continue;
    }
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    if (sound) {
      sound->push(std::string_view(bytes).substr(0, static_cast<std::size_t>(count)));
      continue;
    }
    begin.append(bytes, 0, static_cast<std::size_t>(count));
    auto format = live_format(begin, raw);
    if (!format) return complain(format.error(), 2);
    if (!*format) continue;
    sound.emplace(**format, *hearing);
    sound->push(std::string_view(begin).substr((*format)->header_bytes));
  }
  hearing->commit();
  while (!hearing->is_idle()) {
    hearing->tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  hearing->close();
  lines.end_line();
  return lines.num_failed() > 0 ? 1 : 0;
}

}  // namespace mstar::apps
