// Ranks that are GPUs of one process: they write into each other's memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "mstar/device/communicator.h"

namespace mstar {

// Messages of up to so many bytes go in one kernel; longer ones in several, or through the group behind. By
// expectation, not measured yet: see bench/notes/gpu_groups.md.
inline constexpr std::size_t kPeerMessageBytes = std::size_t{512} << 10;

// The ends of a group, by rank: rank r's work is on devices[r]. Every rank writes what it has, in words of four bytes
// each beside the call's number, straight into the memory of all others, and waits there for theirs (the LL protocol
// of NCCL; its "one-shot" sums): one kernel without a barrier, made for the small messages of decode steps. Sums are
// made in the order of the ranks, in f32, rounded once: the same bits on all ranks and on the CPU. Calls may be
// captured. The same device may stand for several ranks (for tests): then the groups of blocks of several ranks must
// fit beside each other.
// `behind`, when not empty, has an end for each rank and takes what is longer than kPeerMessageBytes (NCCL); it ends
// with this group.
// abort() reaches kernels that wait: they end, with sums that are nobody's. An end that goes away while the group is
// whole aborts it; memory is freed with the last one. Ends must go before their devices.
// Thread: any. Errors: unavailable (GPUs that cannot reach each other's memory, or no CUDA in this build), exhausted.
Result<std::vector<std::unique_ptr<Communicator>>> make_peer_group(
    std::span<Device* const> devices, std::vector<std::unique_ptr<Communicator>> behind = {});

// What a process's GPUs speak through: make_peer_group with NCCL behind it. Without NCCL the first alone, without
// peers' memory NCCL alone (a line of the log says which); the errors of both when there is neither.
Result<std::vector<std::unique_ptr<Communicator>>> make_gpu_group(std::span<Device* const> devices);

}  // namespace mstar
