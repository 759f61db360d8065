// What a delta net does between its products as one kernel, against the CPU's ops in turn.
#include <cmath>
#include <cstring>
#include <limits>

#include "mstar/ops/delta_mix/delta_mix.h"
#include "twins.h"

namespace mstar::bench {
namespace {

// A row of a step. Its values come from its seed, so that it is the same alone and among others.
struct MixRow {
  std::int32_t tokens, before;
  std::uint32_t seed;
};

struct MixProblem {
  std::int64_t key_heads, heads;
  bool interleaved;
  DType dtype, state_dtype;
  std::vector<MixRow> rows;
  bool moves = false;  // states go to other slots than they come from
  int padding = 0;     // fresh rows behind the others, all alike, that share slot 0

  static constexpr std::int64_t kDim = 128, kTaps = 4;
  std::int64_t values() const { return heads * kDim; }
  std::int64_t conv_width() const { return (2 * key_heads + heads) * kDim; }
  std::int64_t in_width() const { return conv_width() + values() + 2 * heads; }
  std::int64_t in_stride() const { return (in_width() + 7) / 8 * 8; }  // the one kernel reads four elements at once
  std::int64_t num_slots() const { return 1 + static_cast<std::int64_t>(rows.size()) * (moves ? 2 : 1); }
  std::int64_t conv_numbers() const { return (kTaps - 1) * conv_width(); }
  std::int64_t rule_numbers() const { return values() * kDim; }
  std::int64_t out_stride() const { return values() + 8; }

  // Row r is in slot r + 1, and where states move goes to one behind those. What nobody has written holds no number.
  std::vector<float> slots(std::int64_t width, std::uint32_t which) const {
    std::vector<float> out(static_cast<std::size_t>(width), 0.25f);
    for (const MixRow& row : rows) {
      if (row.before == 0) {
        out.resize(out.size() + static_cast<std::size_t>(width), std::numeric_limits<float>::quiet_NaN());
        if (row.tokens == 0) std::fill(out.end() - width, out.end(), 1.0f);
      } else {
        for (const float v : draw(width, row.seed + which)) out.push_back(v);
      }
    }
    out.resize(static_cast<std::size_t>(num_slots() * width), 4.0f);
    // A fresh row that moves leaves its old slot as it was.
    if (moves)
      for (float& v : out)
        if (std::isnan(v)) v = 8.0f;
    return out;
  }

  // Writes the states, then the outputs.
  Status run(OpContext& ops, Place& place) const {
    std::vector<std::int32_t> offsets = {0}, positions, to, from;
    std::vector<float> in;
    const auto add = [&](const MixRow& row, std::int32_t read, std::int32_t write) {
      offsets.push_back(offsets.back() + row.tokens);
      for (std::int32_t t = 0; t < row.tokens; ++t) positions.push_back(row.before + t);
      for (const float v : draw(row.tokens * in_stride(), row.seed)) in.push_back(v);
      from.push_back(read);
      to.push_back(write);
    };
    const auto count = static_cast<std::int32_t>(rows.size());
    for (std::int32_t r = 0; r < count; ++r) add(rows[static_cast<std::size_t>(r)], 1 + r, 1 + r + (moves ? count : 0));
    for (int i = 0; i < padding; ++i) add({1, 0, 9}, 0, 0);
    const std::int64_t tokens = offsets.back();
    auto rate = draw(heads, 3), gain = draw(kDim, 4, 0.3f);
    for (float& v : rate) v = std::fabs(v);
    for (float& v : gain) v += 1;
    DeltaMixArgs args;
    args.conv_state = place.state(DType::f32, slots(conv_numbers(), 1), {num_slots(), kTaps - 1, conv_width()});
    args.rule_state = place.state(state_dtype, slots(rule_numbers(), 2), {num_slots(), heads, kDim, kDim});
    args.in = place.activations(dtype, in, {tokens, in_width()}, in_stride());
    args.rows = {place.i32(offsets).data<std::int32_t>(), static_cast<int>(to.size()), static_cast<int>(tokens)};
    args.positions = place.i32(positions).data<std::int32_t>();
    args.conv_weight = place.f32(draw(kTaps * conv_width(), 5, 0.5f), {kTaps, conv_width()});
    args.rate = place.f32(rate, {heads});
    args.dt_bias = place.f32(draw(heads, 6), {heads});
    args.norm_weight = place.f32(gain, {kDim});
    args.key_heads = key_heads;
    args.interleaved_heads = interleaved;
    args.slots = place.i32(to).data<std::int32_t>();
    args.read_slots = moves ? place.i32(from).data<std::int32_t>() : nullptr;
    args.out = place.out(dtype, tokens, values(), out_stride());
    args.out.shape = {tokens, heads, kDim};
    args.out.strides = {out_stride(), kDim, 1};
    // The kernel reads slots and positions before what was launched just before has ended: here their copies.
    ops.device.synchronize(ops.stream);
    return delta_mix(ops, args);
  }
};

std::vector<MixRow> decode_rows(int count) {
  std::vector<MixRow> rows;
  for (int r = 0; r < count; ++r)
    rows.push_back({1, r % 5 == 1 ? 0 : 1 + 7 * r, 100 + 10 * static_cast<std::uint32_t>(r)});
  return rows;
}

std::vector<MixProblem> problems(DType dtype, DType state) {
  std::vector<MixProblem> all;
  for (const int count : {1, 32, 64, 100}) all.push_back({1, 1, false, dtype, state, decode_rows(count)});
  all.push_back({1, 3, false, dtype, state, decode_rows(2), true});
  for (const bool moves : {false, true})
    for (const bool interleaved : {false, true})
      all.push_back({2, 4, interleaved, dtype, state, decode_rows(7), moves, 3});
  // Rows of no token and of more than one, in a step of no more tokens than rows.
  all.push_back(
      {2, 4, false, dtype, state, {{2, 5, 100}, {0, 4, 110}, {3, 0, 120}, {0, 2, 130}, {0, 0, 140}, {1, 9, 150}}});
  all.push_back({16, 16, false, dtype, state, decode_rows(7), true});
  for (const bool interleaved : {false, true}) all.push_back({16, 32, interleaved, dtype, state, decode_rows(2)});
  return all;
}

void check_against_cpu(Twins& twins, DType dtype, DType state) {
  Difference outs, states;
  for (const MixProblem& p : problems(dtype, state)) {
    Difference ignored;
    std::vector<float> got, expected;
    if (!twins.run([&](OpContext& ops, Place& place) { return p.run(ops, place); }, ignored, &got, &expected)) continue;
    const auto split = p.num_slots() * (p.conv_numbers() + p.rule_numbers());
    states.add({got.begin(), got.begin() + split}, {expected.begin(), expected.begin() + split});
    outs.add({got.begin() + split, got.end()}, {expected.begin() + split, expected.end()});
  }
  const bool rounded = state == DType::bf16;
  const std::string name =
      "delta_mix of " + std::string(dtype_name(dtype)) + ", state " + std::string(dtype_name(state)) + ": ";
  // A bf16 state is rounded after every token, where a sum in another order may turn a rounding.
  twins.judge(name + "states", states, rounded ? 1.6e-2 : 2e-5, rounded ? 4e-3 : 1e-5);
  const double of_outputs = dtype == DType::bf16 ? 3.95e-3 : 1e-4;
  twins.judge(name + "outputs", outs, rounded ? 1.6e-2 : of_outputs, rounded ? 4e-3 : of_outputs);
}

// A row's outputs and states are the same bits alone and among others.
void check_alone(Twins& twins, std::int64_t key_heads, std::int64_t heads) {
  const MixProblem together{key_heads, heads, false, DType::bf16, DType::f32, decode_rows(33)};
  const auto whole = twins.run_on_gpu([&](OpContext& ops, Place& place) { return together.run(ops, place); });
  bool same = !whole.empty();
  for (const std::size_t r : {0, 1, 17, 32}) {
    MixProblem alone = together;
    alone.rows = {together.rows[r]};
    const auto part = twins.run_on_gpu([&](OpContext& ops, Place& place) { return alone.run(ops, place); });
    same = same && !part.empty();
    if (!same) break;
    const auto equal = [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
      return std::memcmp(part.data() + at, whole.data() + in_whole, static_cast<std::size_t>(count) * sizeof(float)) ==
             0;
    };
    const std::int64_t conv = together.conv_numbers(), rule = together.rule_numbers(),
                       row = static_cast<std::int64_t>(r);
    same =
        equal(conv, (row + 1) * conv, conv) &&
        equal(2 * conv + rule, together.num_slots() * conv + (row + 1) * rule, rule) &&
        equal(2 * (conv + rule), together.num_slots() * (conv + rule) + row * together.out_stride(), together.values());
  }
  twins.report().check(same, text("delta_mix, %d heads of %d keys: a row's bits in any batch", static_cast<int>(heads),
                                  static_cast<int>(key_heads)));
}

}  // namespace

void check_delta_mix(Report& report, Device& cuda) {
  // Padding rows share a slot, which on the CPU they write one after the other only if one thread does.
  Twins twins(report, cuda, 1);
  check_against_cpu(twins, DType::f32, DType::f32);
  check_against_cpu(twins, DType::bf16, DType::f32);
  check_against_cpu(twins, DType::bf16, DType::bf16);
  check_alone(twins, 1, 1);
  check_alone(twins, 2, 4);
}

}  // namespace mstar::bench
