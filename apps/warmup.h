// The warmup requests of a configuration, answered before the server listens.
#pragma once

#include "mstar/conductor/frontend.h"
#include "settings.h"

namespace mstar::apps {

// Each request runs alone first and then, for concurrency > 1, that many times at once, through the same door as every
// client's. Siblings finish; the first failure is returned and stops the start. Blocks.
Status run_warmup(Frontend& frontend, const std::vector<WarmupRequest>& requests);

}  // namespace mstar::apps
