#include "mstar/models/silero/silero.h"

#include <nlohmann/json.hpp>

#include "mstar/media/speech_sound.h"
#include "mstar/models/silero/voice_options.h"
#include "mstar/models/silero/voice_weights.h"

namespace mstar::models {
namespace {

using namespace decl;

class VoiceStage final : public HostStage {
 public:
  explicit VoiceStage(std::shared_ptr<const VoiceNetwork> network) : network_(std::move(network)) {}

  Result<HostOutputs> run(const HostInputs& inputs) override {
    const HostValue& file = inputs.ports[0].front();
    MSTAR_TRY_ASSIGN(const SpeechOptions options, read_speech_options(inputs.params->fields, "", {}));
    auto source = AudioSource::open(file.bytes(), file.owner());
    if (!source) return std::move(source.error()).with_field("file");
    auto found = find_speech(*source, network_, options, [&] { return inputs.is_abandoned(); });
    if (!found) return std::move(found.error()).with_field("file");
    const auto seconds = [](std::int64_t samples) { return static_cast<double>(samples) / kVoiceRateHz; };
    nlohmann::json json = {{"segments", nlohmann::json::array()}, {"duration", seconds(found->num_samples)}};
    for (const SpeechSegment& each : found->segments)
      json["segments"].push_back({{"start", seconds(each.begin)}, {"end", seconds(each.end)}});
    HostOutputs out;
    out.ports = {{HostValue::utf8(json.dump())}};
    return out;
  }

 private:
  std::shared_ptr<const VoiceNetwork> network_;
};

class OneWalk final : public Plan {
 public:
  explicit OneWalk(WalkRef walk) : walk_(walk) {}
  Result<Decision> next(const PlanView& view) override {
    if (!view.finished.valid()) return Decision(NextWalk{.walk = walk_});
    return Decision(Done{Finish::stop});
  }

 private:
  WalkRef walk_;
};

Result<Intake> intake(PortRef file, const ApiRequest& request) {
  if (request.media.size() != 1 || request.media[0].modality != Modality::audio)
    return std::move(invalid_request("one audio file, please")).with_field("file");
  MSTAR_TRY(read_speech_options(request.fields, "", {}));
  Intake out;
  out.inputs[file] = {request.media[0].bytes};
  out.params.fields = request.fields;
  out.params.output_modalities = {Modality::text};
  return out;
}

}  // namespace

bool silero_recognises(const ModelSource& source) {
  const weights::Checkpoint& checkpoint = *source.checkpoint;
  return (checkpoint.find("stft_conv.weight") && checkpoint.find("lstm_cell.weight_ih")) ||
         checkpoint.find("model.stft.forward_basis_buffer");
}

Result<Decl> declare_silero(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(const auto network, read_voice_network(*source.checkpoint));
  Decl d(source.name.empty() ? "silero-vad" : source.name);
  const PortRef file = d.port({.name = "file", .dtype = DType::bytes, .axes = {{"bytes"}}, .travel = {FromRequest{}}});
  const PortRef speech = d.port({.name = "speech", .dtype = DType::utf8, .travel = {ToClient{Modality::text, "utf8"}}});
  const ComponentRef voice = d.component(HostComponent{
      .name = "voice", .make = [network](const RequestParams&) { return std::make_unique<VoiceStage>(network); }});
  const WalkRef listen = d.walk("listen", Run{voice, {file}, {speech}});
  d.partition(
      {.walks = {listen}, .plan = [listen](const RequestParams&) { return std::make_unique<OneWalk>(listen); }});
  d.surface({.route = Route::generate, .intake = [file](const ApiRequest& request) { return intake(file, request); }});
  return d;
}

}  // namespace mstar::models
