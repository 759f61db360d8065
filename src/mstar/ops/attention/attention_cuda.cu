// Which kernel attends what, and the one that takes all types and head sizes.
#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/tile_cuda.cuh"
#include "mstar/ops/cuda_rows.cuh"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 128;  // also keys of a block, as on the CPU
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxHeadDim = 256;

// One block per (query, head) of rows with at least `least` tokens, in the CPU's order of arithmetic: thread t scores
// key t of a block of 128, then thread i adds dimension i of the values key by key.
template <class Element, class Q, class Keys>
__global__ void __launch_bounds__(kThreads)
    attend(TokenHeads<const Q> q, const std::int32_t* offsets, int num_rows, Keys pages, int group, int least,
           float scale, HeadGate<Q> gate, TokenHeads<Q> out) {
  await_inputs();
  constexpr int kGroup = 16 / sizeof(Element);
  constexpr int kAhead = 8;  // value rows in flight
  __shared__ float query[kMaxHeadDim];
  __shared__ float weights[kThreads];
  __shared__ std::int64_t places[kThreads];
  __shared__ float maxima[kWarps];
  const int token = blockIdx.x, head = blockIdx.y, kv_head = head / group, d = pages.head_dim;
  const int row = row_of(offsets, num_rows, token);
  if (offsets[row + 1] - offsets[row] < least || token >= offsets[row + 1]) return;
  const int num_keys = pages.num_keys(row, offsets[row + 1] - offsets[row], token - offsets[row]);
  for (int i = threadIdx.x; i < d; i += kThreads) query[i] = widen(q.data[token * q.token_stride + head * d + i]);
  __syncthreads();

  constexpr int kPerThread = kMaxHeadDim / kThreads;
  float sums[kPerThread] = {};
  float largest = -INFINITY, total = 0;
  for (int begin = 0; begin < num_keys; begin += kThreads) {
    const int position = begin + threadIdx.x;
    float score = -INFINITY;
    if (position < num_keys) {
      const std::int64_t place = pages.at(row, position, kv_head);
      places[threadIdx.x] = place;
      float dot = 0;
      for (int i = 0; i < d; i += kGroup) {  // d is a multiple of 16, so every head starts on 16 bytes
        float key[kGroup];
        load_group(static_cast<const Element*>(pages.keys) + place + i, kGroup, true, key);
#pragma unroll
        for (int k = 0; k < kGroup; ++k) dot = fmaf(query[i + k], key[k], dot);
      }
      score = __fmul_rn(dot, scale);
    }
    const float previous = largest;
    largest = fmaxf(largest, block_max<kWarps>(score, maxima));
    const float correction = expf(previous - largest);
    weights[threadIdx.x] = position < num_keys ? expf(score - largest) : 0.0f;
    __syncthreads();
    total *= correction;
#pragma unroll
    for (int part = 0; part < kPerThread; ++part) sums[part] *= correction;
    const int count = min(kThreads, num_keys - begin);
    for (int j = 0; j < count; j += kAhead) {
#pragma unroll
      for (int part = 0; part < kPerThread; ++part) {
        const int i = part * kThreads + threadIdx.x;
        if (i >= d) continue;
        float value[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a)
          value[a] = j + a < count ? widen(static_cast<const Element*>(pages.values)[places[j + a] + i]) : 0.0f;
#pragma unroll
        for (int a = 0; a < kAhead; ++a)
          if (j + a < count) sums[part] = fmaf(weights[j + a], value[a], sums[part]);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
        if (j + a < count) total += weights[j + a];
    }
    __syncthreads();
  }
#pragma unroll
  for (int part = 0; part < kPerThread; ++part) {
    const int i = part * kThreads + threadIdx.x;
    if (i >= d) continue;
    const float mean = num_keys > 0 ? sums[part] / total : 0.0f;
    out.data[token * out.token_stride + head * d + i] =
        narrow<Q>(gate.data ? gated<Q>(mean, widen(gate.at(token, head)[i])) : mean);
  }
}

template <class Q, class Args, class Keys>
Status attend_any(OpContext& context, const Args& args, DType dtype, const Keys& keys, int least,
                  const TensorView& gate) {
  const int heads = static_cast<int>(args.q.dim(1));
  return with_float_type(dtype, [&](auto element) {
    launch_kernel(context, attend<decltype(element), Q, Keys>, dim3(args.rows.num_tokens, heads), kThreads, 0,
                  token_heads_of<const Q>(args.q), args.rows.offsets, args.rows.num_rows, keys, heads / keys.kv_heads,
                  least, args.scale, head_gate_of<Q>(gate), token_heads_of<Q>(args.out));
    return cuda_launch_status("attention");
  });
}

template <class Args, class Keys>
Status attend_any(OpContext& context, const Args& args, DType dtype, const Keys& keys, int least,
                  const TensorView& gate = {}) {
  return args.q.dtype == DType::bf16 ? attend_any<__nv_bfloat16>(context, args, dtype, keys, least, gate)
                                     : attend_any<float>(context, args, dtype, keys, least, gate);
}

bool starts_on_16_bytes(const TensorView& view) {
  const auto stride = static_cast<std::size_t>(view.stride(0)) * dtype_bytes(view.dtype);
  return reinterpret_cast<std::uintptr_t>(view.pointer) % 16 == 0 && (view.dim(0) <= 1 || stride % 16 == 0);
}

// Whether attention_whole_cuda.cu takes these; its keys are of the queries' type.
bool fits_whole(const TensorView& q, const TensorView& out, DType keys, std::int64_t head_dim) {
  return q.dtype == DType::bf16 && keys == DType::bf16 && head_dim == kAttentionWholeHeadDim && starts_on_16_bytes(q) &&
         starts_on_16_bytes(out);
}

bool fits_tiles(const PagedAttentionArgs& args) {
  const std::int64_t d = args.kv.keys.dim(3);
  return args.kv.keys.dtype == DType::bf16 && (d == 64 || d == 128 || d == 256) && starts_on_16_bytes(args.q) &&
         starts_on_16_bytes(args.out) && (!args.gate.pointer || rows_on_16_bytes(args.gate));
}

// Whether no two heads share keys.
bool are_alone(const TensorView& q, const TensorView& keys) { return q.dim(1) == keys.dim(keys.shape.rank() - 2); }

}  // namespace

bool attention_alone_cuda_fits(const PagedAttentionArgs& args) {
  const auto fits = [](const TensorView& view) {
    return !view.pointer || (view.dtype == DType::bf16 && starts_on_16_bytes(view));
  };
  return fits_tiles(args) && !args.gate.pointer && args.kv.keys.dim(3) == kAttentionWholeHeadDim &&
         are_alone(args.q, args.kv.keys) && fits(args.new_keys) && fits(args.new_values);
}

bool attention_paged_cuda_fits(const OpContext&, const PagedAttentionArgs& args) {
  return args.kv.keys.dim(3) <= kMaxHeadDim && args.q.dtype == args.out.dtype;
}

// Chosen by the views alone, so that a captured step may be replayed with other lengths and rows.
Status attention_paged_cuda(OpContext& context, const PagedAttentionArgs& args) {
  const int tokens = args.rows.num_tokens, rows = args.rows.num_rows;
  if (tokens == 0) return {};
  const Pages pages = pages_of(args.kv);
  const DType dtype = args.kv.keys.dtype;
  if (!fits_tiles(args)) return attend_any(context, args, dtype, pages, 0, args.gate);
  const bool alone = attention_alone_cuda_fits(args);
  if (tokens == rows)
    return alone ? attention_alone_cuda(context, args, tokens) : attention_decode_cuda(context, args, true);
  MSTAR_TRY(args.q.dtype == DType::bf16 ? attention_prefill_cuda(context, args, 2)
                                        : attend_any(context, args, dtype, pages, 2, args.gate));
  if (rows == 1) return {};
  // Rows of one token keep the kernel, and the bits, that they have in a step without prompts. They come last: their
  // old keys are under way where the prompts' last tiles leave multiprocessors free.
  return alone ? attention_alone_cuda(context, args, 1) : attention_decode_cuda(context, args, false);
}

bool attention_slots_cuda_fits(const OpContext&, const SlotAttentionArgs& args) {
  return args.kv.keys.dim(3) <= kMaxHeadDim && args.q.dtype == args.out.dtype;
}

Status attention_slots_cuda(OpContext& context, const SlotAttentionArgs& args) {
  const int tokens = args.rows.num_tokens, rows = args.rows.num_rows;
  if (tokens == 0) return {};
  const DType dtype = args.kv.keys.dtype;
  if (!fits_whole(args.q, args.out, dtype, args.kv.keys.dim(3)))
    return attend_any(context, args, dtype, slots_of(args.kv), 0);
  if (are_alone(args.q, args.kv.keys)) {
    constexpr int kFew = kAttentionAloneTokens;
    MSTAR_TRY(attention_alone_cuda(context, args, tokens == rows ? tokens : kFew));
    return tokens == rows || tokens <= kFew ? ok_status() : attention_whole_cuda(context, args, kFew + 1);
  }
  if (tokens == rows) return attention_decode_cuda(context, args, true);
  if (rows > 1) MSTAR_TRY(attention_decode_cuda(context, args, false));
  return attention_whole_cuda(context, args, 2);
}

bool attention_dense_cuda_fits(const OpContext&, const DenseAttentionArgs& args) {
  const DType dtype = args.q.dtype;
  const bool alike = args.k.dtype == dtype && args.v.dtype == dtype && args.out.dtype == dtype;
  // The kernel for any rows loads 16 bytes of a key at once.
  return alike && args.k.dim(2) <= kMaxHeadDim && args.k.dim(2) % 16 == 0 && starts_on_16_bytes(args.k) &&
         starts_on_16_bytes(args.v) && (args.k.dim(0) <= 1 || args.k.stride(0) == args.v.stride(0));
}

Status attention_dense_cuda(OpContext& context, const DenseAttentionArgs& args) {
  if (args.rows.num_tokens == 0) return {};
  if (!args.causal && fits_whole(args.q, args.out, args.k.dtype, args.k.dim(2)) &&
      (!args.q_bias.pointer || are_alone(args.q, args.k)))
    return attention_whole_cuda(context, args);
  if (args.q_bias.pointer) return internal_error("attention: biases are for bf16 heads of 64 that share no keys");
  const DenseKeys keys{args.k.pointer,
                       args.v.pointer,
                       args.rows.offsets,
                       args.k.stride(0),
                       static_cast<int>(args.k.dim(1)),
                       static_cast<int>(args.k.dim(2)),
                       args.causal};
  return attend_any(context, args, args.k.dtype, keys, 0);
}

}  // namespace mstar
