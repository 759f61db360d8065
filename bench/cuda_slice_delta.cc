// The delta rule, its gates and the convolution before it: ragged rows, fresh and carried-on states.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "mstar/ops/causal_conv1d/causal_conv1d.h"
#include "mstar/ops/delta_rule/delta_rule.h"
#include "twins.h"

namespace mstar::bench {
namespace {

// Rows of a step: how many tokens each has here and how many it had before. Each row's values come from its own seed,
// so that a row is the same alone and among others.
struct Rows {
  struct One {
    std::int32_t tokens, before;
    std::uint32_t seed;
  };
  std::vector<One> all;
  bool moves = false;                   // states go to other slots than they come from
  std::vector<std::int32_t> kept = {};  // tokens of each row after which its states are kept too; empty: of none

  static Rows keeping(std::vector<std::pair<int, int>> counts, std::vector<std::int32_t> kept, bool moves = false) {
    Rows rows = of(std::move(counts), moves);
    rows.kept = std::move(kept);
    return rows;
  }
  static Rows of(std::vector<std::pair<int, int>> counts, bool moves = false) {
    Rows rows;
    rows.moves = moves;
    for (std::size_t r = 0; r < counts.size(); ++r)
      rows.all.push_back({counts[r].first, counts[r].second, 100 + 10 * static_cast<std::uint32_t>(r)});
    return rows;
  }
  std::int32_t num_tokens() const {
    std::int32_t tokens = 0;
    for (const One& row : all) tokens += row.tokens;
    return tokens;
  }
  // `width` numbers a token, and those of two tokens that belong to no row.
  std::vector<float> tokens(std::int64_t width, std::uint32_t which) const {
    std::vector<float> out;
    for (const One& row : all)
      for (const float v : draw(row.tokens * width, row.seed + which)) out.push_back(v);
    out.resize(out.size() + static_cast<std::size_t>(2 * width), 0.5f);
    return out;
  }
  // `width` numbers a slot; row r is in slot r + 1, and where states move goes to one behind those. What is kept of it
  // goes to one behind all of these.
  std::vector<float> slots(std::int64_t width, std::uint32_t which) const {
    std::vector<float> out(static_cast<std::size_t>(width), 3.0f);
    for (const One& row : all)
      for (const float v : draw(width, row.seed + which)) out.push_back(v);
    out.resize(static_cast<std::size_t>(num_slots() * width), 4.0f);
    return out;
  }
  std::int64_t num_slots() const { return first_kept_slot() + static_cast<std::int64_t>(kept.size()); }
  std::int64_t first_kept_slot() const { return 1 + static_cast<std::int64_t>(all.size()) * (moves ? 2 : 1); }
  RaggedView ragged(Place& place) const {
    std::vector<std::int32_t> offsets = {0};
    for (const One& row : all) offsets.push_back(offsets.back() + row.tokens);
    return {place.i32(offsets).data<std::int32_t>(), static_cast<int>(all.size()), num_tokens()};
  }
  const std::int32_t* positions(Place& place) const {
    std::vector<std::int32_t> out;
    for (const One& row : all)
      for (std::int32_t t = 0; t < row.tokens; ++t) out.push_back(row.before + t);
    out.resize(out.size() + 2, 0);
    return place.i32(out).data<std::int32_t>();
  }
  const std::int32_t* slot_ids(Place& place, bool reads = false) const {
    std::vector<std::int32_t> out;
    const std::size_t first = moves && !reads ? 1 + all.size() : 1;
    for (std::size_t r = 0; r < all.size(); ++r) out.push_back(static_cast<std::int32_t>(first + r));
    return place.i32(out).data<std::int32_t>();
  }
  const std::int32_t* read_ids(Place& place) const { return moves ? slot_ids(place, true) : nullptr; }
  KeptStates kept_ids(Place& place) const {
    if (kept.empty()) return {};
    std::vector<std::int32_t> ids;
    for (std::size_t r = 0; r < kept.size(); ++r) ids.push_back(static_cast<std::int32_t>(first_kept_slot()) + r);
    return {place.i32(kept).data<std::int32_t>(), place.i32(ids).data<std::int32_t>()};
  }
};

const Rows& mixed_rows() {
  static const Rows rows = Rows::of({{1, 5}, {0, 2}, {3, 0}, {2, 9}, {41, 0}, {16, 4}, {1, 0}, {17, 1}});
  return rows;
}
const Rows& moving_rows() {
  static const Rows rows = Rows::of({{1, 5}, {70, 3}, {1, 0}, {33, 0}, {0, 4}, {2, 8}}, true);
  return rows;
}
const Rows& decode_rows() {
  static const Rows rows = Rows::of({{1, 5}, {1, 0}, {0, 3}, {1, 700}, {1, 1}});
  return rows;
}

// Rows that go token after token, some kept in the middle, at their first token or their last.
const Rows& keeping_rows() {
  static const Rows rows =
      Rows::keeping({{1, 5}, {31, 2}, {3, 0}, {0, 4}, {29, 0}, {2, 7}, {2, 0}, {1, 0}}, {0, 17, 3, 0, 0, 1, 2, 1});
  return rows;
}

// ---- convolution

struct ConvProblem {
  std::int64_t channels, taps;
  DType dtype;
  Status run(OpContext& ops, Place& place, const Rows& rows) const {
    const std::int64_t tokens = rows.num_tokens() + 2;
    CausalConv1dArgs args;
    args.rows = rows.ragged(place);
    const std::int64_t stride = channels + (channels % 8 ? 4 : 8);  // eight channels a thread need 16 bytes
    args.x = place.activations(dtype, rows.tokens(stride, 1), {tokens, channels}, stride);
    args.positions = rows.positions(place);
    args.weight = place.f32(draw(taps * channels, 5), {taps, channels});
    args.activation = Activation::silu;
    const std::int64_t slots = rows.num_slots();
    args.state = place.state(DType::f32, rows.slots((taps - 1) * channels, 2), {slots, taps - 1, channels});
    args.slots = rows.slot_ids(place);
    args.read_slots = rows.read_ids(place);
    args.kept = rows.kept_ids(place);
    args.out = place.out(dtype, tokens, channels, channels + 8);
    return causal_conv1d(ops, args);
  }
};

void check_conv(Twins& twins) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Difference difference;
    for (const std::int64_t channels : {4, 516, 520, 6144})
      for (const std::int64_t taps : {2, 4, 7})
        for (const Rows* rows : {&mixed_rows(), &decode_rows(), &moving_rows(), &keeping_rows()})
          twins.run(
              [&](OpContext& ops, Place& place) {
                return ConvProblem{channels, taps, dtype}.run(ops, place, *rows);
              },
              difference);
    // A step so long that its pieces are.
    const Rows many = Rows::keeping({{1, 5}, {700, 0}, {640, 3}, {1, 2}, {25, 0}}, {0, 512, 2, 0, 24});
    twins.run(
        [&](OpContext& ops, Place& place) {
          return ConvProblem{520, 4, dtype}.run(ops, place, many);
        },
        difference);
    twins.judge("causal_conv1d " + std::string(dtype_name(dtype)), difference, dtype == DType::f32 ? 2e-6 : 3.95e-3,
                dtype == DType::f32 ? 1e-5 : 3.95e-3);
  }
}

// ---- gates

void check_delta_gates(Twins& twins) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Difference difference;
    for (const std::int64_t tokens : {1, 7, 300}) {
      const std::int64_t heads = 16;
      const auto both = draw(tokens * (2 * heads + 5), 1, 8.0f);
      auto rate = draw(heads, 2, 4.0f);
      for (float& r : rate) r = std::fabs(r);
      twins.run(
          [&](OpContext& ops, Place& place) {
            TensorView a = place.activations(dtype, both, {tokens, heads}, 2 * heads + 5), b = a;
            b.pointer = a.data<std::byte>() + static_cast<std::size_t>(heads) * dtype_bytes(a.dtype);
            return delta_gates(ops, {a, b, place.f32(rate, {heads}), place.f32(draw(heads, 3), {heads}),
                                     place.out(tokens, heads), place.out(tokens, heads)});
          },
          difference);
    }
    twins.judge("delta_gates of " + std::string(dtype_name(dtype)), difference, 1e-6);
  }
}

// ---- rule

struct Heads {
  std::int64_t key_heads, heads, key_dim, value_dim;
  bool interleaved = false;
};

struct RuleProblem {
  Heads z;
  DType dtype, state_dtype;
  Status run(OpContext& ops, Place& place, const Rows& rows) const {
    const std::int64_t tokens = rows.num_tokens() + 2, keys = z.key_heads * z.key_dim, values = z.heads * z.value_dim;
    const std::int64_t width = 2 * keys + values;
    const TensorView in = place.activations(dtype, rows.tokens(width, 1), {tokens, width});
    const auto part = [&](std::int64_t first, std::int64_t heads, std::int64_t dim) {
      TensorView view = in;
      view.pointer = in.data<std::byte>() + first * static_cast<std::int64_t>(dtype_bytes(in.dtype));
      view.shape = {tokens, heads, dim};
      view.strides = {width, dim, 1};
      return view;
    };
    auto decay = rows.tokens(z.heads, 2), beta = rows.tokens(z.heads, 3);
    for (float& x : decay) x = std::exp(-0.3f * std::fabs(x));
    for (float& x : beta) x = 1 / (1 + std::exp(x));
    DeltaRuleArgs args;
    args.q = part(0, z.key_heads, z.key_dim);
    args.k = part(keys, z.key_heads, z.key_dim);
    args.v = part(2 * keys, z.heads, z.value_dim);
    args.decay = place.f32(decay, {tokens, z.heads});
    args.beta = place.f32(beta, {tokens, z.heads});
    args.rows = rows.ragged(place);
    args.positions = rows.positions(place);
    args.scale = 1 / std::sqrt(static_cast<float>(z.key_dim));
    args.interleaved_heads = z.interleaved;
    const std::int64_t slots = rows.num_slots();
    args.state = place.state(state_dtype, rows.slots(z.heads * z.key_dim * z.value_dim, 4),
                             {slots, z.heads, z.key_dim, z.value_dim});
    args.slots = rows.slot_ids(place);
    args.read_slots = rows.read_ids(place);
    args.kept = rows.kept_ids(place);
    TensorView out = place.out(dtype, tokens, values, values + 8);
    args.out = out;
    args.out.shape = {tokens, z.heads, z.value_dim};
    args.out.strides = {values + 8, z.value_dim, 1};
    return delta_rule(ops, args);
  }
};

void check_rule(Twins& twins) {
  for (const DType state_dtype : {DType::f32, DType::bf16}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Difference difference;
      for (const Heads& z : {Heads{2, 2, 16, 16}, Heads{2, 4, 36, 48}, Heads{2, 4, 64, 32, true}, Heads{1, 2, 128, 128},
                             Heads{4, 4, 128, 112}})
        for (const Rows* rows : {&mixed_rows(), &decode_rows(), &moving_rows(), &keeping_rows()})
          twins.run(
              [&](OpContext& ops, Place& place) {
                return RuleProblem{z, dtype, state_dtype}.run(ops, place, *rows);
              },
              difference);
      // bf16 states are rounded after every token: a sum in another order may turn a rounding.
      const double tolerance = state_dtype == DType::bf16 ? 1.6e-2 : dtype == DType::bf16 ? 3.95e-3 : 1e-5;
      const double relative = state_dtype == DType::bf16 ? 4e-3 : dtype == DType::bf16 ? 3.95e-3 : 1e-5;
      twins.judge("delta_rule " + std::string(dtype_name(dtype)) + ", state " + std::string(dtype_name(state_dtype)),
                  difference, tolerance, relative);
    }
  }
}

// Rows of many tokens, some so short that they go token after token beside them. The states are f32 and tell how near
// the products of two halves come to the rule; the outputs are rounded to bf16.
void check_chunks(Twins& twins, const std::string& what, std::span<const Rows> rows) {
  for (const DType state_dtype : {DType::f32, DType::bf16}) {
    Difference all, states;
    for (const Heads& z : {Heads{1, 1, 128, 32}, Heads{2, 4, 128, 128}, Heads{2, 4, 128, 64, true}}) {
      for (const Rows& each : rows) {
        std::vector<float> got, expected;
        if (!twins.run(
                [&](OpContext& ops, Place& place) {
                  return RuleProblem{z, DType::bf16, state_dtype}.run(ops, place, each);
                },
                all, &got, &expected))
          continue;
        const auto count = each.num_slots() * z.heads * z.key_dim * z.value_dim;
        states.add({got.begin(), got.begin() + count}, {expected.begin(), expected.begin() + count});
      }
    }
    // The CPU rounds a bf16 state after every token, a chunk at its row's end.
    const bool rounded = state_dtype == DType::bf16;
    const std::string name = "delta_rule in chunks" + what + ", state " + std::string(dtype_name(state_dtype));
    twins.judge(name, all, rounded ? 2e-2 : 3.95e-3, rounded ? 1e-2 : 3.95e-3);
    twins.judge(name + ", states alone", states, rounded ? 2e-2 : 5e-5, rounded ? 1e-2 : 5e-5);
  }
}

void check_chunks(Twins& twins) {
  const Rows whole[] = {Rows::of({{32, 0}}), Rows::of({{64, 3}}),
                        Rows::of({{65, 0}, {1, 9}, {127, 64}, {31, 2}, {0, 1}}),
                        Rows::of({{300, 0}, {33, 5}, {128, 0}}), moving_rows()};
  check_chunks(twins, "", whole);
  // At a chunk's end or within one, right at the row's beginning or end, in rows that go token after token, and
  // nowhere.
  const Rows keeping[] = {Rows::keeping({{640, 0}}, {512}),
                          Rows::keeping({{640, 0}, {640, 64}, {1, 9}, {640, 0}, {640, 1}}, {64, 624, 0, 0, 512}),
                          Rows::keeping({{32, 0}, {64, 3}, {20, 4}, {0, 1}, {65, 0}}, {16, 64, 7, 0, 1}),
                          Rows::keeping({{33, 0}, {129, 0}, {300, 16}}, {32, 128, 80}, true)};
  check_chunks(twins, " that keep states", keeping);
}

// A server's step: prompts among requests that are being answered, as many heads as run at the same time on a GPU.
void check_server_step(Twins& twins) {
  std::vector<std::pair<int, int>> counts;
  for (int r = 0; r < 22; ++r) counts.push_back({1, 640 + 7 * r});
  std::vector<std::int32_t> kept(counts.size(), 0);
  for (const auto& [before, keep] : {std::pair{0, 512}, {128, 384}, {0, 0}}) {
    counts.insert(counts.begin() + 9, {640, before});
    kept.insert(kept.begin() + 9, keep);
  }
  const Rows rows = Rows::keeping(std::move(counts), std::move(kept));
  const Heads z{16, 16, 128, 128};
  Difference all, states;
  std::vector<float> got, expected;
  if (!twins.run(
          [&](OpContext& ops, Place& place) {
            return RuleProblem{z, DType::bf16, DType::f32}.run(ops, place, rows);
          },
          all, &got, &expected))
    return;
  const auto count = rows.num_slots() * z.heads * z.key_dim * z.value_dim;
  states.add({got.begin(), got.begin() + count}, {expected.begin(), expected.begin() + count});
  twins.judge("delta_rule, prompts among single tokens", all, 3.95e-3, 3.95e-3);
  twins.judge("delta_rule, prompts among single tokens, states alone", states, 5e-5, 5e-5);
}

// What is kept, and the outputs before it, are the bits of a row that ends there.
void check_kept_bits(Twins& twins) {
  const RuleProblem problem{{2, 4, 128, 128}, DType::bf16, DType::f32};
  const std::int64_t state_width = 4 * 128 * 128;
  bool same = true;
  for (const auto& [tokens, kept] : {std::pair{640, 512}, {640, 64}, {640, 592}, {70, 40}}) {
    Rows passing = Rows::keeping({{9, 3}, {tokens, 0}, {300, 2}}, {0, kept, 100});
    const std::uint32_t seed = passing.all[1].seed;
    const auto whole = twins.run_on_gpu([&](OpContext& ops, Place& place) { return problem.run(ops, place, passing); });
    const auto first = twins.run_on_gpu([&](OpContext& ops, Place& place) {
      return problem.run(ops, place, Rows{{{kept, 0, seed}}});
    });
    same = same && !whole.empty() && !first.empty();
    if (!same) break;
    const float* const kept_state = whole.data() + (passing.first_kept_slot() + 1) * state_width;
    same = same && std::memcmp(kept_state, first.data() + state_width, static_cast<std::size_t>(state_width) * 4) == 0;
    const std::int64_t row_width = 4 * 128 + 8;
    const float* const outputs = whole.data() + passing.num_slots() * state_width + 9 * row_width;
    for (std::int64_t t = 0; same && t < kept; ++t)
      same = std::memcmp(first.data() + 2 * state_width + t * row_width, outputs + t * row_width, 4 * 128 * 4) == 0;
  }
  twins.report().check(same, "delta_rule: a kept state's bits are those of a row that ends there");
}

// A row's outputs and state are the same bits alone and among others.
void check_rows_alone(Twins& twins) {
  const RuleProblem problem{{2, 4, 128, 128}, DType::bf16, DType::f32};
  const std::int64_t row_width = 4 * 128 + 8, state_width = 4 * 128 * 128;
  // A row of one token alone has as many tokens as rows: that and its chunks' neighbours are the same bits too.
  for (const Rows* rows : {&mixed_rows(), &decode_rows()}) {
    const auto whole = twins.run_on_gpu([&](OpContext& ops, Place& place) { return problem.run(ops, place, *rows); });
    bool same = !whole.empty();
    std::int64_t token = 0;
    for (std::size_t r = 0; same && r < rows->all.size(); ++r) {
      const Rows::One& one = rows->all[r];
      const auto alone =
          twins.run_on_gpu([&](OpContext& ops, Place& place) { return problem.run(ops, place, Rows{{one}}); });
      same = !alone.empty();
      if (!same) break;
      // Outputs come in the order in which they were placed: the slots, then the tokens.
      const auto slot = [&](const std::vector<float>& from, std::size_t at) {
        return from.data() + static_cast<std::int64_t>(at) * state_width;
      };
      same = same && std::memcmp(slot(alone, 1), slot(whole, r + 1), static_cast<std::size_t>(state_width) * 4) == 0;
      const float* const tokens = slot(whole, rows->all.size() + 1) + token * row_width;
      for (std::int64_t t = 0; same && t < one.tokens; ++t)
        same = std::memcmp(slot(alone, 2) + t * row_width, tokens + t * row_width, 4 * 128 * 4) == 0;
      token += one.tokens;
    }
    twins.report().check(same, rows == &mixed_rows() ? "delta_rule: a row's bits in any batch"
                                                     : "delta_rule, one token a row: a row's bits in any batch");
  }
}

}  // namespace

void check_delta_ops(Report& report, Device& cuda) {
  Twins twins(report, cuda);
  check_conv(twins);
  check_delta_gates(twins);
  check_rule(twins);
  check_chunks(twins);
  check_server_step(twins);
  check_kept_bits(twins);
  check_rows_alone(twins);
}

}  // namespace mstar::bench
