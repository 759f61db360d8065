#include "mstar/ops/linear/cublas_lt.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace mstar {
namespace {

std::string file_name() { return "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR); }

std::vector<std::string> places() {
  std::vector<std::string> out = {""};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* const home = std::getenv(variable)) out.push_back(std::string(home) + "/lib64/");
  const std::string versioned = "/usr/local/cuda-" + std::to_string(CUBLAS_VER_MAJOR) + "/lib64/";
  for (const std::string& each :
       {std::string("/usr/local/cuda/lib64/"), std::string("/usr/local/cuda/lib/"),
        std::string("/usr/local/cuda/targets/x86_64-linux/lib/"), versioned, std::string("/opt/cuda/lib64/")})
    out.push_back(each);
  return out;
}

template <class Function>
bool find(void* library, const char* name, Function& to) {
  to = reinterpret_cast<Function>(dlsym(library, name));
  return to != nullptr;
}

Result<CublasLt> look_up() {
  void* library = nullptr;
  for (const std::string& place : places())
    if ((library = dlopen((place + file_name()).c_str(), RTLD_NOW | RTLD_LOCAL))) break;
  if (!library)
    return unavailable(file_name() + " was not found: install cuBLAS of CUDA " + std::to_string(CUBLAS_VER_MAJOR) +
                       ", or name its directory in LD_LIBRARY_PATH; --device cpu does without");
  CublasLt out;
  const bool whole = find(library, "cublasLtCreate", out.create) && find(library, "cublasLtDestroy", out.destroy) &&
                     find(library, "cublasLtGetStatusName", out.status_name) &&
                     find(library, "cublasLtGetVersion", out.version) && find(library, "cublasLtMatmul", out.matmul) &&
                     find(library, "cublasLtMatmulAlgoCheck", out.check) &&
                     find(library, "cublasLtMatmulAlgoGetHeuristic", out.propose) &&
                     find(library, "cublasLtMatmulDescInit_internal", out.init_operation) &&
                     find(library, "cublasLtMatmulDescSetAttribute", out.set_operation) &&
                     find(library, "cublasLtMatmulPreferenceInit_internal", out.init_preference) &&
                     find(library, "cublasLtMatmulPreferenceSetAttribute", out.set_preference) &&
                     find(library, "cublasLtMatrixLayoutInit_internal", out.init_layout);
  if (!whole) return unavailable(file_name() + " lacks functions that its major version has");
  return out;
}

}  // namespace

Result<const CublasLt*> CublasLt::load() {
  static const Result<CublasLt> loaded = look_up();
  if (!loaded) return Error(loaded.error());
  return &*loaded;
}

}  // namespace mstar
