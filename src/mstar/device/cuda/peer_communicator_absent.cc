#include "mstar/device/cuda/peer_communicator.h"

namespace mstar {

Result<std::vector<std::unique_ptr<Communicator>>> make_peer_group(std::span<Device* const>,
                                                                   std::vector<std::unique_ptr<Communicator>>) {
  return unavailable("this program was built without CUDA; build the preset 'cuda'");
}

Result<std::vector<std::unique_ptr<Communicator>>> make_gpu_group(std::span<Device* const>) {
  return unavailable("this program was built without CUDA; build the preset 'cuda'");
}

}  // namespace mstar
