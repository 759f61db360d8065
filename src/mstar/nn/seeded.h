// Weights made in code, for models without a checkpoint: the same numbers on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mstar/nn/linear.h"

namespace mstar::nn {

// Number `index` of `name` is uniform in [-1, 1), a multiple of 2^-23: the top 24 bits of splitmix64's output for the
// state (seed ^ FNV-1a(name)) + (index + 1) * 0x9E3779B97F4A7C15.
float seeded_number(std::uint64_t seed, std::string_view name, std::uint64_t index);

// Thread: any.
class SeededWeights {
 public:
  SeededWeights(Device& device, std::uint64_t seed) : device_(device), seed_(seed) {}

  float at(std::string_view name, std::uint64_t index) const { return seeded_number(seed_, name, index); }
  // Row-major, number i times `scale`.
  Result<Tensor> tensor(std::string_view name, const Shape& shape, float scale = 1.0f) const;
  // NAME.weight [num_outputs, num_inputs] times sqrt(3 / num_inputs) (inputs of variance 1 give outputs of variance 1)
  // and NAME.bias [num_outputs] times 0.1, in f32.
  Result<Linear> linear(const std::string& name, int num_outputs, int num_inputs, bool has_bias = true) const;
  Device& device() const { return device_; }

 private:
  Device& device_;
  std::uint64_t seed_;
};

}  // namespace mstar::nn
