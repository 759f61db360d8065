#include "mstar/media/voice_network.h"

#include <algorithm>
#include <cmath>

#include "mstar/base/check.h"
#include "mstar/media/voice_kernel.h"

namespace mstar {
namespace {

constexpr int kWindow = 256, kHop = 128, kPad = 64;  // of the STFT
constexpr int kBins = kWindow / 2 + 1, kColumns = 4;
constexpr int kSamples = VoiceNetwork::kContext + kVoiceFrame;
static_assert((kSamples + kPad - kWindow) / kHop + 1 == kColumns);

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// [outputs][channels][taps] -> [taps][channels][outputs], which a row of `taps` neighbouring columns meets.
std::vector<float> transposed(const std::vector<float>& weight, int outputs, int channels, int taps) {
  std::vector<float> out(weight.size());
  for (int o = 0; o < outputs; ++o)
    for (int c = 0; c < channels; ++c)
      for (int t = 0; t < taps; ++t)
        out[static_cast<std::size_t>((t * channels + c) * outputs + o)] =
            weight[static_cast<std::size_t>((o * channels + c) * taps + t)];
  return out;
}

}  // namespace

Result<std::shared_ptr<const VoiceNetwork>> VoiceNetwork::create(const Weights& weight) {
  const auto read = [&](const std::string& name, std::size_t count) -> Result<std::vector<float>> {
    MSTAR_TRY_ASSIGN(std::vector<float> values, weight(name));
    if (values.size() != count)
      return bad_model("'" + name + "' of the voice network has " + std::to_string(values.size()) + " values, not " +
                       std::to_string(count));
    return values;
  };
  const auto read_conv = [&](Layer& layer, const std::string& name, int outputs, int channels) -> Status {
    constexpr int kTaps = 3;
    MSTAR_TRY_ASSIGN(const auto values, read(name + ".weight", static_cast<std::size_t>(outputs) *
                                                                   static_cast<std::size_t>(channels * kTaps)));
    layer.weight = transposed(values, outputs, channels, kTaps);
    MSTAR_TRY_ASSIGN(layer.bias, read(name + ".bias", static_cast<std::size_t>(outputs)));
    return ok_status();
  };
  std::shared_ptr<VoiceNetwork> out(new VoiceNetwork());
  MSTAR_TRY_ASSIGN(const auto stft, read("stft_conv.weight", std::size_t{2} * kBins * kWindow));
  out->stft_.weight = transposed(stft, 2 * kBins, 1, kWindow);
  MSTAR_TRY(read_conv(out->conv1_, "conv1", 128, kBins));
  MSTAR_TRY(read_conv(out->conv2_, "conv2", 64, 128));
  MSTAR_TRY(read_conv(out->conv3_, "conv3", 64, 64));
  MSTAR_TRY(read_conv(out->conv4_, "conv4", 128, 64));
  constexpr std::size_t kGates = std::size_t{4} * kCells;
  MSTAR_TRY_ASSIGN(const auto inputs, read("lstm_cell.weight_ih", kGates * kCells));
  MSTAR_TRY_ASSIGN(const auto hidden, read("lstm_cell.weight_hh", kGates * kCells));
  out->lstm_.weight = transposed(inputs, kGates, kCells, 1);
  const auto more = transposed(hidden, kGates, kCells, 1);
  out->lstm_.weight.insert(out->lstm_.weight.end(), more.begin(), more.end());
  MSTAR_TRY_ASSIGN(out->lstm_.bias, read("lstm_cell.bias_ih", kGates));
  MSTAR_TRY_ASSIGN(const auto bias, read("lstm_cell.bias_hh", kGates));
  for (std::size_t i = 0; i < kGates; ++i) out->lstm_.bias[i] += bias[i];
  MSTAR_TRY_ASSIGN(out->last_, read("final_conv.weight", kCells));
  MSTAR_TRY_ASSIGN(const auto last_bias, read("final_conv.bias", 1));
  out->last_bias_ = last_bias.front();
  return std::shared_ptr<const VoiceNetwork>(std::move(out));
}

float VoiceNetwork::step(std::span<const float> frame, State& state) const {
  MSTAR_CHECK(frame.size() == kVoiceFrame, "a frame of the voice network has 512 samples");
  std::array<float, kSamples + kPad> sound;
  std::copy(state.context.begin(), state.context.end(), sound.begin());
  std::copy(frame.begin(), frame.end(), sound.begin() + kContext);
  for (int i = 0; i < kPad; ++i)
    sound[static_cast<std::size_t>(kSamples + i)] = sound[static_cast<std::size_t>(kSamples - 2 - i)];
  std::copy(frame.end() - kContext, frame.end(), state.context.begin());

  std::array<float, std::size_t{kColumns} * 2 * kBins> spectrum;
  voice_products(sound.data(), kHop, kColumns, kWindow, stft_.weight.data(), nullptr, 2 * kBins, false,
                 spectrum.data());
  // A column of zeros stands on both sides of what a convolution reads.
  std::array<float, std::size_t{kColumns + 2}* kBins> magnitudes = {};
  for (int c = 0; c < kColumns; ++c)
    for (int b = 0; b < kBins; ++b) {
      const float re = spectrum[static_cast<std::size_t>(c * 2 * kBins + b)];
      const float im = spectrum[static_cast<std::size_t>(c * 2 * kBins + kBins + b)];
      magnitudes[static_cast<std::size_t>((c + 1) * kBins + b)] = std::sqrt(re * re + im * im);
    }
  std::array<float, std::size_t{6}* 128> first = {};
  std::array<float, std::size_t{4}* 64> second = {};
  std::array<float, std::size_t{3}* 64> third = {};
  std::array<float, std::size_t{2} * kCells> both;  // the last convolution's column, and the hidden state
  voice_products(magnitudes.data(), kBins, 4, 3 * kBins, conv1_.weight.data(), conv1_.bias.data(), 128, true,
                 first.data() + 128);
  voice_products(first.data(), 2 * 128, 2, 3 * 128, conv2_.weight.data(), conv2_.bias.data(), 64, true,
                 second.data() + 64);
  voice_products(second.data(), 2 * 64, 1, 3 * 64, conv3_.weight.data(), conv3_.bias.data(), 64, true,
                 third.data() + 64);
  voice_products(third.data(), 64, 1, 3 * 64, conv4_.weight.data(), conv4_.bias.data(), kCells, true, both.data());
  std::copy(state.hidden.begin(), state.hidden.end(), both.begin() + kCells);

  std::array<float, std::size_t{4} * kCells> gates;
  voice_products(both.data(), 0, 1, 2 * kCells, lstm_.weight.data(), lstm_.bias.data(), 4 * kCells, false,
                 gates.data());
  float sum = last_bias_;
  for (std::size_t i = 0; i < kCells; ++i) {
    const float in = sigmoid(gates[i]), forget = sigmoid(gates[kCells + i]);
    const float fresh = std::tanh(gates[2 * kCells + i]), out = sigmoid(gates[3 * kCells + i]);
    state.cell[i] = forget * state.cell[i] + in * fresh;
    state.hidden[i] = out * std::tanh(state.cell[i]);
    sum += last_[i] * std::max(state.hidden[i], 0.0f);
  }
  return sigmoid(sum);
}

void VoiceDetector::push(std::span<const float> samples, std::vector<float>& probabilities) {
  while (!samples.empty()) {
    const std::size_t count = std::min(samples.size(), frame_.size() - num_filled_);
    std::copy_n(samples.begin(), count, frame_.begin() + static_cast<std::ptrdiff_t>(num_filled_));
    num_filled_ += count;
    samples = samples.subspan(count);
    if (num_filled_ < frame_.size()) return;
    probabilities.push_back(network_->step(frame_, state_));
    num_filled_ = 0;
  }
}

void VoiceDetector::finish(std::vector<float>& probabilities) {
  if (num_filled_ > 0) {
    std::fill(frame_.begin() + static_cast<std::ptrdiff_t>(num_filled_), frame_.end(), 0.0f);
    probabilities.push_back(network_->step(frame_, state_));
  }
  num_filled_ = 0;
  state_ = {};
}

}  // namespace mstar
