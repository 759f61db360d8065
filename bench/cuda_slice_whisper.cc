// What Whisper calls beyond decoders of text: attention over whole rows and slots, convolutions, layer norms, the
// probabilities of a few tokens and the rules of timestamps.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "mstar/ops/attention/attention.h"
#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/conv1d/conv1d.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/layer_norm/layer_norm.h"
#include "mstar/ops/linear/linear.h"
#include "mstar/ops/sample/sample.h"
#include "mstar/ops/timestamp_rules/timestamp_rules.h"
#include "twins.h"

namespace mstar::bench {
namespace {

constexpr DType kActivations[] = {DType::f32, DType::bf16};

double tolerance_of(DType out, double f32) { return out == DType::f32 ? f32 : 3.95e-3; }
double relative_of(DType out) { return out == DType::f32 ? 1e-5 : 3.95e-3; }

std::vector<std::int32_t> offsets_of(const std::vector<int>& counts) {
  std::vector<std::int32_t> out = {0};
  for (const int count : counts) out.push_back(out.back() + count);
  return out;
}

TensorView as_heads(TensorView rows, int heads, int d) {
  const std::int64_t stride = rows.stride(0);
  rows.shape = {rows.dim(0), heads, d};
  rows.strides = {stride, d, 1};
  return rows;
}

// ---- norms and convolutions

void check_layer_norm(Twins& twins) {
  Difference narrow, in_place;
  for (const std::int64_t d : {1, 7, 16, 250, 256, 384, 512, 513, 768, 1024, 1025, 1280, 1283, 2048, 2056, 5120}) {
    for (const std::int64_t more : {0, 3, 8}) {
      const auto x = draw(9 * (d + more), 1, 3.0f), weight = draw(d, 2), bias = draw(d, 3);
      twins.run(
          [&](OpContext& ops, Place& place) {
            return layer_norm(
                ops, {place.f32(x, {9, d}, d + more), place.f32(weight, {d}),
                      more ? place.f32(bias, {d}) : TensorView(), 1e-5f, place.out(DType::bf16, 9, d, d + more)});
          },
          narrow);
      twins.run(
          [&](OpContext& ops, Place& place) {
            const TensorView rows = place.in_out(DType::f32, x, {9, d}, d + more);
            return layer_norm(ops, {rows, place.f32(weight, {d}), place.f32(bias, {d}), 1e-5f, rows});
          },
          in_place);
    }
  }
  twins.judge("layer_norm f32 to bf16", narrow, 3.95e-3, 3.95e-3);
  twins.judge("layer_norm in place", in_place, 1e-5);
}

void check_conv1d(Twins& twins) {
  for (const DType dtype : kActivations) {
    Difference difference;
    struct Case {
      std::int64_t channels, outputs, frames;
      int stride;
      bool channels_first, residual;
    };
    for (const Case& c :
         {Case{80, 384, 100, 1, true, false}, Case{128, 1280, 61, 1, true, false}, Case{16, 24, 1, 1, true, true},
          Case{384, 384, 100, 2, false, true}, Case{1280, 1280, 31, 2, false, true}, Case{40, 32, 2, 2, false, false},
          Case{33, 20, 70, 2, true, true}, Case{80, 64, 3000, 1, true, false}}) {
      const std::int64_t out_frames = (c.frames - 1) / c.stride + 1;
      auto w = draw(c.outputs * c.channels * 3, 2, 0.5f / std::sqrt(static_cast<float>(c.channels)));
      if (dtype == DType::bf16)
        for (float& v : w) v = to_float(to_bfloat16(v));
      const auto x = draw(c.frames * c.channels, 1), bias = draw(c.outputs, 3), added = draw(out_frames * c.outputs, 4);
      twins.run(
          [&](OpContext& ops, Place& place) -> Status {
            const bool on_cpu = ops.backend() == Backend::cpu;
            MSTAR_TRY_ASSIGN(const LinearWeight weight,
                             pack_conv1d(ops.device, TensorView(w.data(), DType::f32, {c.outputs, c.channels, 3}),
                                         on_cpu ? DType::f32 : dtype));
            Conv1dArgs args;
            const Shape shape = c.channels_first ? Shape{c.channels, c.frames} : Shape{c.frames, c.channels};
            args.x = place.activations(dtype, x, shape);
            args.channels_first = c.channels_first;
            args.weight = &weight;
            args.bias = place.f32(bias, {c.outputs});
            args.stride = c.stride;
            args.activation = Activation::gelu_erf;
            if (c.residual) args.residual = place.f32(added, {out_frames, c.outputs});
            args.out = c.residual ? place.out(out_frames, c.outputs) : place.out(dtype, out_frames, c.outputs);
            const Status ran = conv1d(ops, args);
            ops.device.synchronize(ops.stream);  // the weight goes with this call
            return ran;
          },
          difference);
    }
    // Of many rows a 16-bit product is rounded once more before its bias.
    twins.judge("conv1d " + std::string(dtype_name(dtype)), difference, dtype == DType::f32 ? 1e-4 : 1.2e-2,
                dtype == DType::f32 ? 1e-5 : 4e-3);
  }
}

// Rows of logits whose length is no multiple of 16 bytes, as large-v3's 51866.
void check_logits(Twins& twins) {
  Difference difference;
  for (const std::int64_t vocab : {6, 1002, 4098}) {
    constexpr std::int64_t kInputs = 384;
    auto w = draw(vocab * kInputs, 1, 0.05f);
    for (float& v : w) v = to_float(to_bfloat16(v));
    for (const std::int64_t rows : {1, 8, 31, 64, 65, 150}) {
      const auto x = draw(rows * kInputs, 2);
      twins.run(
          [&](OpContext& ops, Place& place) -> Status {
            const bool on_cpu = ops.backend() == Backend::cpu;
            const LinearSource source{TensorView(w.data(), DType::f32, {vocab, kInputs}), nullptr};
            MSTAR_TRY_ASSIGN(const LinearWeight weight,
                             LinearWeight::pack(ops.device, source, on_cpu ? DType::f32 : DType::bf16));
            const Status ran = linear(ops, {.x = place.activations(DType::bf16, x, {rows, kInputs}),
                                            .weight = &weight,
                                            .out = place.out(rows, vocab, (vocab + 3) / 4 * 4)});
            ops.device.synchronize(ops.stream);  // the weight goes with this call
            return ran;
          },
          difference);
    }
  }
  twins.judge("linear: rows of logits at odd places", difference, 2e-5);
}

// ---- attention

struct WholeCase {
  int heads, kv_heads, d;
  std::vector<int> counts;   // query tokens of each row
  std::vector<int> lengths;  // of slots: keys of each row
};

// `bias` [2][heads * d], or nothing: of queries and of values.
Status attend_dense(OpContext& ops, Place& place, const WholeCase& c, DType dtype, bool causal,
                    std::vector<float> values, const std::vector<float>& bias = {}) {
  const auto offsets = offsets_of(c.counts);
  const std::int64_t tokens = offsets.back(), width = static_cast<std::int64_t>(c.heads + 2 * c.kv_heads) * c.d;
  const std::int64_t keys = static_cast<std::int64_t>(c.heads) * c.d;
  const bool on_cpu = ops.backend() == Backend::cpu;
  for (std::int64_t token = 0; token < tokens && !bias.empty() && on_cpu; ++token) {
    for (std::int64_t i = 0; i < keys; ++i) {
      float& value = values[static_cast<std::size_t>(token * width + i)];
      value = to_float(to_bfloat16(value)) + bias[static_cast<std::size_t>(i)];
    }
  }
  const TensorView fused = place.activations(dtype, values, {tokens, width});
  DenseAttentionArgs args;
  args.q = part_of(fused, 0, c.heads, c.d);
  args.k = part_of(fused, keys, c.kv_heads, c.d);
  args.v = part_of(fused, keys + static_cast<std::int64_t>(c.kv_heads) * c.d, c.kv_heads, c.d);
  args.rows = {place.i32(offsets).data<std::int32_t>(), static_cast<int>(c.counts.size()), static_cast<int>(tokens)};
  args.scale = 2.0f / std::sqrt(static_cast<float>(c.d));
  args.causal = causal;
  const TensorView out = place.out(dtype, tokens, keys);
  args.out = as_heads(out, c.heads, c.d);
  if (bias.empty()) return attention_dense(ops, args);
  const TensorView biases = place.f32(bias, {2, keys});
  if (on_cpu) {
    MSTAR_TRY(attention_dense(ops, args));
    return add(ops, {out, biases.slice(1, 2), out});
  }
  args.q_bias = biases.at(0);
  args.v_bias = biases.at(1);
  return attention_dense(ops, args);
}
std::vector<float> fused_of(const WholeCase& c, std::uint32_t seed) {
  return draw(static_cast<std::int64_t>(offsets_of(c.counts).back()) * (c.heads + 2 * c.kv_heads) * c.d, seed);
}

void check_dense(Twins& twins) {
  const WholeCase cases[] = {{1, 1, 64, {1}, {}},           {2, 2, 64, {63, 64, 65}, {}}, {6, 6, 64, {127, 1, 129}, {}},
                             {4, 2, 64, {70, 0, 33}, {}},   {20, 20, 64, {200}, {}},      {3, 3, 64, {1500, 1500}, {}},
                             {2, 2, 64, {128, 256, 3}, {}}, {4, 4, 16, {17, 40}, {}},     {2, 1, 128, {33}, {}}};
  for (const DType dtype : kActivations) {
    Difference whole, causal;
    std::uint32_t seed = 1;
    for (const WholeCase& c : cases) {
      const auto values = fused_of(c, seed++);
      twins.run([&](OpContext& ops, Place& place) { return attend_dense(ops, place, c, dtype, false, values); }, whole);
      if (offsets_of(c.counts).back() < 1000)
        twins.run([&](OpContext& ops, Place& place) { return attend_dense(ops, place, c, dtype, true, values); },
                  causal);
    }
    const std::string name = "attention_dense " + std::string(dtype_name(dtype));
    twins.judge(name, whole, tolerance_of(dtype, 2e-5) * 1.5, relative_of(dtype) * 1.2);
    twins.judge(name + ", causal", causal, tolerance_of(dtype, 2e-5), relative_of(dtype));
  }
  Difference biased;
  for (const WholeCase& c : cases)
    if (c.heads == c.kv_heads && c.d == 64)
      twins.run(
          [&](OpContext& ops, Place& place) {
            return attend_dense(ops, place, c, DType::bf16, false, fused_of(c, 7),
                                draw(std::int64_t{2} * c.heads * c.d, 8));
          },
          biased);
  twins.judge("attention_dense with biases", biased, 6e-3, 4.8e-3);
  // A row's bits alone and among others.
  const WholeCase both{6, 6, 64, {300, 1500}, {}}, second{6, 6, 64, {1500}, {}};
  const auto values = fused_of(both, 9);
  const std::vector<float> own(values.begin() + 300 * 18 * 64, values.end());
  const auto among = twins.run_on_gpu(
      [&](OpContext& ops, Place& place) { return attend_dense(ops, place, both, DType::bf16, false, values); });
  const auto alone = twins.run_on_gpu(
      [&](OpContext& ops, Place& place) { return attend_dense(ops, place, second, DType::bf16, false, own); });
  const std::size_t count = std::size_t{1500} * 6 * 64;
  twins.report().check(among.size() >= 300 * 6 * 64 + count && alone.size() >= count &&
                           std::memcmp(among.data() + 300 * 6 * 64, alone.data(), count * sizeof(float)) == 0,
                       "attention_dense: a row's bits in any batch");
}

Status attend_slots(OpContext& ops, Place& place, const WholeCase& c, DType dtype, DType stored,
                    const std::vector<float>& value_bias = {}) {
  const int rows = static_cast<int>(c.counts.size());
  const std::int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const std::int64_t capacity = (longest + 15) / 16 * 16;
  const auto offsets = offsets_of(c.counts), contexts = offsets_of(c.lengths);
  const std::int64_t tokens = offsets.back(), keys = contexts.back(), width = std::int64_t{2} * c.kv_heads * c.d;
  const bool on_cpu = ops.backend() == Backend::cpu;
  std::vector<float> drawn = draw(keys * width, 3);
  const std::int64_t half = width / 2;
  for (std::int64_t key = 0; key < keys && on_cpu && !value_bias.empty(); ++key) {
    for (std::int64_t i = 0; i < half; ++i) {
      float& value = drawn[static_cast<std::size_t>(key * width + half + i)];
      value = to_float(to_bfloat16(value)) + value_bias[static_cast<std::size_t>(i)];
    }
  }
  const TensorView fused = place.activations(dtype, drawn, {keys, width});
  std::vector<std::int32_t> slots;
  for (int row = 0; row < rows; ++row) slots.push_back(1 + (row * 11 + 3) % rows);
  // 11 and the number of rows have no common factor in the cases, so no slot is there twice.
  SlotKvView kv;
  kv.keys = place.poisoned(on_cpu ? DType::f32 : stored, {rows + 1, capacity, c.kv_heads, c.d});
  kv.values = place.poisoned(on_cpu ? DType::f32 : stored, {rows + 1, capacity, c.kv_heads, c.d});
  kv.slots = place.i32(slots).data<std::int32_t>();
  kv.lengths = place.i32({c.lengths.begin(), c.lengths.end()}).data<std::int32_t>();
  KvStoreArgs store{part_of(fused, 0, c.kv_heads, c.d),
                    part_of(fused, half, c.kv_heads, c.d),
                    {place.i32(contexts).data<std::int32_t>(), rows, static_cast<int>(keys)},
                    kv};
  if (!on_cpu && !value_bias.empty()) store.value_bias = place.f32(value_bias, {half});
  MSTAR_TRY(kv_store(ops, store));
  ops.device.synchronize(ops.stream);  // in a model another component's step lies between
  const std::int64_t q_width = static_cast<std::int64_t>(c.heads) * c.d;
  SlotAttentionArgs args;
  args.q = as_heads(place.activations(dtype, draw(tokens * q_width, 5), {tokens, q_width}), c.heads, c.d);
  args.rows = {place.i32(offsets).data<std::int32_t>(), rows, static_cast<int>(tokens)};
  args.kv = kv;
  args.scale = 2.0f / std::sqrt(static_cast<float>(c.d));
  args.out = as_heads(place.out(dtype, tokens, q_width), c.heads, c.d);
  return attention_slots(ops, args);
}

void check_slots(Twins& twins) {
  const WholeCase single[] = {{1, 1, 64, {1}, {1}},
                              {6, 6, 64, {1, 1, 1}, {64, 65, 1500}},
                              {20, 20, 64, {1, 1}, {1500, 1500}},
                              {4, 2, 64, {1, 1}, {63, 130}},
                              {3, 3, 64, std::vector<int>(70, 1), std::vector<int>(70, 100)},
                              {2, 2, 64, {1, 1, 1}, {1, 15, 513}},
                              {4, 4, 16, {1, 1}, {31, 200}}};
  const WholeCase longer[] = {{6, 6, 64, {4, 4, 4}, {1500, 100, 64}},
                              {20, 20, 64, {4, 227}, {1500, 1500}},
                              {6, 6, 64, {1, 5, 1, 130}, {1500, 64, 65, 300}},
                              {6, 6, 64, {8, 1, 9}, {1500, 64, 65}},
                              {4, 2, 64, {3, 70}, {63, 130}},
                              {4, 4, 16, {3, 1}, {31, 200}}};
  for (const DType dtype : kActivations) {
    Difference one, many;
    for (const WholeCase& c : single)
      twins.run([&](OpContext& ops, Place& place) { return attend_slots(ops, place, c, dtype, dtype); }, one);
    for (const WholeCase& c : longer)
      twins.run([&](OpContext& ops, Place& place) { return attend_slots(ops, place, c, dtype, dtype); }, many);
    if (dtype == DType::bf16) {
      const WholeCase c{6, 6, 64, {1, 1}, {64, 700}};
      twins.run(
          [&](OpContext& ops, Place& place) {
            return attend_slots(ops, place, c, dtype, dtype, draw(std::int64_t{c.heads} * c.d, 6));
          },
          one);
    }
    const std::string name(dtype_name(dtype));
    twins.judge("kv_store and attention_slots, single tokens, " + name, one, tolerance_of(dtype, 2e-5),
                relative_of(dtype));
    twins.judge("kv_store and attention_slots, prompts, " + name, many, tolerance_of(dtype, 2e-5) * 1.5,
                relative_of(dtype) * 1.2);
  }
}

// A row's bits alone, where a cluster shares a head, and among others, where a block has it.
void check_slots_bits(Twins& twins) {
  constexpr int kHeads = 20, kDim = 64, kRows = 34;
  std::vector<float> alone, among;
  Difference ignored;
  for (const bool many : {false, true}) {
    const WholeCase c{kHeads, kHeads, kDim, std::vector<int>(many ? kRows : 1, 1),
                      std::vector<int>(many ? kRows : 1, 1500)};
    twins.run([&](OpContext& ops, Place& place) { return attend_slots(ops, place, c, DType::bf16, DType::bf16); },
              ignored, many ? &among : &alone);
  }
  const std::size_t count = std::size_t{kHeads} * kDim;
  twins.report().check(alone.size() >= count && among.size() >= count &&
                           std::memcmp(alone.data(), among.data(), count * sizeof(float)) == 0,
                       "attention_slots: a row's bits in any batch");
}

// Self attention that appends the step's tokens itself, and then a look at the pages by the call that does not.
Status attend_pages(OpContext& ops, Place& place, const WholeCase& c, DType dtype) {
  const int rows = static_cast<int>(c.counts.size());
  constexpr int kPageTokens = 16, kMaxPages = 28;
  const bool on_cpu = ops.backend() == Backend::cpu;
  const auto offsets = offsets_of(c.counts), before = offsets_of(c.lengths);  // lengths: tokens that are there already
  const std::int64_t tokens = offsets.back(), old = before.back(), width = std::int64_t{3} * c.heads * c.d;
  std::vector<std::int32_t> table, lengths;
  for (int row = 0; row < rows; ++row) {
    for (int page = 0; page < kMaxPages; ++page) table.push_back(1 + page * rows + (rows - 1 - row));
    lengths.push_back(c.lengths[static_cast<std::size_t>(row)] + c.counts[static_cast<std::size_t>(row)]);
  }
  PagedKvView kv;
  const DType stored = on_cpu ? DType::f32 : dtype;
  kv.keys = place.poisoned(stored, {1 + kMaxPages * rows, kPageTokens, c.kv_heads, c.d});
  kv.values = place.poisoned(stored, {1 + kMaxPages * rows, kPageTokens, c.kv_heads, c.d});
  kv.page_table = place.i32(table).data<std::int32_t>();
  kv.max_pages = kMaxPages;
  kv.page_tokens = kPageTokens;
  kv.lengths = place.i32({c.lengths.begin(), c.lengths.end()}).data<std::int32_t>();
  const std::int64_t at_keys = static_cast<std::int64_t>(c.heads) * c.d, at_values = 2 * at_keys;
  if (old > 0) {
    const TensorView fused = place.activations(dtype, draw(old * width, 3), {old, width});
    MSTAR_TRY(kv_append(ops, {part_of(fused, at_keys, c.kv_heads, c.d),
                              part_of(fused, at_values, c.kv_heads, c.d),
                              {place.i32(before).data<std::int32_t>(), rows, static_cast<int>(old)},
                              kv}));
  }
  kv.lengths = place.i32(lengths).data<std::int32_t>();
  const TensorView fused = place.activations(dtype, draw(tokens * width, 4), {tokens, width});
  PagedAttentionArgs args;
  args.q = part_of(fused, 0, c.heads, c.d);
  args.rows = {place.i32(offsets).data<std::int32_t>(), rows, static_cast<int>(tokens)};
  args.kv = kv;
  args.scale = 2.0f / std::sqrt(static_cast<float>(c.d));
  args.out = as_heads(place.out(dtype, tokens, at_keys), c.heads, c.d);
  args.new_keys = part_of(fused, at_keys, c.kv_heads, c.d);
  args.new_values = part_of(fused, at_values, c.kv_heads, c.d);
  MSTAR_TRY(attention_paged(ops, args));
  args.new_keys = args.new_values = {};
  args.out = as_heads(place.out(dtype, tokens, at_keys), c.heads, c.d);
  return attention_paged(ops, args);
}

void check_pages(Twins& twins) {
  const WholeCase cases[] = {{1, 1, 64, {1}, {0}},
                             {20, 20, 64, {1}, {30}},
                             {6, 6, 64, {1, 1, 1, 1}, {15, 16, 17, 447}},
                             {20, 20, 64, std::vector<int>(33, 1), std::vector<int>(33, 200)},
                             {6, 6, 64, {3, 1, 5, 1}, {0, 100, 40, 3}},
                             {6, 6, 64, {2, 0}, {30, 1}},
                             {2, 2, 64, {40, 1}, {0, 100}}};
  for (const DType dtype : kActivations) {
    Difference difference;
    for (const WholeCase& c : cases)
      twins.run([&](OpContext& ops, Place& place) { return attend_pages(ops, place, c, dtype); }, difference);
    twins.judge("attention_paged that appends, " + std::string(dtype_name(dtype)), difference,
                tolerance_of(dtype, 2e-5) * 1.5, relative_of(dtype) * 1.2);
  }
}

// ---- tokens

void check_token_probabilities(Twins& twins) {
  Difference difference;
  for (const std::int64_t vocab : {7, 1000, 51865, 51866}) {
    std::vector<std::int32_t> ids;
    for (std::int64_t id = 0; id < std::min<std::int64_t>(vocab, 100); ++id)
      ids.push_back(static_cast<std::int32_t>(vocab - 1 - id));
    const auto logits = draw(3 * (vocab + 2), 4, 4.0f);
    for (const bool among : {false, true})
      twins.run(
          [&](OpContext& ops, Place& place) {
            return token_probabilities(ops, {.logits = place.f32(logits, {3, vocab}, vocab + 2),
                                             .ids = ids,
                                             .among_ids = among,
                                             .out = place.out(3, static_cast<std::int64_t>(ids.size()))});
          },
          difference);
  }
  twins.judge("token_probabilities", difference, 1e-6);
}

// Two steps of rows in all states: prompts of several tokens, single tokens, a row that does not draw.
void check_timestamp_rules(Twins& twins) {
  constexpr std::int32_t kEot = 50257, kBegin = 50365, kVocab = 51866;
  constexpr int kRows = 5, kPositions = 448, kRangeBegin = 4;
  Difference difference;
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    std::vector<int> counts;
    std::vector<std::int32_t> ids, positions, begins, slots, held(std::size_t{6} * kPositions);
    for (std::int32_t& each : held)
      each = random() % 2 ? kBegin + static_cast<std::int32_t>(random() % 1500)
                          : static_cast<std::int32_t>(random() % kEot);
    for (int row = 0; row < kRows; ++row) {
      const bool prompt = random() % 3 == 0;
      counts.push_back(prompt ? 1 + static_cast<int>(random() % 70) : 1);
      const int before = prompt ? 0 : 3 + static_cast<int>(random() % 60);
      begins.push_back(prompt ? counts.back() : 3 + static_cast<std::int32_t>(random() % (before - 2)));
      slots.push_back(row + 1);
      for (int i = 0; i < counts.back(); ++i) {
        positions.push_back(before + i);
        ids.push_back(random() % 2 ? kBegin + static_cast<std::int32_t>(random() % 1500)
                                   : static_cast<std::int32_t>(random() % kEot));
      }
    }
    const auto offsets = offsets_of(counts);
    std::vector<std::int32_t> wanted(kRows * kSampleRowWords);
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<std::int32_t>(i);
    twins.run(
        [&](OpContext& ops, Place& place) {
          TimestampRulesArgs args;
          args.ids = place.i32(ids);
          args.positions = place.i32(positions);
          args.rows = {place.i32(offsets).data<std::int32_t>(), kRows, offsets.back()};
          args.slots = place.i32(slots).data<std::int32_t>();
          args.begins = place.i32(begins);
          args.history = place.i32(held).reshaped({6, kPositions});
          args.first_row = round % 2;
          args.num_rows = kRows - round % 2;
          args.wanted = reinterpret_cast<const SampleRowWords*>(place.i32(wanted).pointer);
          args.rules = {kEot, kBegin - 1, kBegin, kVocab, 50, {0, 3}, {0, 4}};
          args.lists = place.out_i32(kRangeBegin + kRows * kTimestampRangeWords).data<std::int32_t>();
          args.range_begin = kRangeBegin;
          args.out = reinterpret_cast<SampleRowWords*>(place.out_i32(kRows * kSampleRowWords).pointer);
          return timestamp_rules(ops, args);
        },
        difference);
  }
  twins.judge("timestamp_rules", difference, 0, 0);
}

}  // namespace

void check_whisper_ops(Report& report, Device& cuda) {
  Twins twins(report, cuda);
  check_layer_norm(twins);
  check_conv1d(twins);
  check_logits(twins);
  check_dense(twins);
  check_slots(twins);
  check_slots_bits(twins);
  check_pages(twins);
  check_token_probabilities(twins);
  check_timestamp_rules(twins);
}

}  // namespace mstar::bench
