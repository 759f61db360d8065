// Random models: nested loops, parallel parts, loop-backs at several levels, exports, kept values and streams in shapes
// that no real model has yet.
#pragma once

#include <cstdint>

#include "mstar/decl/decl.h"

namespace mstar::graph::sim {

// A model that passes validate(). Equal seeds give equal models.
decl::Decl random_model(std::uint64_t seed);

}  // namespace mstar::graph::sim
