// Passes over a row of logits, vectorised: what sample_cpu.cc is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mstar {

// Index of the largest value, ties to the lowest; 0 when all are -inf or the row is empty.
std::size_t largest_index(std::span<const float> logits);
// Sum of e^((logit - largest) * inverse_temperature); -inf adds nothing. Summed in f32 by blocks of kScanBlock in a
// fixed order, the blocks in f64.
inline constexpr std::size_t kScanBlock = 1024;
double sum_of_exp(std::span<const float> logits, float largest, float inverse_temperature = 1.0f);

}  // namespace mstar
