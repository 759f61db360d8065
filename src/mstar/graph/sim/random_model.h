// Random models: nested loops, parallel parts, loop-backs at several levels, exports, kept values and streams in shapes
// that no real model has yet.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mstar/decl/decl.h"

namespace mstar::graph::sim {

// The components' specs by name; empty: names alone, for a null engine.
using MakeComponent = std::function<decl::DeviceComponent(std::string name, decl::ComponentRef ref)>;

// A model that passes validate(). Equal seeds give equal models. Every component has one Run, but for 'sink', which
// reads a stream of some models.
decl::Decl random_model(std::uint64_t seed, const MakeComponent& make = {});

}  // namespace mstar::graph::sim
