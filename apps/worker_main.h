// `mstar worker --fd N`: the process of one worker, started by WorkerProcesses and never by hand.
#pragma once

namespace mstar::apps {

// Speaks over the connected socket `fd`; the first frame says what to load. Returns the exit status when that fails;
// otherwise the process ends with the socket, at once and whatever it is doing: nothing here is worth keeping.
int run_worker(int fd);

}  // namespace mstar::apps
