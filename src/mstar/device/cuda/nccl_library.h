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
  static constexpr int kSuccess = 0;
  static constexpr int kInt8 = 0, kFloat16 = 6, kFloat32 = 7, kBFloat16 = 9;
  static constexpr int kSum = 0;

  int (*get_unique_id)(UniqueId* id) = nullptr;
  int (*init_rank)(Comm* comm, int num_ranks, UniqueId id, int rank) = nullptr;
  int (*destroy)(Comm comm) = nullptr;
  int (*abort)(Comm comm) = nullptr;
  const char* (*error_text)(int error) = nullptr;
  // `stream` is a cudaStream_t.
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int operation, Comm comm,
                    void* stream) = nullptr;
  int (*all_gather)(const void* from, void* to, std::size_t count, int type, Comm comm, void* stream) = nullptr;
  int (*broadcast)(const void* from, void* to, std::size_t count, int type, int root, Comm comm,
                   void* stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* from, std::size_t count, int type, int peer, Comm comm, void* stream) = nullptr;
  int (*receive)(void* to, std::size_t count, int type, int peer, Comm comm, void* stream) = nullptr;

  // unavailable, saying what to install. Sets two variables that are not set yet: NCCL_NVLS_ENABLE=0, for NVLink
  // multicast needs more of a host than every host grants, and NCCL_RUNTIME_CONNECT=0, so that all ranks are connected
  // when a group is made and no call waits for that later. Thread: any; the first call is to come before other threads
  // read the environment.
  static Result<const NcclApi*> load();
};

}  // namespace mstar
