#include "mstar/ops/causal_conv1d/causal_conv1d_kernels.h"
#include "mstar/ops/cuda_approximate.cuh"
#include "mstar/ops/cuda_rows.cuh"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 128;
template <class T>
constexpr int kMost = 16 / static_cast<int>(sizeof(T));  // channels of a thread: 16 bytes
constexpr int kPieceTokens = 16;  // more than any taps, so that only a row's first piece reads its state
// Of longer steps: with kPieceTokens they would be more threads than fit at once.
constexpr int kLongPieceTokens = 24, kLongStepTokens = 1280;
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

// kFastSilu: what is rounded to bf16 needs no more than the approximate exponential and quotient, which are five
// instructions of forty: without them a long step waits for arithmetic and not for memory.
template <bool kFastSilu>
__device__ inline float activated(Activation activation, float x) {
  constexpr float kLog2E = 1.44269504f;
  if constexpr (kFastSilu) return __fmul_rn(x, reciprocal(1.0f + power_of_two(__fmul_rn(x, -kLog2E))));
  return activate_one(activation, x);
}

// Neighbouring channels' numbers as they are stored, so that loads do not wait for one another.
template <class T, int kChannels>
class Packed {
 public:
  __device__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) words_[i] = reinterpret_cast<const Word*>(from)[i];
  }
  __device__ void clear() { memset(words_, 0, sizeof(words_)); }
  __device__ void get(float (&to)[kChannels]) const {
    T values[kChannels];
    memcpy(values, words_, sizeof(values));
#pragma unroll
    for (int i = 0; i < kChannels; ++i) to[i] = widen(values[i]);
  }
  __device__ void set(const float (&from)[kChannels]) {
    T values[kChannels];
#pragma unroll
    for (int i = 0; i < kChannels; ++i) values[i] = narrow<T>(from[i]);
    memcpy(words_, values, sizeof(values));
  }
  __device__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) reinterpret_cast<Word*>(to)[i] = words_[i];
  }

 private:
  static constexpr int kBytes = kChannels * static_cast<int>(sizeof(T)), kLoads = (kBytes + 15) / 16;
  using Word = std::conditional_t<kBytes % 16 == 0, uint4, uint2>;
  Word words_[kLoads];
};

// The last inputs of a row, and those before the token after which its state is kept; `before` are the inputs before
// the row.
template <class T, int kTaps, int kChannels>
__device__ inline void write_states(const Convolution<T>& c, const Piece& piece, const T* x,
                                    const float (&before)[kTaps - 1][kChannels], int channel) {
  constexpr int kPast = kTaps - 1;
  const int past = c.taps - 1, kept = c.kept.tokens ? c.kept.tokens[piece.row] : 0;
#pragma unroll 1
  for (int which = kept > 0 ? 1 : 0; which >= 0; --which) {
    const int end = which ? kept : piece.total;
    float* const to = c.state + (which ? c.kept.slots : c.slots)[piece.row] * c.slot_stride + channel;
    Packed<T, kChannels> inputs[kPast];
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      const int t = end - past + j;
      if (j < past && t >= 0) inputs[j].load(x + t * c.x_stride);
    }
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      if (j >= past) continue;
      const int t = end - past + j;
      float values[kChannels];
      inputs[j].get(values);
#pragma unroll
      for (int i = 0; i < kPast; ++i)
        if (i - kPast == t) memcpy(values, before[i], sizeof(values));
      Packed<float, kChannels> state;
      state.set(values);
      state.store(to + static_cast<std::int64_t>(j) * c.channels);
    }
  }
}

// One piece of a row, kChannels channels a thread, token after token with the last kTaps - 1 inputs in registers. Fewer
// taps than kTaps are padded in front with weights of zero. The row's first piece reads the old state and writes the
// new one.
template <class T, int kTaps, int kChannels, bool kFastSilu>
__global__ void __launch_bounds__(kThreads, kChannels == 8 ? 5 : 1) convolve(Convolution<T> c) {
  await_inputs();
  constexpr int kPast = kTaps - 1;
  constexpr int kAtOnce = 32 / kChannels;  // tokens whose inputs are read together
  const int channel = (blockIdx.x * kThreads + threadIdx.x) * kChannels, padding = kTaps - c.taps;
  const bool mine = channel < c.channels;
  float weights[kTaps][kChannels];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    Packed<float, kChannels> weight;
    weight.clear();
    if (mine && j >= padding) weight.load(c.weight + static_cast<std::int64_t>(j - padding) * c.channels + channel);
    weight.get(weights[j]);
  }
  const Piece piece = piece_of(c.offsets, c.num_rows, c.piece_tokens, 1, blockIdx.y);
  if (piece.row < 0 || !mine) return;
  const int end = piece.first + piece.count;
  const T* const x = c.x + piece.begin * c.x_stride + channel;
  float window[kPast][kChannels];  // inputs of tokens first - kPast + j
  if (piece.first == 0) {
    const float* const old = c.state + c.read_slots[piece.row] * c.slot_stride + channel;
    const bool fresh = c.positions[piece.begin] == 0;
    Packed<float, kChannels> before[kPast];
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      before[j].clear();
      if (!fresh && j >= padding) before[j].load(old + static_cast<std::int64_t>(j - padding) * c.channels);
    }
#pragma unroll
    for (int j = 0; j < kPast; ++j) before[j].get(window[j]);
    write_states<T, kTaps, kChannels>(c, piece, x, window, channel);
  }
  // All that a piece begins with is under way before the first is used.
  Packed<T, kChannels> inputs[kAtOnce], before[kPast];
  const auto read_from = [&](int from) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (from + i < end) inputs[i].load(x + (from + i) * c.x_stride);
  };
  read_from(piece.first);
  if (piece.first > 0) {
#pragma unroll
    for (int j = 0; j < kPast; ++j) before[j].load(x + (piece.first - kPast + j) * c.x_stride);
  }
  if (piece.first > 0) {
#pragma unroll
    for (int j = 0; j < kPast; ++j) before[j].get(window[j]);
  }
  T* const out = c.out + piece.begin * c.out_stride + channel;
#pragma unroll 1
  for (int from = piece.first; from < end; from += kAtOnce) {
    if (from > piece.first) read_from(from);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (from + i >= end) return;
      float input[kChannels], sums[kChannels];
      inputs[i].get(input);
#pragma unroll
      for (int n = 0; n < kChannels; ++n) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kPast; ++j) sum = __fmaf_rn(window[j][n], weights[j][n], sum);
        sums[n] = activated<kFastSilu>(c.activation, __fmaf_rn(input[n], weights[kPast][n], sum));
#pragma unroll
        for (int j = 0; j + 1 < kPast; ++j) window[j][n] = window[j + 1][n];
        window[kPast - 1][n] = input[n];
      }
      Packed<T, kChannels> rounded;
      rounded.set(sums);
      rounded.store(out + (from + i) * c.out_stride);
    }
  }
}

template <class T, int kTaps, int kChannels>
void launch(OpContext& context, const Convolution<T>& c, int pieces) {
  const int a_block = kThreads * kChannels;
  const dim3 grid(static_cast<unsigned>((c.channels + a_block - 1) / a_block), static_cast<unsigned>(pieces));
  if (std::is_same_v<T, __nv_bfloat16> && c.activation == Activation::silu) {
    launch_kernel(context, convolve<T, kTaps, kChannels, sizeof(T) == 2>, grid, kThreads, 0, c);
  } else {
    launch_kernel(context, convolve<T, kTaps, kChannels, false>, grid, kThreads, 0, c);
  }
}

}  // namespace

bool causal_conv1d_cuda_fits(const OpContext&, const CausalConv1dArgs& args) {
  const bool dtypes = args.x.dtype == args.out.dtype && (args.x.dtype == DType::f32 || args.x.dtype == DType::bf16);
  const std::size_t four = 4 * dtype_bytes(args.x.dtype);
  return dtypes && args.x.dim(1) % 4 == 0 && starts_on(args.x, four) && starts_on(args.out, four) &&
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
    const int length = num_tokens > kLongStepTokens ? kLongPieceTokens : kPieceTokens;
    c.piece_tokens = num_tokens <= num_rows ? 0 : length;
    const int pieces = most_pieces(num_rows, num_tokens, c.piece_tokens);
    const bool eight = c.channels % 8 == 0 && rows_on_16_bytes(args.x) && rows_on_16_bytes(args.out);
    if (c.taps > 4) {
      launch<T, kMaxConvTaps, 4>(context, c, pieces);
    } else if (eight) {
      launch<T, 4, kMost<T>>(context, c, pieces);
    } else {
      launch<T, 4, 4>(context, c, pieces);
    }
    return cuda_launch_status("causal_conv1d");
  });
}

}  // namespace mstar
