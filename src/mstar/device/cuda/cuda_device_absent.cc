#include "mstar/device/cuda/cuda_device.h"

namespace mstar {

int num_cuda_devices() { return 0; }

Result<std::size_t> cuda_device_bytes(int) { return unavailable("this program was built without CUDA"); }

Result<std::unique_ptr<Device>> make_cuda_device(int) {
  return unavailable("this program was built without CUDA; build the preset 'cuda'");
}

Result<CudaAttachment*> cuda_attachment(Device&, const void*, Result<std::unique_ptr<CudaAttachment>> (*)()) {
  return unavailable("this program was built without CUDA; build the preset 'cuda'");
}

}  // namespace mstar
