// Frames as bytes, for workers in other processes.
#pragma once

#include <span>
#include <string>

#include "mstar/wire/process_messages.h"

namespace mstar::wire {

// Little-endian; the version first, then the kind, then the fields in their order; lists and strings with their length.
// Buffers of devices travel as host bytes: their Value has no device on the other side. Errors: those of the copy to
// the host, internal for a value whose bytes don't fit its shape. Cost: one pass, one copy.
Result<std::string> encode(const Frame& frame);

// For any bytes: internal when they are no frame of this version, whole and without rest. Every length is checked
// against what is left before anything is sized by it. Pointers of a frame (AddRequest::params) are never null.
Result<Frame> decode(std::span<const std::byte> bytes);

}  // namespace mstar::wire
