#include "open_files.h"

#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>

#include <algorithm>

namespace mstar::apps {

std::size_t connections_within(std::size_t num_files, std::size_t max_connections) {
  const std::size_t fitting = num_files > kOwnFiles ? num_files - kOwnFiles : 1;
  return std::min(fitting, max_connections);
}

std::size_t raise_open_files(std::size_t max_connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return max_connections;
  const rlim_t wanted = std::min<rlim_t>(max_connections + kOwnFiles, limit.rlim_max);
  if (limit.rlim_cur < wanted) {
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = wanted;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  return connections_within(static_cast<std::size_t>(limit.rlim_cur), max_connections);
}

std::string open_files_warning(std::size_t max_connections, std::size_t fitting) {
  return fmt::format(
      "the system allows this process too few open files for {} connections: at most {} are taken at once (raise the "
      "hard limit, ulimit -Hn {})",
      max_connections, fitting, max_connections + kOwnFiles);
}

}  // namespace mstar::apps
