#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kOutputsPerBlock = 8;  // one warp each

struct Problem {
  Rows x;
  const void* weight = nullptr;  // [N, K]
  const float* bias = nullptr;
  Rows residual;
  Activation activation = Activation::none;
  Rows out;
  int m = 0, n = 0, k = 0;
  bool x_by_16_bytes = false;  // rows of x start on 16 bytes
};

// A warp makes one output of kRows rows. Lane l adds the products of its groups of 16 bytes of W (l, l + 32, ...) in
// the order of k, then the lanes are added by a fixed tree: a row's bits depend on K and the weight's dtype alone.
template <class Element, int kRows>
__global__ void __launch_bounds__(kOutputsPerBlock* kWarp) linear_rows(const Problem p) {
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
      const float* x = p.x.row(first + r) + k;
      if (p.x_by_16_bytes && left >= kGroup) {
#pragma unroll
        for (int i = 0; i < kGroup; i += 4) {
          const float4 four = *reinterpret_cast<const float4*>(x + i);
          sums[r] = fmaf(four.x, weights[i], sums[r]);
          sums[r] = fmaf(four.y, weights[i + 1], sums[r]);
          sums[r] = fmaf(four.z, weights[i + 2], sums[r]);
          sums[r] = fmaf(four.w, weights[i + 3], sums[r]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (i < left) sums[r] = fmaf(x[i], weights[i], sums[r]);
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
  if (p.bias) mine = __fadd_rn(mine, p.bias[n]);
  mine = activate_one(p.activation, mine);
  if (p.residual.data) mine = __fadd_rn(mine, p.residual.row(first + lane)[n]);
  p.out.row(first + lane)[n] = mine;
}

template <class Element, int kRows>
void launch(cudaStream_t stream, const Problem& p) {
  const dim3 grid((p.n + kOutputsPerBlock - 1) / kOutputsPerBlock, (p.m + kRows - 1) / kRows);
  linear_rows<Element, kRows><<<grid, kOutputsPerBlock * kWarp, 0, stream>>>(p);
}

}  // namespace

Status linear_cuda(OpContext& context, const LinearArgs& args) {
  Problem p;
  p.x = rows_of(args.x);
  p.weight = args.weight->rows();
  p.bias = args.bias.data<float>();
  if (args.residual.pointer) p.residual = rows_of(args.residual);
  p.activation = args.activation;
  p.out = rows_of(args.out);
  p.m = static_cast<int>(args.x.dim(0));
  p.n = static_cast<int>(args.weight->num_outputs());
  p.k = static_cast<int>(args.weight->num_inputs());
  p.x_by_16_bytes = reinterpret_cast<std::uintptr_t>(args.x.pointer) % 16 == 0 && args.x.stride(0) % 4 == 0;
  return with_float_type(args.weight->storage().dtype(), [&](auto element) {
    using Element = decltype(element);
    const cudaStream_t stream = stream_of(context);
    if (p.m == 1) {
      launch<Element, 1>(stream, p);
    } else if (p.m == 2) {
      launch<Element, 2>(stream, p);
    } else if (p.m <= 4) {
      launch<Element, 4>(stream, p);
    } else {
      launch<Element, 8>(stream, p);
    }
    return cuda_launch_status("linear");
  });
}

}  // namespace mstar
