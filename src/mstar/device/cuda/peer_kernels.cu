#include "mstar/device/cuda/peer_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "mstar/device/cuda/cuda_check.h"

namespace mstar::cuda {
namespace {

constexpr int kThreads = 512, kMostBlocks = 64, kMostBlocksBesideOthers = 8;
constexpr unsigned kLooksBetweenAborts = 1 << 12;  // the host's memory is far away

// Eight bytes of a message and the call's number beside each half: whoever reads both numbers has both halves, for
// eight bytes are written at once.
__device__ inline void put_line(unsigned char* to, uint2 words, std::uint32_t call) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(words.x), "r"(call), "r"(words.y)
               : "memory");
}

// One call of one rank.
class Call {
 public:
  __device__ explicit Call(const PeerView& view) : view_(view), call_(*view.calls + 1) {}

  // Line i goes to `rank`.
  __device__ void put(int rank, std::size_t i, uint2 words) const {
    put_line(view_.inboxes[rank] + at(view_.rank, i), words, call_);
  }
  // Line i of `rank`; false once the group has ended.
  __device__ bool await(int rank, std::size_t i, uint2& words) const {
    const unsigned char* const from = view_.inboxes[view_.rank] + at(rank, i);
    std::uint32_t first, second;
    for (unsigned looks = 1;; ++looks) {
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words.x), "=r"(first), "=r"(words.y), "=r"(second)
                   : "l"(from)
                   : "memory");
      if (first == call_ && second == call_) return true;
      if (looks % kLooksBetweenAborts == 0 && *view_.aborted) return false;
    }
  }
  // The last thing of each block. The next call counts on from here.
  __device__ void end() const {
    __syncthreads();
    if (threadIdx.x != 0 || atomicAdd(view_.calls + 1, 1u) + 1 != gridDim.x) return;
    view_.calls[1] = 0;
    *view_.calls = call_;
  }

 private:
  // A line of the call before the last may be overwritten: this rank has had that rank's lines of the last call, which
  // it wrote after it had read those of the one before.
  __device__ std::size_t at(int rank, std::size_t i) const {
    const auto part =
        static_cast<std::size_t>(call_ & 1) * static_cast<std::size_t>(view_.size) + static_cast<std::size_t>(rank);
    return (part * view_.lines + i) * 16;
  }
  const PeerView& view_;
  const std::uint32_t call_;
};

// What was launched before has ended, and what comes next may come up.
__device__ inline void await_inputs(const PeerView& view) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (!view.shares_device) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ inline std::size_t first_line() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline std::size_t stride_of_lines() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

__device__ inline bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 8 == 0; }

// Eight bytes, of which `left` are there.
__device__ inline uint2 load_line(const unsigned char* from, std::size_t left) {
  if (left >= kLineBytes && is_aligned(from)) return *reinterpret_cast<const uint2*>(from);
  uint2 words = make_uint2(0, 0);
  auto* const bytes = reinterpret_cast<unsigned char*>(&words);
  for (std::size_t i = 0; i < kLineBytes && i < left; ++i) bytes[i] = from[i];
  return words;
}
__device__ inline void store_line(unsigned char* to, uint2 words, std::size_t left) {
  if (left >= kLineBytes && is_aligned(to)) {
    *reinterpret_cast<uint2*>(to) = words;
    return;
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&words);
  for (std::size_t i = 0; i < kLineBytes && i < left; ++i) to[i] = bytes[i];
}

__device__ inline float widen(float v) { return v; }
__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T>
__device__ inline T narrow(float v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(v);
  } else {
    return __float2bfloat16_rn(v);
  }
}

// The numbers of a line, in f32.
template <class Element>
struct LineSum {
  static constexpr int kNumbers = static_cast<int>(kLineBytes / sizeof(Element));
  float sums[kNumbers];

  __device__ void add(uint2 words, bool is_first) {
    Element numbers[kNumbers];
    memcpy(numbers, &words, sizeof words);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) sums[i] = is_first ? widen(numbers[i]) : __fadd_rn(sums[i], widen(numbers[i]));
  }
  __device__ uint2 words() const {
    Element numbers[kNumbers];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) numbers[i] = narrow<Element>(sums[i]);
    uint2 out;
    memcpy(&out, numbers, sizeof out);
    return out;
  }
};

template <class Element>
__global__ void __launch_bounds__(kThreads)
    all_reduce_kernel(const PeerView view, unsigned char* data, std::size_t num_bytes) {
  await_inputs(view);
  const Call call(view);
  const std::size_t num_lines = (num_bytes + kLineBytes - 1) / kLineBytes;
  for (std::size_t i = first_line(); i < num_lines; i += stride_of_lines()) {
    const uint2 own = load_line(data + i * kLineBytes, num_bytes - i * kLineBytes);
#pragma unroll
    for (int rank = 0; rank < kMostPeers; ++rank)
      if (rank < view.size && rank != view.rank) call.put(rank, i, own);
  }
  bool is_whole = true;  // until the group ends
  for (std::size_t i = first_line(); i < num_lines && is_whole; i += stride_of_lines()) {
    const std::size_t left = num_bytes - i * kLineBytes;
    const uint2 own = load_line(data + i * kLineBytes, left);
    LineSum<Element> sum;
    for (int rank = 0; rank < view.size && is_whole; ++rank) {
      uint2 words = own;
      if (rank != view.rank) is_whole = call.await(rank, i, words);
      sum.add(words, rank == 0);
    }
    if (is_whole) store_line(data + i * kLineBytes, sum.words(), left);
  }
  call.end();
}

__global__ void __launch_bounds__(kThreads) exchange_kernel(const PeerView view, const PeerExchange x) {
  await_inputs(view);
  const Call call(view);
  const std::size_t num_lines = (x.bytes + kLineBytes - 1) / kLineBytes;
  const auto* const from = static_cast<const unsigned char*>(x.from);
  auto* const to = static_cast<unsigned char*>(x.to);
  for (std::size_t i = first_line(); i < num_lines; i += stride_of_lines()) {
    const std::size_t left = x.bytes - i * kLineBytes;
    for (int rank = 0; rank < view.size; ++rank)
      if (rank != view.rank)
        call.put(rank, i, load_line(from + static_cast<std::size_t>(rank) * x.from_stride + i * kLineBytes, left));
  }
  bool is_whole = true;
  for (std::size_t i = first_line(); i < num_lines && is_whole; i += stride_of_lines()) {
    const std::size_t left = x.bytes - i * kLineBytes;
    for (int rank = 0; rank < view.size && is_whole; ++rank) {
      unsigned char* const there = to + static_cast<std::size_t>(rank) * x.to_stride + i * kLineBytes;
      if (rank == view.rank) {
        const unsigned char* const own = from + static_cast<std::size_t>(rank) * x.from_stride + i * kLineBytes;
        if (x.root < 0 && own != there) store_line(there, load_line(own, left), left);
        continue;
      }
      // Of a broadcast too all lines are awaited: nobody may be two calls ahead.
      uint2 words;
      is_whole = call.await(rank, i, words);
      if (is_whole && (x.root < 0 || rank == x.root)) store_line(there, words, left);
    }
  }
  call.end();
}

template <class... Parameters, class... Args>
Status launch(const char* name, void (*kernel)(Parameters...), std::size_t num_bytes, Stream stream,
              const PeerView& view, Args... args) {
  const std::size_t num_lines = (num_bytes + kLineBytes - 1) / kLineBytes;
  if (num_lines == 0) return ok_status();
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  const int most = view.shares_device ? kMostBlocksBesideOthers : kMostBlocks;
  config.gridDim = static_cast<unsigned>(
      std::min<std::size_t>((num_lines + kThreads - 1) / kThreads, static_cast<std::size_t>(most)));
  config.blockDim = kThreads;
  config.stream = static_cast<cudaStream_t>(stream.native);
  config.attrs = &overlap;
  config.numAttrs = 1;
  // An error stays for cuda_launch_status().
  (void)cudaLaunchKernelEx(&config, kernel, view, args...);
  return cuda_launch_status(name);
}

}  // namespace

Status peer_all_reduce(const PeerView& view, void* data, std::size_t count, DType dtype, Stream stream) {
  const std::size_t num_bytes = count * dtype_bytes(dtype);
  const auto with = [&](auto kernel) {
    return launch("all_reduce", kernel, num_bytes, stream, view, static_cast<unsigned char*>(data), num_bytes);
  };
  switch (dtype) {
    case DType::f32:
      return with(all_reduce_kernel<float>);
    case DType::f16:
      return with(all_reduce_kernel<__half>);
    case DType::bf16:
      return with(all_reduce_kernel<__nv_bfloat16>);
    default:
      return internal_error("all_reduce of " + std::string(dtype_name(dtype)));
  }
}

Status peer_exchange(const PeerView& view, const PeerExchange& exchange, Stream stream) {
  return launch("exchange between ranks", exchange_kernel, exchange.bytes, stream, view, exchange);
}

}  // namespace mstar::cuda
