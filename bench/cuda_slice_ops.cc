#include <algorithm>
#include <random>

#include "cuda_slice.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/attention/attention_cases.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/embedding/embedding.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/layer_norm/layer_norm.h"
#include "mstar/ops/linear/linear.h"
#include "mstar/ops/linear/linear_cases.h"
#include "mstar/ops/rms_norm/rms_norm.h"
#include "mstar/ops/sample/sample.h"
#include "twins.h"

namespace mstar::bench {
namespace {

using op_test::AttentionCase;
using op_test::LinearCase;

// ---- linear
// ------------------------------------------------------------------------------------------------------------

struct LinearProblem {
  LinearCase c;
  DType storage;
  std::int64_t x_stride;
  std::vector<float> x, w, bias, residual;
  LinearProblem(const LinearCase& shape, DType dtype, std::int64_t stride)
      : c(shape), storage(dtype), x_stride(stride) {
    x = draw(c.m * x_stride, 1);
    w = draw(c.n * c.k, 2, 0.3f);
    bias = draw(c.n, 3);
    residual = draw(c.m * c.n, 4);
  }
  // Rows [begin, end).
  Status run(OpContext& ops, Place& place, std::int64_t begin, std::int64_t end, Activation activation) const {
    MSTAR_TRY_ASSIGN(
        const LinearWeight weight,
        LinearWeight::pack(ops.device, {TensorView(const_cast<float*>(w.data()), DType::f32, {c.n, c.k}), nullptr},
                           storage));
    LinearArgs args;
    args.x = place.f32({x.begin() + begin * x_stride, x.begin() + end * x_stride}, {end - begin, c.k}, x_stride);
    args.weight = &weight;
    args.bias = place.f32(bias, {c.n});
    args.residual = place.f32({residual.begin() + begin * c.n, residual.begin() + end * c.n}, {end - begin, c.n});
    args.activation = activation;
    args.out = place.out(end - begin, c.n, c.n + 5);
    const Status ran = linear(ops, args);
    ops.device.synchronize(ops.stream);  // the weight goes with this call
    return ran;
  }
};

void check_linear(Twins& twins) {
  std::vector<LinearCase> cases(std::begin(op_test::kSmallLinearCases), std::end(op_test::kSmallLinearCases));
  for (const std::int64_t m : {1, 5, 8, 32})
    for (const auto& [n, k] : {std::pair{768, 256}, {256, 1024}, {1000, 256}}) cases.push_back({"toy", m, n, k});
  for (const DType storage : {DType::f32, DType::f16, DType::bf16}) {
    Difference difference;
    int which = 0;
    for (const LinearCase& c : cases) {
      const auto activation = static_cast<Activation>(which % 4);
      // Rows apart by an odd number, and by one that allows wide loads.
      const LinearProblem p(c, storage, which++ % 2 ? c.k + 3 : (c.k + 7) / 4 * 4);
      twins.run([&](OpContext& ops, Place& place) { return p.run(ops, place, 0, c.m, activation); }, difference);
    }
    twins.judge("linear " + std::string(dtype_name(storage)), difference, 1e-4);

    const LinearProblem p({"", 33, 130, 600}, storage, 600);
    std::vector<float> whole, part;
    Difference ignored;
    const auto rows = [&](std::int64_t begin, std::int64_t end, std::vector<float>& to) {
      return twins.run(
          [&](OpContext& ops, Place& place) { return p.run(ops, place, begin, end, Activation::gelu_erf); }, ignored,
          &to);
    };
    bool same = rows(0, 33, whole);
    for (const std::int64_t size : {1, 2, 3, 5, 8, 16, 32})
      for (std::int64_t begin = 0; same && begin + size <= 33; begin += size)
        same =
            rows(begin, begin + size, part) && std::memcmp(part.data(), whole.data() + begin * 135,
                                                           static_cast<std::size_t>(size * 135) * sizeof(float)) == 0;
    twins.report().check(same, "linear " + std::string(dtype_name(storage)) + ": a row's bits in any batch");
  }
}

// ---- rows
// --------------------------------------------------------------------------------------------------------------

void check_embedding(Twins& twins) {
  const std::int64_t vocab = 50, d = 21;
  const auto table = draw(vocab * d, 1), positions = draw(10 * d, 2);
  Difference difference;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool tied : {false, true}) {
      twins.run(
          [&](OpContext& ops, Place& place) -> Status {
            LinearWeight weight;
            if (tied) {
              MSTAR_TRY_ASSIGN(
                  weight, LinearWeight::pack(
                              ops.device,
                              {TensorView(const_cast<float*>(table.data()), DType::f32, {vocab, d}), nullptr}, dtype));
            }
            EmbeddingArgs args;
            args.ids = place.i32({49, 0, 7, 33});
            if (tied) {
              args.tied = &weight;
            } else {
              args.table = place.as(dtype, table, {vocab, d});
            }
            args.positions = place.i32({0, 9, 3, 3});
            args.position_table = place.as(dtype == DType::f16 ? DType::bf16 : DType::f32, positions, {10, d});
            args.out = place.out(4, d, d + 1);
            const Status ran = embedding(ops, args);
            ops.device.synchronize(ops.stream);
            return ran;
          },
          difference);
    }
  }
  twins.judge("embedding", difference, 0);
}

void check_norms(Twins& twins) {
  Difference layer, rms;
  for (const std::int64_t d : {1, 7, 16, 33, 256, 512, 1283, 5120}) {
    auto x = draw(9 * (d + 3), 1, 3.0f);
    for (float& value : x) value += 20.0f;
    const auto weight = draw(d, 2), bias = draw(d, 3);
    for (const bool with_bias : {false, true}) {
      twins.run(
          [&](OpContext& ops, Place& place) {
            LayerNormArgs args;
            args.x = place.f32(x, {9, d}, d + 3);
            args.weight = place.f32(weight, {d});
            if (with_bias) args.bias = place.f32(bias, {d});
            args.out = place.out(9, d, d + 2);
            return layer_norm(ops, args);
          },
          layer);
      twins.run(
          [&](OpContext& ops, Place& place) {
            return rms_norm(ops, {place.f32(x, {9, d}, d + 3), place.f32(weight, {d}), 1e-6f, with_bias ? 1.0f : 0.0f,
                                  place.out(9, d, d + 2)});
          },
          rms);
    }
  }
  twins.judge("layer_norm", layer, 1e-5);
  twins.judge("rms_norm", rms, 2e-6);
}

void check_elementwise(Twins& twins) {
  Difference adds, activations, gates, softmaxes;
  const auto a = draw(5 * 1003, 1, 3.0f), b = draw(5 * 1003, 2);
  std::vector<float> range;
  for (float v = -30.0f; v <= 30.0f; v += 0.0137f) range.push_back(v);
  for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-6f, 200.0f, -200.0f, 1e30f, -1e30f}) range.push_back(v);
  const auto n = static_cast<std::int64_t>(range.size());
  for (const bool one_row : {false, true})
    twins.run(
        [&](OpContext& ops, Place& place) {
          return add(ops, {place.f32(a, {5, 1003}), place.f32(b, {one_row ? 1 : 5, 1003}), place.out(5, 1003, 1010)});
        },
        adds);
  for (const auto activation : {Activation::none, Activation::gelu_erf, Activation::gelu_tanh, Activation::silu})
    twins.run(
        [&](OpContext& ops, Place& place) {
          return activate(ops, {place.f32(range, {1, n}), activation, place.out(1, n)});
        },
        activations);
  twins.run(
      [&](OpContext& ops, Place& place) {
        TensorView gate = place.f32(a, {5, 501}, 1003), up = gate;
        up.pointer = up.data<float>() + 501;
        return silu_mul(ops, {gate, up, place.out(5, 501)});
      },
      gates);
  for (const std::int64_t width : {1, 31, 1003})
    twins.run(
        [&](OpContext& ops, Place& place) {
          return softmax(ops, {place.f32(a, {5, width}, 1003), place.out(5, width, 1010)});
        },
        softmaxes);
  twins.judge("add", adds, 0);
  twins.judge("activate", activations, 1e-6);
  twins.judge("silu_mul", gates, 1e-6);
  twins.judge("softmax", softmaxes, 1e-6);
}

void check_sample(Twins& twins) {
  Difference difference;
  for (const std::int64_t vocab : {1, 7, 1000, 51865}) {
    for (const std::int64_t rows : {1, 5, 32}) {
      auto logits = draw(rows * (vocab + 1), 9, 4.0f);
      if (vocab == 1000) {  // ties go to the lower id, and a row may be masked whole
        logits[17] = logits[400] = logits[999] = 50.0f;
        if (rows > 1) std::fill_n(logits.begin() + vocab + 1, vocab, -std::numeric_limits<float>::infinity());
      }
      const std::vector<SampleRow> wanted(static_cast<std::size_t>(rows));
      twins.run(
          [&](OpContext& ops, Place& place) {
            TensorView scores = place.out(rows, 1);
            scores = scores.reshaped({rows});
            return sample(ops, {.logits = place.f32(logits, {rows, vocab}, vocab + 1),
                                .rows = wanted,
                                .tokens = place.out_i32(rows),
                                .log_probs = scores});
          },
          difference);
    }
  }
  twins.judge("sample, greedy", difference, 2e-6);
}

// ---- attention
// ---------------------------------------------------------------------------------------------------------

// The rows' history is appended by one call and their new tokens by another; then they attend.
struct PagedProblem {
  const AttentionCase& c;
  int page_tokens;
  DType dtype;

  Status append_and_attend(OpContext& ops, Place& place) const {
    std::vector<std::int32_t> totals, zeros(c.counts.size(), 0);
    int max_pages = 0;
    for (std::size_t r = 0; r < c.counts.size(); ++r) {
      totals.push_back(c.before[r] + c.counts[r]);
      max_pages = std::max(max_pages, (totals.back() + page_tokens - 1) / page_tokens);
    }
    const int num_pages = 1 + max_pages * static_cast<int>(totals.size());
    std::vector<std::int32_t> table;
    for (int page = 1; page < num_pages; ++page) table.push_back(page);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    PagedKvView kv;
    kv.keys = place.poisoned(dtype, {num_pages, page_tokens, c.kv_heads, c.d});
    kv.values = place.poisoned(dtype, {num_pages, page_tokens, c.kv_heads, c.d});
    kv.page_table = place.i32(table).data<std::int32_t>();
    kv.max_pages = max_pages;
    kv.page_tokens = page_tokens;
    MSTAR_TRY(step(ops, place, kv, zeros, c.before, 10, false));
    return step(ops, place, kv, c.before, totals, 20, true);
  }
  // Tokens [from[r], to[r]) of each row.
  Status step(OpContext& ops, Place& place, PagedKvView kv, const std::vector<std::int32_t>& from,
              const std::vector<std::int32_t>& to, std::uint32_t seed, bool attends) const {
    std::vector<std::int32_t> offsets = {0};
    for (std::size_t r = 0; r < from.size(); ++r) offsets.push_back(offsets.back() + to[r] - from[r]);
    const std::int64_t tokens = offsets.back(), width = (c.heads + 2 * c.kv_heads) * c.d;
    if (tokens == 0) return ok_status();
    const TensorView fused = place.f32(draw(tokens * width, seed), {tokens, width});
    const auto heads_at = [&](std::int64_t at, int heads) {
      TensorView view = fused;
      view.pointer = fused.data<float>() + at;
      view.shape = {tokens, heads, c.d};
      view.strides = {width, c.d, 1};
      return view;
    };
    kv.lengths = place.i32(to).data<std::int32_t>();
    const RaggedView rows{place.i32(offsets).data<std::int32_t>(), static_cast<int>(from.size()),
                          static_cast<int>(tokens)};
    MSTAR_TRY(kv_append(
        ops, {heads_at(c.heads * c.d, c.kv_heads), heads_at((c.heads + c.kv_heads) * c.d, c.kv_heads), rows, kv}));
    if (!attends) return ok_status();
    PagedAttentionArgs args;
    args.q = heads_at(0, c.heads);
    args.rows = rows;
    args.kv = kv;
    args.scale = 1.0f / std::sqrt(static_cast<float>(c.d));
    args.out = place.out(tokens, static_cast<std::int64_t>(c.heads) * c.d);
    args.out = TensorView(args.out.pointer, DType::f32, {tokens, c.heads, c.d}, args.out.device);
    return attention_paged(ops, args);
  }
};

void check_attention(Twins& twins) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Difference difference;
    for (const AttentionCase& c : op_test::kAttentionCases)
      for (const int page_tokens : {16, 32, 64})
        twins.run(
            [&](OpContext& ops, Place& place) {
              return PagedProblem{c, page_tokens, dtype}.append_and_attend(ops, place);
            },
            difference);
    twins.judge("kv_append and attention_paged " + std::string(dtype_name(dtype)), difference, 1e-5);
  }
}

}  // namespace

void check_ops(Report& report, Device& cuda) {
  Twins twins(report, cuda);
  check_linear(twins);
  check_embedding(twins);
  check_norms(twins);
  check_elementwise(twins);
  check_sample(twins);
  check_attention(twins);
}

}  // namespace mstar::bench
