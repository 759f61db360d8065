#include "mstar/ops/causal_conv1d/causal_conv1d_kernels.h"
#include "mstar/ops/cuda_rows.cuh"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 128;
constexpr int kChannels = 4;      // of a thread
constexpr int kAtOnce = 8;        // tokens whose inputs are read together
constexpr int kPieceTokens = 16;  // more than any taps, so that only a row's first piece reads its state
static_assert(kPieceTokens >= kMaxConvTaps);

template <class T>
struct Convolution {
  const T* x = nullptr;
  T* out = nullptr;
  std::int64_t x_stride = 0, out_stride = 0, slot_stride = 0;
  const std::int32_t *offsets = nullptr, *positions = nullptr, *slots = nullptr, *read_slots = nullptr;
  KeptStates kept = {};
  const float* weight = nullptr;
  float* state = nullptr;
  int num_rows = 0, channels = 0, taps = 0, piece_tokens = 0;
  Activation activation = Activation::none;
};

__device__ inline float4 multiply_add(float4 a, float4 b, float4 c) {
  return make_float4(__fmaf_rn(a.x, b.x, c.x), __fmaf_rn(a.y, b.y, c.y), __fmaf_rn(a.z, b.z, c.z),
                     __fmaf_rn(a.w, b.w, c.w));
}

// What is rounded to bf16 needs no more than the approximate exponential and quotient, which are a fifth of the
// instructions: without them a long step waits for arithmetic and not for memory.
template <class T>
__device__ inline float activated(Activation activation, float x) {
  if (std::is_same_v<T, __nv_bfloat16> && activation == Activation::silu) return __fdividef(x, 1.0f + __expf(-x));
  return activate_one(activation, x);
}

// The last inputs of a row, and those before the token after which its state is kept; `before` are the inputs before
// the row.
template <class T, int kTaps>
__device__ inline void write_states(const Convolution<T>& c, const Piece& piece, const T* x,
                                    const float4 (&before)[kTaps - 1], int channel) {
  constexpr int kPast = kTaps - 1;
  const int past = c.taps - 1, kept = c.kept.tokens ? c.kept.tokens[piece.row] : 0;
#pragma unroll 1
  for (int which = kept > 0 ? 1 : 0; which >= 0; --which) {
    const int end = which ? kept : piece.total;
    float* const to = c.state + (which ? c.kept.slots : c.slots)[piece.row] * c.slot_stride + channel;
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      if (j >= past) continue;
      const int t = end - past + j;
      float4 input = t >= 0 ? load_four(x + t * c.x_stride) : make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kPast; ++i)
        if (i - kPast == t) input = before[i];
      store_four(input, to + static_cast<std::int64_t>(j) * c.channels);
    }
  }
}

// One piece of a row, four channels a thread, token after token with the last kTaps - 1 inputs in registers. Fewer taps
// than kTaps are padded in front with weights of zero. The row's first piece reads the old state and writes the new
// one.
template <class T, int kTaps>
__global__ void __launch_bounds__(kThreads) convolve(Convolution<T> c) {
  await_inputs();
  constexpr int kPast = kTaps - 1;
  const Piece piece = piece_of(c.offsets, c.num_rows, c.piece_tokens, 1, blockIdx.y);
  const int channel = (blockIdx.x * kThreads + threadIdx.x) * kChannels;
  if (piece.row < 0 || channel >= c.channels) return;
  const float4 zero = make_float4(0, 0, 0, 0);
  const int padding = kTaps - c.taps, past = c.taps - 1;
  float4 weights[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j)
    weights[j] =
        j < padding ? zero : load_four(c.weight + static_cast<std::int64_t>(j - padding) * c.channels + channel);
  const T* const x = c.x + piece.begin * c.x_stride + channel;
  const float* const old = c.state + c.read_slots[piece.row] * c.slot_stride + channel;
  const bool fresh = c.positions[piece.begin] == 0;
  float4 window[kPast];  // inputs of tokens first - kPast + j
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    const int t = piece.first - kPast + j;
    window[j] = zero;
    if (t >= 0) {
      window[j] = load_four(x + t * c.x_stride);
    } else if (!fresh && t >= -past) {
      window[j] = load_four(old + static_cast<std::int64_t>(past + t) * c.channels);
    }
  }
  if (piece.first == 0) write_states<T, kTaps>(c, piece, x, window, channel);
  T* const out = c.out + piece.begin * c.out_stride + channel;
  const int end = piece.first + piece.count;
  for (int from = piece.first; from < end; from += kAtOnce) {
    float4 inputs[kAtOnce];  // all under way before the first is used
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) inputs[i] = from + i < end ? load_four(x + (from + i) * c.x_stride) : zero;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (from + i >= end) break;
      float4 sum = zero;
#pragma unroll
      for (int j = 0; j < kPast; ++j) sum = multiply_add(window[j], weights[j], sum);
      sum = multiply_add(inputs[i], weights[kPast], sum);
      store_four(make_float4(activated<T>(c.activation, sum.x), activated<T>(c.activation, sum.y),
                             activated<T>(c.activation, sum.z), activated<T>(c.activation, sum.w)),
                 out + (from + i) * c.out_stride);
#pragma unroll
      for (int j = 0; j + 1 < kPast; ++j) window[j] = window[j + 1];
      window[kPast - 1] = inputs[i];
    }
  }
}

}  // namespace

bool causal_conv1d_cuda_fits(const OpContext&, const CausalConv1dArgs& args) {
  const bool dtypes = args.x.dtype == args.out.dtype && (args.x.dtype == DType::f32 || args.x.dtype == DType::bf16);
  const std::size_t four = kChannels * dtype_bytes(args.x.dtype);
  return dtypes && args.x.dim(1) % kChannels == 0 && starts_on(args.x, four) && starts_on(args.out, four) &&
         rows_on_16_bytes(args.weight) && rows_on_16_bytes(args.state);
}

Status causal_conv1d_cuda(OpContext& context, const CausalConv1dArgs& args) {
  const int num_rows = args.rows.num_rows, num_tokens = args.rows.num_tokens;
  if (num_rows == 0 || num_tokens == 0) return {};
  return with_f32_or_bf16(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    Convolution<T> c{args.x.data<T>(), args.out.data<T>(), args.x.stride(0), args.out.stride(0), args.state.stride(0)};
    c.offsets = args.rows.offsets;
    c.positions = args.positions;
    c.slots = args.slots;
    c.read_slots = args.read_slots ? args.read_slots : args.slots;
    c.kept = args.kept;
    c.weight = args.weight.data<float>();
    c.state = args.state.data<float>();
    c.num_rows = num_rows;
    c.channels = static_cast<int>(args.x.dim(1));
    c.taps = static_cast<int>(args.weight.dim(0));
    c.activation = args.activation;
    c.piece_tokens = num_tokens <= num_rows ? 0 : kPieceTokens;
    const int a_block = kThreads * kChannels, pieces = most_pieces(num_rows, num_tokens, c.piece_tokens);
    const dim3 grid(static_cast<unsigned>((c.channels + a_block - 1) / a_block), static_cast<unsigned>(pieces));
    if (c.taps <= 4) {
      launch_kernel(context, convolve<T, 4>, grid, kThreads, 0, c);
    } else {
      launch_kernel(context, convolve<T, kMaxConvTaps>, grid, kThreads, 0, c);
    }
    return cuda_launch_status("causal_conv1d");
  });
}

}  // namespace mstar
