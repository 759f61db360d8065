// The warmup requests of a configuration, answered before the server listens.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "mstar/conductor/conductor.h"
#include "settings.h"

namespace mstar::apps {

// Of each model, by the name that it is served as: how many replicas each of its node groups with ranks has.
using ReplicaCounts = std::map<std::string, std::vector<std::size_t>>;

// Whether their files can be read, before anything is loaded. invalid_request, unavailable.
Status check_warmup(const std::vector<WarmupRequest>& requests);

// Each request, request after request, runs as many times at once as its model's most replicated node group has
// replicas, and at least as often as its concurrency says: copy i on replica i of each group (counted round), whatever
// the routing. Where the groups have different numbers of replicas, some replicas get several copies; then it runs
// alone first, so that each size of step comes once. Through the same door as every client's: copies beyond the cap
// queue, and those beyond the queue wait for others to end. Siblings finish; the first failure is returned under the
// name of its copy, "warmup-<request>.<copy>" or "warmup-<request>.solo" (counted from 0), and stops the start. Blocks.
Status run_warmup(Frontend& frontend, const std::vector<WarmupRequest>& requests, const ReplicaCounts& replicas = {});

// The same requests for workers that come back later (conductor::Conductor::set_warmup). Errors of their files.
Result<std::vector<conductor::WarmupCall>> warmup_calls(const Frontend& frontend,
                                                        const std::vector<WarmupRequest>& requests,
                                                        const ReplicaCounts& replicas = {});

}  // namespace mstar::apps
