// What can be wrong with a placement beyond one model's node groups, found before a weight is read.
#pragma once

#include "mstar/graph/compiled.h"
#include "runtime.h"

namespace mstar::apps {

// `device` and `rank_devices` together. invalid_request where they contradict each other.
Result<DeviceChoice> chosen_device(const RuntimeConfig& config);

// Whether rank_devices names ranks that there are, and each rank a device that there is. invalid_request, unavailable.
Status check_devices(const RuntimeConfig& config, Backend backend, int num_ranks, int num_cuda_devices);

// Ranks that work in step (tp_size x sp_size above 1): whether each of them can, for all models together. A rank that
// follows does nothing else; on CUDA each has a device of its own; what they share out divides. invalid_request.
Status check_ranks_in_step(const std::vector<OpenedModel>& models, const RuntimeConfig& config, Backend backend);

// Whether every walk keeps its order however a request's replicas are chosen. bad_model with the ranks of a choice that
// cannot work. Cost: one placement for each way in which the groups can share ranks; replicas that no other group
// shares are alike.
Status check_fragments(const graph::CompiledModel& model, const std::vector<NodeGroup>& groups);

}  // namespace mstar::apps
