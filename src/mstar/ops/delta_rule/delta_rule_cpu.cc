#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/delta_rule/delta_rule_cpu.cc"
#include <algorithm>
#include <cmath>
#include <cstring>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/delta_rule/delta_rule_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

// Columns of the state that a task owns: what it needs of them stays in the first-level cache over a whole row.
constexpr std::int64_t kTileColumns = 32;
// A row of fewer tokens works on the state where it lies; a copy would cost as much as it saves.
constexpr std::int64_t kCopyFromTokens = 3;

HWY_INLINE void normalise(const float* x, std::int64_t count, float epsilon, float scale, float* out) {
  const float squares = row_sum(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V value = load_up_to(x + i, lanes);
    return hn::Mul(value, value);
  });
  const V by = hn::Set(kF, scale / std::sqrt(squares + epsilon));
  for_lanes(count, [&](std::int64_t i, int lanes)
                       HWY_ATTR { store_up_to(hn::Mul(load_up_to(x + i, lanes), by), out + i, lanes); });
}

struct Token {
  const float *q, *k;  // [key_dim], normalised
  const float* v;
  float decay, beta;
  float* out;
};

// One token on kSixteens * 16 columns, whose rows are `stride` apart.
template <int kSixteens, class T>
HWY_INLINE void correct(const Token& token, std::int64_t key_dim, T* state, std::int64_t stride) {
  constexpr int kAcross = kSixteens * kSixteen;
  V even[kAcross], odd[kAcross], change[kAcross];
  const V decay = hn::Set(kF, token.decay), beta = hn::Set(kF, token.beta);
#pragma GCC unroll 8
  for (int j = 0; j < kAcross; ++j) even[j] = odd[j] = hn::Zero(kF);
  // What the state says of this key.
  std::int64_t i = 0;
  for (; i + 2 <= key_dim; i += 2) {
    const V first = hn::Set(kF, token.k[i]), second = hn::Set(kF, token.k[i + 1]);
    const T* row = state + i * stride;
#pragma GCC unroll 8
    for (int j = 0; j < kAcross; ++j) even[j] = hn::MulAdd(first, load_wide(row + j * kLanes), even[j]);
#pragma GCC unroll 8
    for (int j = 0; j < kAcross; ++j) odd[j] = hn::MulAdd(second, load_wide(row + stride + j * kLanes), odd[j]);
  }
  if (i < key_dim) {
    const V last = hn::Set(kF, token.k[i]);
#pragma GCC unroll 8
    for (int j = 0; j < kAcross; ++j) even[j] = hn::MulAdd(last, load_wide(state + i * stride + j * kLanes), even[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kAcross; ++j) {
    const V known = hn::Mul(decay, hn::Add(even[j], odd[j]));
    change[j] = hn::Mul(beta, hn::Sub(load_wide(token.v + j * kLanes), known));
    even[j] = odd[j] = hn::Zero(kF);
  }
  const auto update = [&](std::int64_t key, V* sums) HWY_ATTR {
    const V k = hn::Set(kF, token.k[key]), q = hn::Set(kF, token.q[key]);
    T* row = state + key * stride;
#pragma GCC unroll 8
    for (int j = 0; j < kAcross; ++j) {
      const V value = hn::MulAdd(k, change[j], hn::Mul(decay, load_wide(row + j * kLanes)));
      store_narrow(value, row + j * kLanes);
      sums[j] = hn::MulAdd(q, value, sums[j]);
    }
  };
  for (i = 0; i + 2 <= key_dim; i += 2) {
    update(i, even);
    update(i + 1, odd);
  }
  if (i < key_dim) update(i, even);
#pragma GCC unroll 8
  for (int j = 0; j < kAcross; ++j) store_narrow(hn::Add(even[j], odd[j]), token.out + j * kLanes);
}

// Columns [first, first + kSixteens * 16) of one head of one row. `scratch`: [(2 + kTileColumns) * key_dim] floats.
template <int kSixteens, class T>
void run_columns(const DeltaRuleArgs& args, std::int64_t row, std::int64_t head, std::int64_t first, float* scratch) {
  constexpr std::int64_t kColumns = kSixteens * 16;
  const std::int64_t begin = args.rows.offsets[row], end = args.rows.offsets[row + 1];
  const std::int64_t key_dim = args.k.dim(2), value_dim = args.v.dim(2), heads = args.v.dim(1);
  const std::int64_t key_heads = args.k.dim(1);
  const std::int64_t key_head = args.interleaved_heads ? head % key_heads : head / (heads / key_heads);
  T* const stored = args.state.data<T>() + args.slots[row] * args.state.stride(0) + head * args.state.stride(1) + first;
  if (args.positions[begin] == 0) {
    for (std::int64_t i = 0; i < key_dim; ++i) std::fill_n(stored + i * value_dim, kColumns, T{});
  } else if (args.read_slots && args.read_slots[row] != args.slots[row]) {
    const T* const old = stored + (args.read_slots[row] - args.slots[row]) * args.state.stride(0);
    for (std::int64_t i = 0; i < key_dim; ++i)
      std::memcpy(stored + i * value_dim, old + i * value_dim, kColumns * sizeof(T));
  }
  float *q = scratch, *k = scratch + key_dim;
  T* state = stored;
  std::int64_t stride = value_dim;
  const bool copies = end - begin >= kCopyFromTokens;
  if (copies) {
    state = reinterpret_cast<T*>(scratch + 2 * key_dim);
    stride = kColumns;
    for (std::int64_t i = 0; i < key_dim; ++i)
      std::memcpy(state + i * stride, stored + i * value_dim, kColumns * sizeof(T));
  }
  const auto store = [&](T* to) {
    for (std::int64_t i = 0; i < key_dim; ++i)
      std::memcpy(to + i * value_dim, state + i * stride, kColumns * sizeof(T));
  };
  const std::int64_t kept_end = args.kept.tokens ? begin + args.kept.tokens[row] : begin;  // begin: nowhere
  for (std::int64_t t = begin; t < end; ++t) {
    normalise(args.q.data<float>() + t * args.q.stride(0) + key_head * key_dim, key_dim, args.norm_epsilon, args.scale,
              q);
    normalise(args.k.data<float>() + t * args.k.stride(0) + key_head * key_dim, key_dim, args.norm_epsilon, 1.0f, k);
    const Token token = {.q = q,
                         .k = k,
                         .v = args.v.data<float>() + t * args.v.stride(0) + head * value_dim + first,
                         .decay = args.decay.data<float>()[t * heads + head],
                         .beta = args.beta.data<float>()[t * heads + head],
                         .out = args.out.data<float>() + t * args.out.stride(0) + head * value_dim + first};
    correct<kSixteens>(token, key_dim, state, stride);
    if (t + 1 == kept_end) store(stored + (args.kept.slots[row] - args.slots[row]) * args.state.stride(0));
  }
  if (copies) store(stored);
}

template <class T>
void run_tile(const DeltaRuleArgs& args, std::int64_t row, std::int64_t head, std::int64_t first, float* scratch) {
  if (first + kTileColumns <= args.v.dim(2)) {
    run_columns<2, T>(args, row, head, first, scratch);
  } else {
    run_columns<1, T>(args, row, head, first, scratch);
  }
}

void run_delta_tile(const DeltaRuleArgs& args, std::int64_t row, std::int64_t head, std::int64_t first,
                    float* scratch) {
  if (args.rows.offsets[row] == args.rows.offsets[row + 1]) return;
  if (args.state.dtype == DType::bf16) {
    run_tile<BFloat16>(args, row, head, first, scratch);
  } else {
    run_tile<float>(args, row, head, first, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(run_delta_tile);

namespace {

constexpr std::int64_t kColumnsPerTile = 32;

std::int64_t scratch_floats(std::int64_t key_dim) {
  return ((2 + kColumnsPerTile) * key_dim + 15) / 16 * 16;  // threads share no cache line
}

}  // namespace

Status delta_gates_cpu(OpContext& context, const DeltaGatesArgs& args) {
  const std::int64_t heads = args.a.dim(1);
  // Each element costs as much as a hundred point-wise ones.
  context.parallel_for_rows(args.a.dim(0), 100 * heads, [&](std::int64_t t) {
    const float* a = args.a.data<float>() + t * args.a.stride(0);
    const float* b = args.b.data<float>() + t * args.b.stride(0);
    for (std::int64_t head = 0; head < heads; ++head) {
      const double x = static_cast<double>(a[head]) + args.dt_bias.data<float>()[head];
      const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
      args.decay.data<float>()[t * heads + head] =
          static_cast<float>(std::exp(-static_cast<double>(args.rate.data<float>()[head]) * softplus));
      args.beta.data<float>()[t * heads + head] =
          static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(b[head]))));
    }
  });
  return {};
}

Status delta_rule_cpu(OpContext& context, const DeltaRuleArgs& args) {
  const std::int64_t heads = args.v.dim(1), tiles_per_head = (args.v.dim(2) + kColumnsPerTile - 1) / kColumnsPerTile;
  const std::int64_t floats = scratch_floats(args.k.dim(2));
  const std::size_t mark = context.arena.mark();
  auto* scratch = static_cast<float*>(
      context.arena.take(delta_rule_cpu_workspace_bytes(args.k.dim(2), context.num_threads()) - 256));
  context.parallel_for(args.rows.num_rows * heads * tiles_per_head, [&](std::int64_t tile, int thread) {
    const std::int64_t head = tile / tiles_per_head;
    HWY_DYNAMIC_DISPATCH(run_delta_tile)
    (args, head / heads, head % heads, tile % tiles_per_head * kColumnsPerTile, scratch + thread * floats);
  });
  context.arena.rewind(mark);
  return {};
}

std::size_t delta_rule_cpu_workspace_bytes(std::int64_t key_dim, int num_threads) {
  return static_cast<std::size_t>(scratch_floats(key_dim) * num_threads) * sizeof(float) + 256;
}

}  // namespace mstar
#endif
