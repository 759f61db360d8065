// Typed references inside one Decl: a port cannot be passed where a resource is wanted.
#pragma once

#include "mstar/base/ids.h"

namespace mstar::decl {

using PortRef = Id<struct PortTag, std::uint16_t>;
using ComponentRef = Id<struct ComponentTag, std::uint16_t>;
using ResourceRef = Id<struct ResourceTag, std::uint16_t>;
using WalkRef = Id<struct WalkTag, std::uint16_t>;
using PartitionRef = Id<struct PartitionTag, std::uint16_t>;

}  // namespace mstar::decl
