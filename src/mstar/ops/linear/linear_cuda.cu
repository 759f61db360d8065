// Any rows of any float dtypes: the kernel for what no faster one takes.
#include "mstar/ops/linear/linear_cuda.cuh"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kOutputsPerBlock = 8;  // one warp each

struct Problem {
  FloatRows x;
  const void* weight = nullptr;  // [N, K]
  Epilogue epilogue;
  int m = 0, n = 0, k = 0;
  bool x_by_16_bytes = false;  // rows of x start on 16 bytes
};

// kCount values at an address that allows loads of 16 bytes, or of all of them where they are fewer bytes.
template <int kCount, class T>
__device__ void load_whole(const T* from, float (&to)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  T values[kCount];
  if constexpr (kBytes % 16 == 0) {
    uint4 words[kBytes / 16];
#pragma unroll
    for (int w = 0; w < kBytes / 16; ++w) words[w] = reinterpret_cast<const uint4*>(from)[w];
    memcpy(values, words, sizeof(values));
  } else {
    static_assert(kBytes == 8);
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    memcpy(values, &words, sizeof(values));
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = widen(values[i]);
}

// A warp makes one output of kRows rows. Lane l adds the products of its groups of 16 bytes of W (l, l + 32, ...) in
// the order of k, then the lanes are added by a fixed tree: a row's bits depend on K and the weight's dtype alone.
template <class Element, class X, int kRows>
__global__ void __launch_bounds__(kOutputsPerBlock* kWarp) linear_rows(const Problem p) {
  await_inputs();
  constexpr int kGroup = 16 / sizeof(Element);
  const int lane = threadIdx.x % kWarp;
  const int n = blockIdx.x * kOutputsPerBlock + threadIdx.x / kWarp;
  const int first = blockIdx.y * kRows;
  if (n >= p.n) return;
  const auto* w = static_cast<const Element*>(p.weight) + static_cast<std::int64_t>(n) * p.k;
  const bool aligned = p.k % kGroup == 0;
  float sums[kRows] = {};
  for (int k = lane * kGroup; k < p.k; k += kWarp * kGroup) {
    const int left = p.k - k;
    float weights[kGroup];
    load_group(w + k, left, aligned, weights);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= p.m) break;
      const X* x = p.x.row<X>(first + r) + k;
      if (p.x_by_16_bytes && left >= kGroup) {
        float values[kGroup];
        load_whole<kGroup>(x, values);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) sums[r] = fmaf(values[i], weights[i], sums[r]);
      } else {
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (i < left) sums[r] = fmaf(widen(x[i]), weights[i], sums[r]);
      }
    }
  }
  float mine = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float total = warp_sum(sums[r]);
    if (lane == r) mine = total;
  }
  if (lane >= kRows || first + lane >= p.m) return;
  p.epilogue.finish(first + lane, n, mine);
}

template <class Element, class X, int kRows>
void launch(const OpContext& context, const Problem& p) {
  const dim3 grid((p.n + kOutputsPerBlock - 1) / kOutputsPerBlock, (p.m + kRows - 1) / kRows);
  launch_kernel(context, linear_rows<Element, X, kRows>, grid, kOutputsPerBlock * kWarp, 0, p);
}

template <class Element, class X>
void launch_for_rows(const OpContext& context, const Problem& p) {
  if (p.m == 1) {
    launch<Element, X, 1>(context, p);
  } else if (p.m == 2) {
    launch<Element, X, 2>(context, p);
  } else if (p.m <= 4) {
    launch<Element, X, 4>(context, p);
  } else {
    launch<Element, X, 8>(context, p);
  }
}

}  // namespace

Status linear_cuda_rows(OpContext& context, const LinearArgs& args) {
  Problem p;
  p.x = float_rows_of(args.x);
  p.weight = args.weight->rows();
  p.epilogue = epilogue_of(args);
  p.m = static_cast<int>(args.x.dim(0));
  p.n = static_cast<int>(args.weight->num_outputs());
  p.k = static_cast<int>(args.weight->num_inputs());
  p.x_by_16_bytes = starts_rows_on_16_bytes(args.x);
  return with_float_type(args.weight->storage().dtype(), [&](auto element) {
    return with_float_type(args.x.dtype, [&](auto x) {
      launch_for_rows<decltype(element), decltype(x)>(context, p);
      return cuda_launch_status("linear");
    });
  });
}

}  // namespace mstar
