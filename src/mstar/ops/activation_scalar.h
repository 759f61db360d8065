// Scalar forms of the activations, for kernels that have no vector form.
#pragma once

#include <cmath>

#include "mstar/ops/activation.h"

namespace mstar {

inline float activate_scalar(Activation activation, float x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::gelu_erf:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
    case Activation::gelu_tanh:
      return 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::silu:
      return x / (1.0f + std::exp(-x));
  }
  return x;
}

}  // namespace mstar
