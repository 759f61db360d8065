#include "mstar/models/whisper/whisper_stages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/media/audio_source.h"
#include "mstar/media/speech_sound.h"
#include "mstar/media/wav_layout.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/models/whisper/whisper_options.h"
#include "mstar/ops/mel/mel.h"

namespace mstar::models {
namespace {

constexpr std::int64_t kMinSamples = kMelSampleRate / 10;
constexpr std::int64_t kHalfWindow = kMelWindowSamples / 2;
constexpr std::size_t kChunk = 1 << 15;  // samples decoded at a time

// Grows without zeros in what is to be written anyway.
template <class T>
struct UnsetAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = UnsetAllocator<U>;
  };
  template <class U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Args>
  void construct(U* at, Args&&... args) {
    std::construct_at(at, std::forward<Args>(args)...);
  }
};
using Samples = std::vector<float, UnsetAllocator<float>>;

// ---- audio
// -------------------------------------------------------------------------------------------------------------

class AudioStage final : public decl::HostStage {
 public:
  AudioStage(std::shared_ptr<const WhisperConfig> config, const decl::RequestParams& params)
      : config_(std::move(config)),
        speech_options_(WhisperOptions::read(params.fields).value_or({}).speech) {}  // checked at intake

  struct Window {  // what a window's mels are made of
    Samples pcm;
    std::array<std::int32_t, kWindowFields> fields;
    float maximum;  // of the recording's mels; NaN: of these
    float length_s;
    HostValue speech;
  };

  Result<Window> hear(const decl::HostInputs& inputs) {
    const auto span = inputs.ports[1].front().as<std::int32_t>();
    const std::int64_t seek = span[0], clip_end = span[1];
    if (!source_) {
      MSTAR_TRY(open(inputs.ports[0].front(), inputs));
    }
    const std::int64_t window_frames = config_->window_frames();
    // The reference sees num_samples / 160 + 1 mel frames, of which the last is content of no window.
    MSTAR_TRY(read_until((seek + window_frames + 1) * kMelHopSamples + kHalfWindow,
                         seek * kMelHopSamples - kHalfWindow - 1, inputs));
    const std::int64_t available = num_samples_ / kMelHopSamples;  // content frames so far; exact once the end was seen
    const bool whole = ended_ && seek == 0 && available <= window_frames;
    if (!whole && !std::isfinite(mel_max_)) {
      MSTAR_TRY(scan_maximum(inputs));
    }
    // Nothing of a clip that lies behind the recording.
    const std::int64_t segment =
        std::max<std::int64_t>(0, std::min({window_frames, available - seek, clip_end - seek}));
    const std::int64_t mel_frames = std::max<std::int64_t>(1, std::min(window_frames + 1, available + 1 - seek));
    Window out;
    out.pcm.resize(static_cast<std::size_t>(mel_samples(mel_frames)));
    if (segment > 0) {
      copy_samples(seek * kMelHopSamples - kHalfWindow, out.pcm);
    } else {
      std::fill(out.pcm.begin(), out.pcm.end(), 0.0f);
    }
    const std::int64_t content = ended_ ? available : std::numeric_limits<std::int32_t>::max();
    out.fields = {static_cast<std::int32_t>(seek), static_cast<std::int32_t>(segment),
                  static_cast<std::int32_t>(mel_frames), static_cast<std::int32_t>(content)};
    out.maximum = whole ? std::numeric_limits<float>::quiet_NaN() : mel_max_;
    out.length_s =
        static_cast<float>(total_seconds_ > 0 ? total_seconds_ : static_cast<double>(num_samples_) / kMelSampleRate);
    out.speech = speech_;
    // Nothing before the next window's first frame is needed again, but where that is only the text will tell.
    drop_before(seek * kMelHopSamples - kHalfWindow - 1);
    return out;
  }

  bool looks_for_speech() const { return speech_options_.has_value(); }

  Result<decl::HostOutputs> run(const decl::HostInputs& inputs) override {
    MSTAR_TRY_ASSIGN(const Window heard, hear(inputs));
    decl::HostOutputs out;
    out.ports = {{HostValue::pcm(heard.pcm)},
                 {HostValue::i32(heard.fields)},
                 {HostValue::f32({&heard.maximum, 1})},
                 {HostValue::f32({&heard.length_s, 1})},
                 {heard.speech}};
    return out;
  }

 private:
  Status open(const HostValue& file, const decl::HostInputs& inputs) {
    file_ = file;
    speech_ = HostValue::i32(std::span<const std::int32_t>());
    auto opened = AudioSource::open(file_.bytes(), file_.owner());
    if (!opened) return std::move(opened.error()).with_field("file");
    source_ = std::make_unique<AudioSource>(std::move(*opened));
    if (speech_options_) return open_speech(inputs);
    // Of what the file says, which may be wrong, as much as the first window needs.
    const double length_s = std::clamp(source_->duration_s().value_or(0), 0.0, 31.0);
    samples_.reserve(static_cast<std::size_t>(length_s * kMelSampleRate) + kChunk);
    while (!ended_ && num_samples_ < kMinSamples) MSTAR_TRY(read_more(inputs));
    return check_length(num_samples_);
  }

  // The recording is what is spoken in it.
  Status open_speech(const decl::HostInputs& inputs) {
    MSTAR_TRY_ASSIGN(auto network, config_->voice->get());
    auto found = find_speech(*source_, std::move(network), *speech_options_, [&] { return inputs.is_abandoned(); });
    if (!found) return std::move(found.error()).with_field("file");
    MSTAR_TRY(check_length(found->num_samples));
    total_seconds_ = static_cast<double>(found->num_samples) / kMelSampleRate;
    std::vector<std::int32_t> ends;
    for (const SpeechSegment& each : found->segments)
      for (const std::int64_t sample : {each.begin, each.end})
        ends.push_back(
            static_cast<std::int32_t>(std::min<std::int64_t>(sample, std::numeric_limits<std::int32_t>::max())));
    // No stretch at all is told by one of no length.
    if (ends.empty()) ends = {0, 0};
    speech_ = HostValue::i32(ends);
    segments_ = std::move(found->segments);
    MSTAR_TRY(source_->rewind());
    spoken_ = std::make_unique<SpeechSound>(std::move(*source_), segments_);
    return ok_status();
  }

  static Status check_length(std::int64_t num_samples) {
    if (num_samples >= kMinSamples) return ok_status();
    return std::move(invalid_request("the audio is " + std::to_string(num_samples * 1000 / kMelSampleRate) +
                                     " ms long; at least 100 ms are needed"))
        .with_field("file");
  }

  // Samples up to `end` are decoded when this returns, or the source has ended; those before `begin` are not kept. A
  // clip may begin hours into a recording: gives up when nobody waits.
  Status read_until(std::int64_t end, std::int64_t begin, const decl::HostInputs& inputs) {
    while (!ended_ && num_samples_ < end) {
      if (inputs.is_abandoned()) return cancelled("the request has ended");
      MSTAR_TRY(read_more(inputs));
      drop_before(std::min(begin, num_samples_));
    }
    return ok_status();
  }

  Status read_more(const decl::HostInputs& inputs) {
    const std::size_t at = samples_.size();
    samples_.resize(at + kChunk);
    const auto to = std::span<float>(samples_).subspan(at);
    auto got = spoken_ ? spoken_->read(to, [&] { return inputs.is_abandoned(); }) : source_->read(to);
    if (!got) return std::move(got.error()).with_field("file");
    samples_.resize(at + *got);
    num_samples_ += static_cast<std::int64_t>(*got);
    ended_ = *got < kChunk;
    return ok_status();
  }

  // The reference normalises by the loudest mel value of the whole recording, so a long one is decoded twice. That may
  // take minutes for one of many hours: gives up when nobody waits.
  Status scan_maximum(const decl::HostInputs& inputs) {
    MSTAR_TRY_ASSIGN(AudioSource again, AudioSource::open(file_.bytes(), file_.owner()));
    std::optional<SpeechSound> spoken;
    if (spoken_) spoken.emplace(std::move(again), segments_);
    auto device = make_cpu_device();
    Arena no_arena;
    OpContext ops{*device, {}, no_arena, nullptr};
    MSTAR_TRY_ASSIGN(const MelPlan plan, MelPlan::make(config_->num_mels));
    constexpr std::int64_t kBlockFrames = 1000;
    std::vector<float> mels(static_cast<std::size_t>(config_->num_mels * (kBlockFrames + 2)));
    std::vector<float> buffer(static_cast<std::size_t>(kHalfWindow));  // reflected before the first sample
    std::int64_t total = 0;
    float maximum = -std::numeric_limits<float>::infinity();
    for (bool end = false; !end;) {
      if (inputs.is_abandoned()) return cancelled("the request has ended");
      const std::size_t wanted = static_cast<std::size_t>(mel_samples(kBlockFrames));
      const std::size_t at = buffer.size();
      buffer.resize(wanted);
      const auto to = std::span<float>(buffer).subspan(at);
      auto got = spoken ? spoken->read(to, [&] { return inputs.is_abandoned(); }) : again.read(to);
      if (!got) return std::move(got.error()).with_field("file");
      end = *got < wanted - at;
      if (total == 0)
        for (std::int64_t i = 0; i < kHalfWindow; ++i)
          buffer[static_cast<std::size_t>(i)] = buffer[static_cast<std::size_t>(2 * kHalfWindow - i)];
      total += static_cast<std::int64_t>(*got);
      std::int64_t frames = kBlockFrames;
      if (end) {
        buffer.resize(at + *got);
        frames = (static_cast<std::int64_t>(buffer.size()) - kHalfWindow) / kMelHopSamples + 1;
        buffer.resize(static_cast<std::size_t>(mel_samples(frames)), 0.0f);
      }
      const TensorView out(mels.data(), DType::f32, {config_->num_mels, frames});
      MSTAR_TRY(log_mel(ops, {.plan = &plan,
                              .pcm = TensorView(buffer.data(), DType::f32, {static_cast<std::int64_t>(buffer.size())}),
                              .out = out}));
      maximum = std::max(maximum, mel_maximum(out));
      if (!end) buffer.erase(buffer.begin(), buffer.begin() + kBlockFrames * kMelHopSamples);
    }
    mel_max_ = maximum;
    if (!spoken_) total_seconds_ = static_cast<double>(total) / kMelSampleRate;
    return ok_status();
  }

  // Samples from `begin` on, as sample_at has them.
  void copy_samples(std::int64_t begin, std::span<float> out) const {
    const std::int64_t count = std::ssize(out);
    const std::int64_t first = std::clamp<std::int64_t>(dropped_ - begin, 0, count);
    const std::int64_t last = std::clamp<std::int64_t>(num_samples_ - begin, first, count);
    for (std::int64_t i = 0; i < first; ++i) out[static_cast<std::size_t>(i)] = sample_at(begin + i);
    if (last > first) std::copy_n(samples_.begin() + (begin + first - dropped_), last - first, out.begin() + first);
    for (std::int64_t i = last; i < count; ++i) out[static_cast<std::size_t>(i)] = sample_at(begin + i);
  }

  // Sample `i` of the recording with numpy's reflection before its start and 160 zeros after its end.
  float sample_at(std::int64_t i) const {
    const std::int64_t padded = num_samples_ + kMelHopSamples;
    while (i < 0 || (ended_ && i >= padded)) i = i < 0 ? -i : 2 * (padded - 1) - i;
    if (i >= num_samples_ || i < dropped_) return 0.0f;
    return samples_[static_cast<std::size_t>(i - dropped_)];
  }

  void drop_before(std::int64_t begin) {
    const std::int64_t count = std::min<std::int64_t>(begin - dropped_, static_cast<std::int64_t>(samples_.size()));
    if (count <= 0) return;
    samples_.erase(samples_.begin(), samples_.begin() + count);
    dropped_ += count;
  }

  std::shared_ptr<const WhisperConfig> config_;
  HostValue file_;
  const std::optional<SpeechOptions> speech_options_;
  std::unique_ptr<AudioSource> source_;
  std::unique_ptr<SpeechSound> spoken_;  // of what is heard, where that is not all
  std::vector<SpeechSegment> segments_;  // of it
  HostValue speech_;                     // their ends, for the next stage
  Samples samples_;                      // [dropped_, num_samples_)
  std::int64_t dropped_ = 0;
  std::int64_t num_samples_ = 0;  // decoded so far
  bool ended_ = false;
  float mel_max_ = std::numeric_limits<float>::infinity();  // not scanned
  double total_seconds_ = 0;
};

// ---- audio and features
// ----------------------------------------------------------------------------------------------------------

class WindowStage final : public decl::HostStage {
 public:
  WindowStage(const std::shared_ptr<const WhisperConfig>& config, const decl::RequestParams& params,
              std::shared_ptr<const MelPlan> plan, std::shared_ptr<FeatureBuffers> buffers)
      : config_(config), plan_(std::move(plan)), buffers_(std::move(buffers)), audio_(config, params) {}

  // What costs no more than to convert and to resample one window: plain samples, for a longer recording is heard whole
  // for its maximum, and compressed audio is many times its bytes.
  bool is_brief(const decl::HostInputs& inputs) const override {
    constexpr std::size_t kMostBytes = 1 << 20;
    constexpr std::uint64_t kPlainSamples = 1, kMostSeconds = 30;
    const HostValue& file = inputs.ports[0].front();
    if (file.bytes().size() > kMostBytes || audio_.looks_for_speech()) return false;
    const auto layout = read_wav_layout(*memory_bytes(file.bytes(), file.owner()));
    return layout && layout->format_tag == kPlainSamples &&
           layout->available_bytes <= kMostSeconds * layout->rate_hz * layout->block_bytes;
  }

  Result<decl::HostOutputs> run(const decl::HostInputs& inputs) override {
    MSTAR_TRY_ASSIGN(const AudioStage::Window window, audio_.hear(inputs));
    MSTAR_TRY_ASSIGN(HostValue features, features_of(window));
    decl::HostOutputs out;
    out.ports = {{std::move(features)},
                 {HostValue::i32(window.fields)},
                 {HostValue::f32({&window.length_s, 1})},
                 {window.speech}};
    return out;
  }

 private:
  // [num_mels, window frames] of what the encoder takes, 0 past the content.
  Result<HostValue> features_of(const AudioStage::Window& window) const {
    const std::int64_t num_mels = plan_->num_mels(), mel_frames = window.fields[kWindowMelFrames];
    auto device = make_cpu_device();
    Arena no_arena;
    OpContext ops{*device, {}, no_arena, nullptr};
    const auto raw = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(num_mels * mel_frames));
    TensorView mels(raw.get(), DType::f32, {num_mels, mel_frames});
    const TensorView pcm(const_cast<float*>(window.pcm.data()), DType::f32, {std::ssize(window.pcm)});
    MSTAR_TRY(log_mel(ops, {.plan = plan_.get(), .pcm = pcm, .out = mels}));
    const float maximum = std::isnan(window.maximum) ? mel_maximum(mels) : window.maximum;

    const DType dtype = config_->mels();
    const std::int64_t frames = config_->window_frames(), content = window.fields[kWindowSegmentFrames];
    const auto bytes = buffers_->take(static_cast<std::size_t>(content) * dtype_bytes(dtype));
    TensorView features(bytes.get(), dtype, {num_mels, frames});
    mels.shape[1] = features.shape[1] = content;
    MSTAR_TRY(mel_normalise(ops, {.x = mels, .maximum = maximum, .out = features}));
    return HostValue::part_of(bytes, dtype, {num_mels, frames}, {bytes.get(), buffers_->size_bytes()});
  }

  std::shared_ptr<const WhisperConfig> config_;
  std::shared_ptr<const MelPlan> plan_;
  std::shared_ptr<FeatureBuffers> buffers_;
  AudioStage audio_;
};

}  // namespace

void encode_prompt(const Tokenizer& tokenizer, std::string_view prompt, decl::RequestParams& params) {
  const std::vector<std::int32_t> ids = prompt_tokens(tokenizer, prompt);
  params.fields.set("prompt", std::vector<double>(ids.begin(), ids.end()));
}

std::vector<std::int32_t> prompt_history(const decl::RequestParams& params) {
  std::vector<std::int32_t> out;
  const auto found = params.fields.values().find("prompt");
  if (found == params.fields.values().end()) return out;
  if (const auto* ids = std::get_if<std::vector<double>>(&found->second))
    for (const double id : *ids) out.push_back(static_cast<std::int32_t>(id));
  return out;
}

std::unique_ptr<decl::HostStage> make_audio_stage(std::shared_ptr<const WhisperConfig> config,
                                                  const decl::RequestParams& params) {
  return std::make_unique<AudioStage>(std::move(config), params);
}
std::unique_ptr<decl::HostStage> make_window_stage(const std::shared_ptr<const WhisperConfig>& config,
                                                   const decl::RequestParams& params,
                                                   std::shared_ptr<const MelPlan> plan,
                                                   std::shared_ptr<FeatureBuffers> buffers) {
  return std::make_unique<WindowStage>(config, params, std::move(plan), std::move(buffers));
}

}  // namespace mstar::models
