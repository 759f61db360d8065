#include "mstar/device/cuda/nvtx_marker.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace mstar {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("mstar");
  return made;
}

}  // namespace

void NvtxMarker::begin(const char* name) {
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}

void NvtxMarker::end() { nvtxDomainRangePop(domain()); }

}  // namespace mstar

#else  // CUDA's headers without NVTX: nobody can look at ranges

namespace mstar {
void NvtxMarker::begin(const char*) {}
void NvtxMarker::end() {}
}  // namespace mstar

#endif
