// Ranks that each own a GPU, through NCCL.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/device/communicator.h"

namespace mstar {

struct NcclApi;

// The ends of a group of one process, by rank: rank r's work is on devices[r], which is its alone. Calls are ordered on
// the stream that they are given and may be captured (the first one of a kind should not be: it allocates). abort() by
// any end reaches all: work that waits in a stream for another rank ends, with sums that are nobody's. An end that goes
// away while the group is whole aborts it. Sums are made in NCCL's order: the same on all ranks, and from call to call
// for one size.
// Thread: any; blocks until all ranks are connected. Errors: unavailable (no NCCL), internal (NCCL's own, with its
// text).
Result<std::vector<std::unique_ptr<Communicator>>> make_nccl_group(std::span<Device* const> devices);
// Through these functions, which outlive the group.
Result<std::vector<std::unique_ptr<Communicator>>> make_nccl_group(const NcclApi& api,
                                                                   std::span<Device* const> devices);

// For ranks in processes of their own: rank 0 makes a key, which travels to the others as bytes, and each joins with
// it. join_nccl_group blocks until all ranks have. abort() reaches this rank alone: whoever notices tells the other
// processes. Errors as above; internal for bytes that are no key.
Result<std::string> make_nccl_key();
Result<std::string> make_nccl_key(const NcclApi& api);
Result<std::unique_ptr<Communicator>> join_nccl_group(std::string_view key, Ranks ranks, Device& device);
Result<std::unique_ptr<Communicator>> join_nccl_group(const NcclApi& api, std::string_view key, Ranks ranks,
                                                      Device& device);

}  // namespace mstar
