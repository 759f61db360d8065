#include "mstar/device/cuda/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace mstar {
namespace {

constexpr const char* kFile = "libnccl.so.2";

std::vector<std::string> places() {
  std::vector<std::string> out = {""};
  for (const char* variable : {"NCCL_HOME", "CUDA_HOME", "CUDA_PATH"})
    if (const char* const home = std::getenv(variable))
      for (const char* directory : {"/lib/", "/lib64/"}) out.push_back(home + std::string(directory));
  for (const char* directory : {"/usr/local/cuda/lib64/", "/usr/local/cuda/lib/", "/opt/cuda/lib64/"})
    out.push_back(directory);
  return out;
}

template <class Function>
bool find(void* library, const char* name, Function& to) {
  to = reinterpret_cast<Function>(dlsym(library, name));
  return to != nullptr;
}

Result<NcclApi> look_up() {
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  void* library = nullptr;
  for (const std::string& place : places())
    if ((library = dlopen((place + kFile).c_str(), RTLD_NOW | RTLD_LOCAL))) break;
  if (!library)
    return unavailable(
        std::string(kFile) +
        " was not found: install NCCL, or name its directory in LD_LIBRARY_PATH; tp_size 1 does without");
  NcclApi out;
  const bool whole =
      find(library, "ncclGetUniqueId", out.get_unique_id) && find(library, "ncclCommInitRank", out.init_rank) &&
      find(library, "ncclCommDestroy", out.destroy) && find(library, "ncclCommAbort", out.abort) &&
      find(library, "ncclGetErrorString", out.error_text) && find(library, "ncclAllReduce", out.all_reduce) &&
      find(library, "ncclAllGather", out.all_gather) && find(library, "ncclBroadcast", out.broadcast) &&
      find(library, "ncclGroupStart", out.group_start) && find(library, "ncclGroupEnd", out.group_end) &&
      find(library, "ncclSend", out.send) && find(library, "ncclRecv", out.receive);
  if (!whole) return unavailable(std::string(kFile) + " lacks functions that its major version has");
  return out;
}

}  // namespace

Result<const NcclApi*> NcclApi::load() {
  static const Result<NcclApi> loaded = look_up();
  if (!loaded) return Error(loaded.error());
  return &*loaded;
}

}  // namespace mstar
