// cuBLASLt's functions, looked up when the first product asks for them: the same binary runs where there is no CUDA.
#pragma once

#include <cublasLt.h>

#include "mstar/base/result.h"

namespace mstar {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusName) status_name;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose;
  decltype(&cublasLtMatmulDescInit_internal) init_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout;

  // The library's, of the major version that this was compiled with; loaded once and kept. Where the loader looks
  // (LD_LIBRARY_PATH), then in CUDA's own directories. Thread: any. Errors: unavailable (not there, or another
  // library).
  static Result<const CublasLt*> load();
};

}  // namespace mstar
