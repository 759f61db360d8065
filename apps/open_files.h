// The limit of open files (ulimit -n), against what the server means to have open.
#pragma once

#include <cstddef>
#include <string>

namespace mstar::apps {

// Files of the process that are no client's connection: weights, logs, workers, event queues, what libraries open.
constexpr std::size_t kOwnFiles = 128;

// Raises the soft limit of this process so that `max_connections` fit beside kOwnFiles, as far as the hard limit goes.
// Child processes that start later inherit it. Returns how many connections fit: max_connections, or fewer (at least
// 1).
std::size_t raise_open_files(std::size_t max_connections);

// Connections that fit into a limit of `num_files`.
std::size_t connections_within(std::size_t num_files, std::size_t max_connections);

// For the log when fewer fit than were asked for.
std::string open_files_warning(std::size_t max_connections, std::size_t fitting);

}  // namespace mstar::apps
