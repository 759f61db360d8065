#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/rope/rope_kernels.h"
#include "mstar/ops/rope/rotary_positions_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;
constexpr int kThreads = 128;

struct Turns {
  RotaryPositions positions;
  const float* inverse_frequencies = nullptr;
  int pairs = 0;
  int step = 0, apart = 0;  // pair i of a head is (x[i * step], x[i * step + apart])
  float magnitude = 1;
};

// One pair a thread; neighbours in a warp take neighbouring pairs of one head.
template <class T>
__global__ void __launch_bounds__(kThreads) rotate(HeadRows<T> x, Turns turns, unsigned count) {
  await_inputs();
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const int row = static_cast<int>(index / turns.pairs), pair = static_cast<int>(index % turns.pairs);
  const float frequency = turns.inverse_frequencies[pair];
  const float position = turns.positions.of(row / x.heads, pair);
  float sine, cosine;
  sincosf(__fmul_rn(position, frequency), &sine, &cosine);
  sine *= turns.magnitude;
  cosine *= turns.magnitude;
  T* const at = x.row(row) + pair * turns.step;
  const float a = widen(at[0]), b = widen(at[turns.apart]);
  at[0] = narrow<T>(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)));
  at[turns.apart] = narrow<T>(__fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)));
}

}  // namespace

Status rope_cuda(OpContext& context, const RopeArgs& args) {
  const std::int64_t pairs = args.inverse_frequencies.dim(0), count = num_head_rows(args.x) * pairs;
  if (count == 0) return {};
  if (count > (std::int64_t{1} << 31)) return internal_error("rope: too many elements for one call");
  const Turns turns{rotary_positions_of(args.positions, args.pair_axes),
                    args.inverse_frequencies.data<float>(),
                    static_cast<int>(pairs),
                    args.interleaved ? 2 : 1,
                    args.interleaved ? 1 : static_cast<int>(pairs),
                    args.magnitude};
  return with_float_type(args.x.dtype, [&](auto element) {
    launch_kernel(context, rotate<decltype(element)>, static_cast<unsigned>((count + kThreads - 1) / kThreads),
                  kThreads, 0, head_rows_of<decltype(element)>(args.x), turns, static_cast<unsigned>(count));
    return cuda_launch_status("rope");
  });
}

}  // namespace mstar
