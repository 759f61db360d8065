// Ranks that are threads of one process: they read each other's memory.
#pragma once

#include <memory>
#include <vector>

#include "mstar/device/communicator.h"

namespace mstar {

// The ends of a group of `size` >= 1 ranks, by rank; each belongs to one thread, and the group lives as long as any of
// them. Sums are made in the order of the ranks, element by element, whatever the timing. A rank that waits spins a few
// microseconds and then sleeps. An end that goes away while the group is whole aborts it, so that nobody waits for it.
// No order of streams: memory is on the host, and work is done when a call returns.
std::vector<std::unique_ptr<Communicator>> make_thread_group(int size);

}  // namespace mstar
