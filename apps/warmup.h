// The warmup requests of a configuration, answered before the server listens.
#pragma once

#include "mstar/conductor/frontend.h"
#include "settings.h"

namespace mstar::apps {

// Each request runs alone first and then as many times at once as its concurrency says, but at least `num_replicas`
// times, copy i on replica i; through the same door as every client's. Copies beyond the cap queue. Siblings finish;
// the first failure is returned and stops the start. Blocks.
Status run_warmup(Frontend& frontend, const std::vector<WarmupRequest>& requests, int num_replicas = 1);

}  // namespace mstar::apps
