// NCCL's functions, loaded when the first group of GPUs is made: the program starts without the library.
#pragma once

#include <cstddef>

#include "mstar/base/result.h"

namespace mstar {

// What NCCL's header declares, as far as it is used; these numbers are its stable binary interface.
struct NcclApi {
  using Comm = struct ncclComm*;
  struct UniqueId {
    char bytes[128];
  };
  struct Config {  // the fields of version 2.14; later ones take their defaults
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 0;  // a call that waits for other ranks returns kInProgress
  };
  static constexpr int kSuccess = 0, kInProgress = 7;
  static constexpr int kInt8 = 0, kFloat16 = 6, kFloat32 = 7, kBFloat16 = 9;
  static constexpr int kSum = 0;

  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(UniqueId* id) = nullptr;
  int (*init_rank)(Comm* comm, int num_ranks, UniqueId id, int rank, Config* config) = nullptr;
  int (*async_error)(Comm comm, int* error) = nullptr;
  int (*destroy)(Comm comm) = nullptr;
  int (*abort)(Comm comm) = nullptr;
  const char* (*error_text)(int error) = nullptr;
  // `stream` is a cudaStream_t.
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int operation, Comm comm,
                    void* stream) = nullptr;
  int (*all_gather)(const void* from, void* to, std::size_t count, int type, Comm comm, void* stream) = nullptr;
  int (*broadcast)(const void* from, void* to, std::size_t count, int type, int root, Comm comm,
                   void* stream) = nullptr;

  // unavailable, saying what to install. Switches NVLink multicast off (NCCL_NVLS_ENABLE=0) unless the variable is set:
  // it needs more of a host than every host grants. Thread: any; the first call sets the variable, so it is to come
  // before other threads read the environment.
  static Result<const NcclApi*> load();
};

}  // namespace mstar
