// Checkpoint::dummy: seeded numbers in place of a model's weights.
#include <algorithm>
#include <cstring>
#include <random>

#include "mstar/weights/checkpoint.h"

namespace mstar::weights {
namespace {

constexpr std::size_t kSeededNumbers = std::size_t{1} << 20;  // repeated; arrays begin at different places of them

std::uint16_t to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

std::size_t num_elements(const DummyWeight& weight) { return static_cast<std::size_t>(weight.shape.num_elements()); }

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::dummy(const std::filesystem::path& directory,
                                                      std::span<const DummyWeight> weights, std::uint64_t seed) {
  std::size_t longest = 0, longest_fixed = 0;
  for (const DummyWeight& each : weights) {
    std::size_t& most = each.fill == DummyWeight::Fill::normal ? longest : longest_fixed;
    most = std::max(most, num_elements(each));
  }
  std::unique_ptr<Checkpoint> out(new Checkpoint(directory, Format::safetensors));
  const std::size_t num_seeded = std::max(longest, kSeededNumbers) + kSeededNumbers;
  out->made_.resize(num_seeded + 2 * longest_fixed);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (std::size_t i = 0; i < kSeededNumbers; ++i) out->made_[i] = to_bf16(normal(random));
  for (std::size_t i = kSeededNumbers; i < num_seeded; i += kSeededNumbers)
    std::copy_n(out->made_.begin(), std::min(kSeededNumbers, num_seeded - i),
                out->made_.begin() + static_cast<std::ptrdiff_t>(i));
  const std::size_t ones = num_seeded, zeros = num_seeded + longest_fixed;
  std::fill_n(out->made_.begin() + static_cast<std::ptrdiff_t>(ones), longest_fixed, to_bf16(1.0f));
  for (const DummyWeight& each : weights) {
    const std::size_t begin = each.fill == DummyWeight::Fill::ones    ? ones
                              : each.fill == DummyWeight::Fill::zeros ? zeros
                                                                      : random() % kSeededNumbers;
    const std::span<const std::uint16_t> numbers(out->made_.data() + begin, num_elements(each));
    out->weights_.push_back({each.name, DType::bf16, each.shape, std::as_bytes(numbers), "dummy weights"});
  }
  MSTAR_TRY(out->add_names());
  return out;
}

}  // namespace mstar::weights
