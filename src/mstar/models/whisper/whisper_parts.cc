#include "mstar/models/whisper/whisper_parts.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>

#include "mstar/media/audio_source.h"
#include "mstar/media/speech_sound.h"
#include "mstar/models/silero/voice_options.h"

namespace mstar::models {
namespace {

constexpr std::int64_t kMostSamples = std::int64_t{30} * kVoiceRateHz;  // of a part
constexpr const char* kParallel = "parallel";

Error bad(const char* field, const std::string& message) {
  return std::move(invalid_request("'" + std::string(field) + "' " + message)).with_field(field);
}

// Samples of 16 bits, as AudioSource gives them, as a WAV file.
HostValue wav_of(std::span<const float> samples) {
  const auto data_bytes = static_cast<std::uint32_t>(samples.size() * 2);
  std::string out;
  out.reserve(44 + data_bytes);
  const auto number = [&](std::uint32_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) out += static_cast<char>(value >> (8 * i) & 255);
  };
  out += "RIFF";
  number(36 + data_bytes, 4);
  out += "WAVEfmt ";
  number(16, 4);
  number(1, 2);
  number(1, 2);
  number(kVoiceRateHz, 4);
  number(2 * kVoiceRateHz, 4);
  number(2, 2);
  number(16, 2);
  out += "data";
  number(data_bytes, 4);
  for (const float x : samples)
    number(static_cast<std::uint32_t>(std::clamp(std::lround(x * 32768.0f), -32768L, 32767L)) & 0xffff, 2);
  return HostValue::shared_blob(std::make_shared<const std::string>(std::move(out)));
}

class WhisperParts final : public decl::Splitter {
 public:
  WhisperParts(const decl::ApiRequest& request, AudioSource source, std::shared_ptr<const VoiceNetwork> network,
               const SpeechOptions& options, bool detects_language)
      : part_(request),
        source_(std::move(source)),
        detector_(std::move(network)),
        segments_(options),
        detects_language_(detects_language) {
    Params fields;
    for (const auto& [name, value] : request.fields.values())
      if (name != kParallel && name != "vad_filter" && !name.starts_with("vad_")) fields.set(name, value);
    fields.set("condition_on_previous_text", false);
    part_.fields = std::move(fields);
    part_.media.front().bytes = HostValue();
  }

  Result<std::optional<decl::ApiRequest>> next(const std::function<bool()>& gives_up) override {
    std::vector<SpeechSegment> chosen;
    std::vector<float> sound;
    for (;;) {
      while (!found_.empty()) {
        const SpeechSegment segment = found_.front();
        const std::int64_t count = segment.end - segment.begin;
        if (!sound.empty() && std::ssize(sound) + count > kMostSamples) return part_of(chosen, sound);
        append(segment, sound);
        chosen.push_back(segment);
        found_.pop_front();
      }
      if (ended_) break;
      if (gives_up()) return cancelled("the request has ended");
      MSTAR_TRY(read());
    }
    if (chosen.empty()) return std::optional<decl::ApiRequest>();
    return part_of(chosen, sound);
  }

  bool first_goes_ahead() const override { return detects_language_; }

  void learn(std::size_t part, const Params& metadata) override {
    std::lock_guard lock(mutex_);
    if (part == 0) language_ = metadata.get_string("language", "").value_or("");
  }

  Result<decl::Chunk> restore(std::size_t part, decl::Chunk chunk) override {
    if (chunk.format != "segment") return chunk;
    auto json = nlohmann::json::parse(chunk.value.text(), nullptr, false);
    if (!json.is_object()) return internal_error("a segment that is none");
    std::lock_guard lock(mutex_);
    const SpeechTimes& times = times_[part];
    const double start_s = json.value("start", 0.0), end_s = json.value("end", 0.0);
    json["id"] = num_segments_++;
    json["seek"] = static_cast<std::int64_t>(times.original(0) * 100);
    json["start"] = times.original(start_s);
    json["end"] = times.original(end_s, true);
    if (const auto words = json.find("words"); words != json.end() && !words->empty()) {
      for (auto& word : *words) {
        const double word_start_s = word.value("start", 0.0), word_end_s = word.value("end", 0.0);
        const double middle_s = (word_start_s + word_end_s) / 2;
        word["start"] = times.original_of(word_start_s, middle_s);
        word["end"] = times.original_of(word_end_s, middle_s);
      }
      json["start"] = words->front()["start"];
      json["end"] = words->back()["end"];
    }
    chunk.value = HostValue::utf8(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return chunk;
  }

  Params metadata() const override {
    std::lock_guard lock(mutex_);
    Params out;
    out.set("language", language_.empty() ? given_language() : language_);
    out.set("duration", static_cast<double>(num_samples_) / kVoiceRateHz);
    return out;
  }

 private:
  std::string given_language() const {
    const std::string given = part_.fields.get_string("language", "").value_or("");
    return given.empty() ? "en" : given;
  }

  // A second of sound, and what it makes certain.
  Status read() {
    const std::size_t at = samples_.size();
    samples_.resize(at + kVoiceRateHz);
    auto got = source_.read(std::span<float>(samples_).subspan(at));
    if (!got) return std::move(got.error()).with_field("file");
    samples_.resize(at + *got);
    probabilities_.clear();
    detector_.push(std::span<const float>(samples_).subspan(at), probabilities_);
    ended_ = *got < kVoiceRateHz;
    if (ended_) detector_.finish(probabilities_);
    std::vector<SpeechSegment> found;
    for (const float each : probabilities_) segments_.push(each, found);
    std::int64_t num_samples = 0;
    {
      std::lock_guard lock(mutex_);
      num_samples = num_samples_ += static_cast<std::int64_t>(*got);
    }
    if (ended_) segments_.finish(num_samples, found);
    found_.insert(found_.end(), found.begin(), found.end());
    // Nothing before the next stretch is asked for again.
    const std::int64_t needed = found_.empty() ? segments_.next_begin() : found_.front().begin;
    const std::int64_t useless = std::clamp<std::int64_t>(needed - dropped_, 0, std::ssize(samples_));
    samples_.erase(samples_.begin(), samples_.begin() + useless);
    dropped_ += useless;
    return ok_status();
  }

  void append(SpeechSegment segment, std::vector<float>& sound) const {
    const std::int64_t begin = std::clamp<std::int64_t>(segment.begin - dropped_, 0, std::ssize(samples_));
    const std::int64_t end = std::clamp<std::int64_t>(segment.end - dropped_, begin, std::ssize(samples_));
    sound.insert(sound.end(), samples_.begin() + begin, samples_.begin() + end);
  }

  Result<std::optional<decl::ApiRequest>> part_of(const std::vector<SpeechSegment>& chosen, std::vector<float>& sound) {
    constexpr std::size_t kLeast = kVoiceRateHz / 2;
    if (sound.size() < kLeast) sound.resize(kLeast, 0.0f);
    decl::ApiRequest out = part_;
    out.media.front().bytes = wav_of(sound);
    std::lock_guard lock(mutex_);
    times_.emplace_back(chosen);
    if (detects_language_ && !language_.empty()) out.fields.set("language", language_);
    return std::optional<decl::ApiRequest>(std::move(out));
  }

  decl::ApiRequest part_;  // without its sound
  AudioSource source_;
  VoiceDetector detector_;
  SpeechSegments segments_;
  const bool detects_language_;
  std::deque<SpeechSegment> found_;  // that are in no part yet
  std::vector<float> samples_;       // from dropped_ on
  std::int64_t dropped_ = 0;
  bool ended_ = false;
  std::vector<float> probabilities_;
  mutable std::mutex mutex_;  // guards the next four
  std::vector<SpeechTimes> times_;
  std::string language_;
  std::int64_t num_segments_ = 0;
  std::int64_t num_samples_ = 0;
};

}  // namespace

Result<std::unique_ptr<decl::Splitter>> split_whisper(const std::shared_ptr<const WhisperConfig>& config,
                                                      const decl::ApiRequest& request) {
  MSTAR_TRY_ASSIGN(const bool wanted, request.fields.get_bool(kParallel, false));
  if (!wanted) return std::unique_ptr<decl::Splitter>();
  if (request.media.size() != 1) return std::unique_ptr<decl::Splitter>();  // the intake says what is wrong
  for (const char* const field : {"clip_timestamps", "hallucination_silence_threshold"})
    if (request.fields.has(field)) return bad(kParallel, "and '" + std::string(field) + "' exclude each other");
  SpeechOptions defaults;
  defaults.min_speech_duration_ms = 0;
  defaults.max_speech_duration_s = 30;
  defaults.min_silence_duration_ms = 160;
  defaults.speech_pad_ms = 400;
  defaults.cuts_at_longest_silence = false;
  MSTAR_TRY_ASSIGN(SpeechOptions options, read_speech_options(request.fields, "vad_", defaults));
  options.max_speech_duration_s = std::min(options.max_speech_duration_s, 30.0);
  MSTAR_TRY_ASSIGN(auto network, config->voice->get());
  const HostValue& file = request.media.front().bytes;
  auto source = AudioSource::open(file.bytes(), file.owner());
  if (!source) return std::move(source.error()).with_field("file");
  const std::string language = request.fields.get_string("language", "").value_or("");
  return std::unique_ptr<decl::Splitter>(std::make_unique<WhisperParts>(
      request, std::move(*source), std::move(network), options, config->tokens.multilingual && language.empty()));
}

}  // namespace mstar::models
