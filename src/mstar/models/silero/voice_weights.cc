#include "mstar/models/silero/voice_weights.h"

#include <cstring>
#include <string_view>
#include <utility>

namespace mstar::models {
namespace {

// What silero_vad_16k_op15.onnx calls the safetensors file's arrays.
std::string onnx_name(const std::string& name) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"stft_conv.weight", "stft.forward_basis_buffer"},
                                                            {"conv1.", "encoder.0.reparam_conv."},
                                                            {"conv2.", "encoder.1.reparam_conv."},
                                                            {"conv3.", "encoder.2.reparam_conv."},
                                                            {"conv4.", "encoder.3.reparam_conv."},
                                                            {"lstm_cell.", "decoder.rnn."},
                                                            {"final_conv.", "decoder.decoder.2."}};
  for (const auto& [ours, theirs] : kNames)
    if (name.starts_with(ours)) return "model." + (theirs + name.substr(std::string_view(ours).size()));
  return name;
}

}  // namespace

Result<std::shared_ptr<const VoiceNetwork>> read_voice_network(const weights::Checkpoint& checkpoint) {
  return VoiceNetwork::create([&](const std::string& name) -> Result<std::vector<float>> {
    const weights::StoredWeight* weight = checkpoint.find(name);
    if (!weight) weight = checkpoint.find(onnx_name(name));
    if (!weight) return bad_model("the voice network has no '" + name + "'");
    if (weight->type.is_blocks() || weight->type.dtype() != DType::f32)
      return bad_model("'" + name + "' of the voice network is not f32");
    std::vector<float> out(weight->bytes.size() / sizeof(float));
    std::memcpy(out.data(), weight->bytes.data(), out.size() * sizeof(float));
    return out;
  });
}

Result<std::shared_ptr<const VoiceNetwork>> VoiceWeights::get() const {
  std::lock_guard lock(mutex_);
  if (network_) return network_;
  const auto read = [&]() -> Result<std::shared_ptr<const VoiceNetwork>> {
    std::error_code ignored;
    if (!std::filesystem::exists(directory_, ignored)) return bad_model("there are no such weights");
    MSTAR_TRY_ASSIGN(const auto checkpoint, weights::Checkpoint::open(directory_));
    return read_voice_network(*checkpoint);
  }();
  if (!read)
    return std::move(invalid_request("voice activity needs the weights silero-vad (" + read.error().message +
                                     "); ./dev weights silero-vad fetches them"))
        .with_field("vad_filter");
  network_ = *read;
  return network_;
}

}  // namespace mstar::models
