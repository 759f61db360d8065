// A group of CPU ranks that are processes of one machine: they meet in shared memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "mstar/device/communicator.h"

namespace mstar {

// Of each rank's buffer, and so of a piece in which a larger message goes.
inline constexpr std::size_t kSharedPieceBytes = std::size_t{256} << 10;

// A descriptor of shared memory for groups of so many ranks (1 to 64 each), which is to travel to each of them; the
// caller owns it. The memory has no name, so nothing of it stays when the last process that has it is gone.
// unavailable when the system gives none.
Result<int> make_shared_groups(std::span<const int> sizes, std::size_t piece_bytes = kSharedPieceBytes);
Result<int> make_shared_group(int size, std::size_t piece_bytes = kSharedPieceBytes);

// Rank `rank`'s end of the group that is `group`-th in the memory; takes the descriptor over, also where it fails. Each
// rank joins a group once, of any process, before its first call; calls wait for ranks that have not joined yet.
// internal when the descriptor has no such group.
//
// Sums have the bits of those between threads (cpu/thread_communicator.h). Whoever waits sleeps in the kernel after
// some microseconds. Once a rank's process has ended, however it did, the others find out within some hundredths of
// a second, also in the middle of a call, and the group ends as by abort(). A process that is stopped is waited for.
// After an abort a call may have ended well on some ranks only.
Result<std::unique_ptr<Communicator>> join_shared_group(int descriptor, int rank, int group = 0);

}  // namespace mstar
