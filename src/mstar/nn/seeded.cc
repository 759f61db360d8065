#include "mstar/nn/seeded.h"

#include <cmath>
#include <vector>

namespace mstar::nn {

float seeded_number(std::uint64_t seed, std::string_view name, std::uint64_t index) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  std::uint64_t z = (seed ^ hash) + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
}

Result<Tensor> SeededWeights::tensor(std::string_view name, const Shape& shape, float scale) const {
  std::vector<float> numbers(static_cast<std::size_t>(shape.num_elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = at(name, i) * scale;
  MSTAR_TRY_ASSIGN(Tensor out, Tensor::allocate(device_, DType::f32, shape));
  device_.copy_to_device(out.view().pointer, numbers.data(), out.bytes(), device_.default_stream());
  device_.synchronize(device_.default_stream());
  return out;
}

Result<Linear> SeededWeights::linear(const std::string& name, int num_outputs, int num_inputs, bool has_bias) const {
  const float scale = std::sqrt(3.0f / static_cast<float>(num_inputs));
  std::vector<float> numbers(static_cast<std::size_t>(num_outputs) * static_cast<std::size_t>(num_inputs));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = at(name + ".weight", i) * scale;
  Tensor bias;
  if (has_bias) {
    MSTAR_TRY_ASSIGN(bias, tensor(name + ".bias", {num_outputs}, 0.1f));
  }
  const TensorView weight(numbers.data(), DType::f32, {num_outputs, num_inputs});
  return Linear::pack(device_, weight, std::move(bias), DType::f32);
}

}  // namespace mstar::nn
