// Norms, gates, rotations, appended keys and embeddings: what decoders of text do between their products.
#include <algorithm>

#include "mstar/ops/attention/attention.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/embedding/embedding.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/qkv_prepare/qkv_prepare.h"
#include "mstar/ops/rms_norm/rms_norm.h"
#include "mstar/ops/rope/rope.h"
#include "twins.h"

namespace mstar::bench {
namespace {

constexpr DType kActivations[] = {DType::f32, DType::bf16};

// One rounding to bf16 is at most 2^-8 of the value.
double tolerance_of(DType out, double f32) { return out == DType::f32 ? f32 : 3.95e-3; }
double relative_of(DType out) { return out == DType::f32 ? 1e-5 : 3.95e-3; }

// Heads [tokens, heads, width] of a view whose tokens lie `token_stride` and heads `head_stride` apart.
TensorView heads_of(TensorView view, std::int64_t first, Shape shape, std::int64_t token_stride,
                    std::int64_t head_stride) {
  view.pointer = view.data<std::byte>() + first * static_cast<std::int64_t>(dtype_bytes(view.dtype));
  view.shape = shape;
  view.strides = {token_stride, head_stride, 1};
  return view;
}

void check_rms_norm(Twins& twins) {
  for (const DType from : kActivations) {
    for (const DType to : kActivations) {
      Difference rows, heads;
      for (const std::int64_t d : {1, 7, 64, 128, 256, 512, 520, 1024, 4096, 4104, 5120, 16384}) {
        for (const std::int64_t more : {3, 8}) {
          const auto x = draw(5 * (d + more), 1, 3.0f), weight = draw(d, 2);
          twins.run(
              [&](OpContext& ops, Place& place) {
                return rms_norm(ops, {place.activations(from, x, {5, d}, d + more), place.f32(weight, {d}), 1e-6f, 1.0f,
                                      place.out(to, 5, d, d + 2 * more)});
              },
              rows);
        }
        if (d > 512) continue;
        // Every second head of a projection to heads side by side, and in place.
        const auto x = draw(7 * (6 * d + 8), 3, 2.0f), weight = draw(d, 4);
        twins.run(
            [&](OpContext& ops, Place& place) {
              const TensorView all = place.activations(from, x, {7, 6 * d + 8});
              return rms_norm(ops, {heads_of(all, 0, {7, 3, d}, 6 * d + 8, 2 * d), place.f32(weight, {d}), 1e-5f, 0.0f,
                                    heads_of(place.out(to, 7, 3 * d), 0, {7, 3, d}, 3 * d, d)});
            },
            heads);
        if (from != to) continue;
        const auto gates = draw(7 * (3 * d + 8), 5, 3.0f);
        twins.run(
            [&](OpContext& ops, Place& place) {
              const TensorView x_heads = place.in_out(from, x, {7, 3, d});
              const TensorView gate = place.activations(from, gates, {7, 3 * d + 8});
              return rms_norm(ops, {x_heads, place.f32(weight, {d}), 1e-6f, 0.0f, x_heads,
                                    heads_of(gate, 0, {7, 3, d}, 3 * d + 8, d)});
            },
            heads);
        twins.run(
            [&](OpContext& ops, Place& place) {
              const TensorView all = place.in_out(from, x, {7, 6 * d + 8});
              const TensorView some = heads_of(all, d, {7, 3, d}, 6 * d + 8, 2 * d);
              return rms_norm(ops, {some, place.f32(weight, {d}), 1e-5f, 0.0f, some});
            },
            heads);
      }
      const std::string name = "rms_norm " + std::string(dtype_name(from)) + " to " + std::string(dtype_name(to));
      twins.judge(name, rows, tolerance_of(to, 2e-6), relative_of(to));
      twins.judge(name + ", heads", heads, tolerance_of(to, 2e-6), relative_of(to));
    }
  }
}

void check_gates(Twins& twins) {
  for (const DType dtype : kActivations) {
    Difference silu, sigmoid, adds, activations;
    for (const std::int64_t n : {1, 8, 31, 256, 3584}) {
      const auto both = draw(9 * (2 * n + 8), 1, 3.0f), other = draw(9 * n, 2);
      const auto part = [&](TensorView view, std::int64_t first) {
        view.pointer = view.data<std::byte>() + first * static_cast<std::int64_t>(dtype_bytes(view.dtype));
        view.shape = {9, n};
        view.strides[0] = 2 * n + 8;
        return view;
      };
      twins.run(
          [&](OpContext& ops, Place& place) {
            const TensorView in = place.in_out(dtype, both, {9, 2 * n + 8});
            return silu_mul(ops, {part(in, 0), part(in, n), part(in, 0)});
          },
          silu);
      // A gate beside each head's query, as gated attention has them.
      twins.run(
          [&](OpContext& ops, Place& place) {
            const TensorView in = place.activations(dtype, both, {3, 6 * n + 24});
            const TensorView mixed = place.in_out(dtype, other, {3, 3, n});
            return sigmoid_mul(ops, {heads_of(in, n, {3, 3, n}, 6 * n + 24, 2 * n), mixed, mixed});
          },
          sigmoid);
      for (const std::int64_t rows : {1, 9})
        twins.run(
            [&](OpContext& ops, Place& place) {
              return add(ops, {place.activations(dtype, other, {9, n}), place.activations(dtype, both, {rows, n}),
                               place.out(dtype, 9, n, n + 8)});
            },
            adds);
      for (const auto activation : {Activation::gelu_erf, Activation::gelu_tanh, Activation::silu})
        twins.run(
            [&](OpContext& ops, Place& place) {
              return activate(ops,
                              {place.activations(dtype, other, {9, n}), activation, place.out(dtype, 9, n, n + 3)});
            },
            activations);
    }
    Difference biased;
    for (const std::int64_t n : {1, 8, 100, 1032, 5120}) {
      const std::int64_t rows = n == 100 ? 1 : 21;
      const auto x = draw(rows * (n + 8), 5, 2.0f), bias = draw(n, 6);
      for (const auto activation : {Activation::none, Activation::gelu_erf, Activation::gelu_tanh, Activation::silu})
        twins.run(
            [&](OpContext& ops, Place& place) {
              const TensorView in_place = place.in_out(dtype, x, {rows, n}, n + 8);
              return activate(ops, {in_place, activation, in_place, place.f32(bias, {n})});
            },
            biased);
    }
    const std::string name(dtype_name(dtype));
    twins.judge("activate with a bias " + name, biased, tolerance_of(dtype, 2e-6), relative_of(dtype));
    twins.judge("silu_mul " + name, silu, tolerance_of(dtype, 1e-6), relative_of(dtype));
    twins.judge("sigmoid_mul, heads apart, " + name, sigmoid, tolerance_of(dtype, 1e-6), relative_of(dtype));
    twins.judge("add " + name, adds, tolerance_of(dtype, 0), relative_of(dtype));
    twins.judge("activate " + name, activations, tolerance_of(dtype, 1e-6), relative_of(dtype));
  }
}

// Positions on three axes that pairs take turns in, or on one.
struct Positions {
  std::int64_t axes = 1, tokens = 0, pairs = 0;
  std::vector<std::int32_t> values, pair_axes;
  Positions(std::int64_t num_axes, std::int64_t num_tokens, std::int64_t num_pairs)
      : axes(num_axes), tokens(num_tokens), pairs(num_pairs) {
    for (std::int64_t i = 0; i < axes * tokens; ++i) values.push_back(static_cast<std::int32_t>(i * 1237 % 40000));
    for (std::int64_t i = 0; i < pairs; ++i) pair_axes.push_back(static_cast<std::int32_t>(i % axes));
  }
  TensorView in(Place& place) const {
    TensorView view = place.i32(values);
    if (axes > 1) view = view.reshaped({axes, tokens});
    return view;
  }
  TensorView axes_in(Place& place) const { return axes > 1 ? place.i32(pair_axes) : TensorView{}; }
};

void check_rope(Twins& twins) {
  struct Case {
    std::int64_t tokens, heads, head_dim, pairs, head_stride;
  };
  for (const DType dtype : kActivations) {
    Difference difference;
    for (const Case& c : {Case{1, 1, 2, 1, 2}, Case{19, 3, 20, 8, 20}, Case{5, 10, 256, 32, 256},
                          Case{33, 8, 256, 32, 512}, Case{4, 24, 128, 64, 128}}) {
      const std::int64_t width = c.heads * c.head_stride + 7;
      const auto x = draw(c.tokens * width, 1);
      std::vector<float> frequencies;
      for (std::int64_t i = 0; i < c.pairs; ++i)
        frequencies.push_back(std::pow(1e6f, -static_cast<float>(i) / static_cast<float>(c.pairs)));
      for (const std::int64_t axes : {1, 3})
        for (const bool interleaved : {false, true})
          twins.run(
              [&](OpContext& ops, Place& place) {
                const Positions positions(axes, c.tokens, c.pairs);
                const TensorView all = place.in_out(dtype, x, {c.tokens, width});
                return rope(
                    ops, {heads_of(all, 0, {c.tokens, c.heads, c.head_dim}, width, c.head_stride), positions.in(place),
                          place.f32(frequencies, {c.pairs}), interleaved, 1.2f, positions.axes_in(place)});
              },
              difference);
    }
    twins.judge("rope " + std::string(dtype_name(dtype)), difference, tolerance_of(dtype, 2e-6), relative_of(dtype));
  }
}

// Keys and values of `dtype` go into f32 pages, which say what was written through attention in f32.
void check_append(Twins& twins) {
  for (const DType dtype : kActivations) {
    Difference difference;
    for (const std::int64_t head_dim : {16, 128, 256}) {
      const std::int64_t kv_heads = 2, tokens = 23, width = 2 * kv_heads * head_dim + 8;
      const auto fused = draw(tokens * width, 1), q = draw(tokens * kv_heads * head_dim, 2);
      twins.run(
          [&](OpContext& ops, Place& place) -> Status {
            PagedKvView kv;
            kv.keys = place.poisoned(DType::f32, {5, 16, kv_heads, head_dim});
            kv.values = place.poisoned(DType::f32, {5, 16, kv_heads, head_dim});
            kv.page_table = place.i32({3, 1, 4, 2}).data<std::int32_t>();
            kv.lengths = place.i32({20, 3}).data<std::int32_t>();
            kv.max_pages = 2;
            kv.page_tokens = 16;
            const RaggedView rows{place.i32({0, 20, 23}).data<std::int32_t>(), 2, 23};
            const TensorView in = place.activations(dtype, fused, {tokens, width});
            const Shape shape = {tokens, kv_heads, head_dim};
            MSTAR_TRY(kv_append(ops, {heads_of(in, 0, shape, width, head_dim),
                                      heads_of(in, kv_heads * head_dim, shape, width, head_dim), rows, kv}));
            const TensorView out = place.out(tokens, kv_heads * head_dim);
            return attention_paged(ops, {.q = place.f32(q, shape),
                                         .rows = rows,
                                         .kv = kv,
                                         .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                         .out = heads_of(out, 0, shape, kv_heads * head_dim, head_dim)});
          },
          difference);
    }
    twins.judge("kv_append of " + std::string(dtype_name(dtype)), difference, 1e-5);
  }
}

// Pages are f32 and are read through attention in f32, as above.
void check_prepare(Twins& twins) {
  struct Case {
    std::int64_t heads, head_dim, pairs;
  };
  for (const DType dtype : kActivations) {
    Difference difference;
    for (const Case& c : {Case{4, 16, 8}, Case{8, 256, 32}, Case{6, 128, 64}}) {
      const std::int64_t kv_heads = 2, tokens = 23, kv_at = 2 * c.heads * c.head_dim;
      const std::int64_t width = kv_at + 2 * kv_heads * c.head_dim + 8;
      const auto fused = draw(tokens * width, 1), q = draw(tokens * kv_heads * c.head_dim, 2);
      std::vector<float> frequencies;
      for (std::int64_t i = 0; i < c.pairs; ++i)
        frequencies.push_back(std::pow(1e6f, -static_cast<float>(i) / static_cast<float>(c.pairs)));
      for (const int form : {0, 1, 2, 3})
        twins.run(
            [&](OpContext& ops, Place& place) -> Status {
              const bool with_norms = form % 2 != 0;
              QkvPrepareArgs args;
              args.kv.keys = place.poisoned(DType::f32, {5, 16, kv_heads, c.head_dim});
              args.kv.values = place.poisoned(DType::f32, {5, 16, kv_heads, c.head_dim});
              args.kv.page_table = place.i32({3, 1, 4, 2}).data<std::int32_t>();
              args.kv.lengths = place.i32({20, 3}).data<std::int32_t>();
              args.kv.max_pages = 2;
              args.kv.page_tokens = 16;
              args.rows = {place.i32({0, 20, 23}).data<std::int32_t>(), 2, 23};
              // Without norms the queries are turned where they are, among outputs; keys are not for later.
              const TensorView in = place.activations(dtype, fused, {tokens, width});
              const Shape q_shape = {tokens, c.heads, c.head_dim}, kv_shape = {tokens, kv_heads, c.head_dim};
              args.q_out = heads_of(place.in_out(dtype, fused, {tokens, width}), 0, q_shape, width, 2 * c.head_dim);
              args.q = with_norms ? heads_of(in, 0, q_shape, width, 2 * c.head_dim) : args.q_out;
              args.k = heads_of(in, kv_at, kv_shape, width, c.head_dim);
              args.v = heads_of(in, kv_at + kv_heads * c.head_dim, kv_shape, width, c.head_dim);
              if (with_norms) {
                args.q_weight = place.f32(draw(c.head_dim, 3), {c.head_dim});
                args.k_weight = place.f32(draw(c.head_dim, 4, 0.1f), {c.head_dim});
              }
              args.weight_offset = 0.5f;
              const Positions positions(form < 2 ? 1 : 3, tokens, c.pairs);
              args.positions = positions.in(place);
              args.pair_axes = positions.axes_in(place);
              args.inverse_frequencies = place.f32(frequencies, {c.pairs});
              args.interleaved = c.heads == 4;
              MSTAR_TRY(qkv_prepare(ops, args));
              const TensorView out = place.out(tokens, kv_heads * c.head_dim);
              return attention_paged(ops, {.q = place.f32(q, kv_shape),
                                           .rows = args.rows,
                                           .kv = args.kv,
                                           .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                                           .out = heads_of(out, 0, kv_shape, kv_heads * c.head_dim, c.head_dim)});
            },
            difference);
    }
    twins.judge("qkv_prepare " + std::string(dtype_name(dtype)), difference, tolerance_of(dtype, 1e-5),
                relative_of(dtype));
  }
}

void check_wide_embedding(Twins& twins) {
  Difference difference;
  const std::int64_t vocab = 300, d = 1024;
  const auto table = draw(vocab * d, 1);
  for (const DType dtype : {DType::f32, DType::bf16})
    twins.run(
        [&](OpContext& ops, Place& place) -> Status {
          MSTAR_TRY_ASSIGN(
              const LinearWeight weight,
              LinearWeight::pack(
                  ops.device, {TensorView(const_cast<float*>(table.data()), DType::f32, {vocab, d}), nullptr}, dtype));
          EmbeddingArgs args;
          args.ids = place.i32({299, 0, 7, 133});
          args.tied = &weight;
          args.out = place.out(4, d, d + 4);
          const Status ran = embedding(ops, args);
          ops.device.synchronize(ops.stream);
          return ran;
        },
        difference);
  twins.judge("embedding of tied rows", difference, 0);
}

}  // namespace

void check_row_ops(Report& report, Device& cuda) {
  Twins twins(report, cuda);
  check_rms_norm(twins);
  check_gates(twins);
  check_rope(twins);
  check_append(twins);
  check_prepare(twins);
  check_wide_embedding(twins);
}

}  // namespace mstar::bench
