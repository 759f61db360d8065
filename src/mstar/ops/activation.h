// The point-wise functions that epilogues and elementwise ops share.
#pragma once

#include <cstdint>

namespace mstar {

// gelu_erf: x * Phi(x), the exact form; gelu_tanh: its tanh approximation; silu: x * sigmoid(x).
enum class Activation : std::uint8_t { none, gelu_erf, gelu_tanh, silu };

}  // namespace mstar
