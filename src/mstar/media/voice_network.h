// Whether there is speech in sound: the Silero VAD network for 16 kHz.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mstar/base/result.h"

namespace mstar {

inline constexpr int kVoiceRateHz = 16000;
inline constexpr int kVoiceFrame = 512;  // samples that one probability is for, 32 ms

// Source: silero-vad 6.2 (MIT): magnitudes of an STFT, four convolutions, an LSTM of 128 cells. Its package's model is
// silero_vad_16k_op15.onnx; silero_vad_16k.safetensors has the same arrays with numbers of an older one.
// Immutable; thread: any.
class VoiceNetwork {
 public:
  // `weight` gives the values of an array by its name in the safetensors file, in its order; a length that is not
  // expected is bad_model.
  using Weights = std::function<Result<std::vector<float>>(const std::string& name)>;
  static Result<std::shared_ptr<const VoiceNetwork>> create(const Weights& weight);

  static constexpr int kContext = 64, kCells = 128;
  // What goes from one frame to the next.
  struct State {
    std::array<float, kContext> context = {};  // the frame's last samples
    std::array<float, kCells> hidden = {}, cell = {};
  };
  // The probability of speech in a frame of kVoiceFrame samples. About 30 us on one core with AVX2. The bits do not
  // depend on how sound comes, but on the processor's instructions.
  float step(std::span<const float> frame, State& state) const;

 private:
  struct Layer {  // [inputs][outputs]
    std::vector<float> weight, bias;
  };
  VoiceNetwork() = default;

  Layer stft_, conv1_, conv2_, conv3_, conv4_, lstm_;
  std::vector<float> last_;
  float last_bias_ = 0;
};

// Sound as it comes, into probabilities. Thread: one owner.
class VoiceDetector {
 public:
  explicit VoiceDetector(std::shared_ptr<const VoiceNetwork> network) : network_(std::move(network)) {}
  // Samples of 16 kHz in pieces of any length; appends one probability for each frame that is whole.
  void push(std::span<const float> samples, std::vector<float>& probabilities);
  // The last frame, filled up with zeros, if one has begun. The detector is then as new.
  void finish(std::vector<float>& probabilities);

 private:
  std::shared_ptr<const VoiceNetwork> network_;
  VoiceNetwork::State state_;
  std::array<float, kVoiceFrame> frame_ = {};
  std::size_t num_filled_ = 0;
};

}  // namespace mstar
