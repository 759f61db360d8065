#include "mstar/ops/delta_rule/delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

struct Sizes {
  std::int64_t key_heads, heads, key_dim, value_dim;
  bool interleaved = false;
};

// A sequence's inputs, of which a step runs a part.
struct Sequence {
  Sizes sizes;
  std::int64_t tokens;
  std::vector<float> q, k, v, decay, beta;

  Sequence(const Sizes& of, std::int64_t count, std::uint32_t seed) : sizes(of), tokens(count) {
    q = random_floats(count * of.key_heads * of.key_dim, seed);
    k = random_floats(count * of.key_heads * of.key_dim, seed + 1);
    v = random_floats(count * of.heads * of.value_dim, seed + 2);
    for (const float x : random_floats(count * of.heads, seed + 3)) decay.push_back(std::exp(-std::fabs(x)));
    for (const float x : random_floats(count * of.heads, seed + 4)) beta.push_back(1 / (1 + std::exp(x)));
  }
};

// The rule in doubles from a zero state; out [tokens, heads, value_dim], state [heads, key_dim, value_dim].
struct Exact {
  std::vector<double> out, state;
};
Exact exactly(const Sequence& s, double scale) {
  const Sizes& z = s.sizes;
  Exact e;
  e.out.resize(s.v.size());
  e.state.resize(static_cast<std::size_t>(z.heads * z.key_dim * z.value_dim));
  const auto normalised = [&](const std::vector<float>& from, std::int64_t t, std::int64_t head) {
    std::vector<double> out;
    double squares = 1e-6;
    for (std::int64_t i = 0; i < z.key_dim; ++i) {
      out.push_back(from[static_cast<std::size_t>((t * z.key_heads + head) * z.key_dim + i)]);
      squares += out.back() * out.back();
    }
    for (double& x : out) x /= std::sqrt(squares);
    return out;
  };
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t h = 0; h < z.heads; ++h) {
      const std::int64_t key_head = z.interleaved ? h % z.key_heads : h * z.key_heads / z.heads;
      const auto q = normalised(s.q, t, key_head), k = normalised(s.k, t, key_head);
      const auto gate = static_cast<std::size_t>(t * z.heads + h);
      double* state = e.state.data() + h * z.key_dim * z.value_dim;
      for (std::int64_t j = 0; j < z.value_dim; ++j) {
        const auto at = static_cast<std::size_t>((t * z.heads + h) * z.value_dim + j);
        double known = 0, sum = 0;
        for (std::int64_t i = 0; i < z.key_dim; ++i) {
          state[i * z.value_dim + j] *= s.decay[gate];
          known += k[static_cast<std::size_t>(i)] * state[i * z.value_dim + j];
        }
        for (std::int64_t i = 0; i < z.key_dim; ++i) {
          state[i * z.value_dim + j] += k[static_cast<std::size_t>(i)] * s.beta[gate] * (s.v[at] - known);
          sum += scale * q[static_cast<std::size_t>(i)] * state[i * z.value_dim + j];
        }
        e.out[at] = sum;
      }
    }
  }
  return e;
}

struct Part {
  const Sequence* sequence;
  std::int64_t done;
  std::int32_t count, slot;
  std::int32_t from = -1;  // the slot of the state before; -1: `slot`
  std::int32_t kept = 0, kept_slot = 0;
};

template <class T>
constexpr DType kDType = DType::f32;
template <>
constexpr DType kDType<BFloat16> = DType::bf16;

template <class T>
T filler() {
  if constexpr (std::is_same_v<T, float>) {
    return NAN;
  } else {
    return to_bfloat16(NAN);
  }
}

// States of three slots that lie apart, full of what must not be read.
template <class T>
struct States {
  Sizes sizes;
  std::int64_t stride;
  std::vector<T> values;
  explicit States(const Sizes& z)
      : sizes(z),
        stride(z.heads * z.key_dim * z.value_dim + 16),
        values(static_cast<std::size_t>(3 * stride), filler<T>()) {}
  TensorView view() {
    TensorView out(values.data(), kDType<T>, {3, sizes.heads, sizes.key_dim, sizes.value_dim});
    out.strides[0] = stride;
    return out;
  }
  const T* slot(std::int64_t i) const { return values.data() + i * stride; }
};

// Queries, keys and values lie side by side in one projection, as models have them.
template <class T>
void run(Host& host, const Sizes& z, const std::vector<Part>& parts, States<T>& states, Guarded& out) {
  const std::int64_t keys = z.key_heads * z.key_dim, values = z.heads * z.value_dim;
  std::vector<float> x, decay, beta;
  std::vector<std::int32_t> offsets = {0}, positions, slots, read_slots, kept, kept_slots;
  const auto append = [](std::vector<float>& to, const std::vector<float>& from, std::int64_t at, std::int64_t count) {
    to.insert(to.end(), from.begin() + at * count, from.begin() + (at + 1) * count);
  };
  for (const Part& part : parts) {
    for (std::int64_t t = part.done; t < part.done + part.count; ++t) {
      append(x, part.sequence->q, t, keys);
      append(x, part.sequence->k, t, keys);
      append(x, part.sequence->v, t, values);
      append(decay, part.sequence->decay, t, z.heads);
      append(beta, part.sequence->beta, t, z.heads);
      positions.push_back(static_cast<std::int32_t>(t));
    }
    offsets.push_back(offsets.back() + part.count);
    slots.push_back(part.slot);
    read_slots.push_back(part.from < 0 ? part.slot : part.from);
    kept.push_back(part.kept);
    kept_slots.push_back(part.kept_slot);
  }
  const auto heads_view = [&](float* from, std::int64_t heads, std::int64_t width, std::int64_t stride) {
    TensorView view(from, DType::f32, {offsets.back(), heads, width});
    view.strides[0] = stride;
    return view;
  };
  const std::int64_t width = 2 * keys + values;
  DeltaRuleArgs args;
  args.q = heads_view(x.data(), z.key_heads, z.key_dim, width);
  args.k = heads_view(x.data() + keys, z.key_heads, z.key_dim, width);
  args.v = heads_view(x.data() + 2 * keys, z.heads, z.value_dim, width);
  args.decay = matrix(decay, offsets.back(), z.heads);
  args.beta = matrix(beta, offsets.back(), z.heads);
  args.rows = {offsets.data(), static_cast<int>(parts.size()), offsets.back()};
  args.positions = positions.data();
  args.scale = 1 / std::sqrt(static_cast<float>(z.key_dim));
  args.interleaved_heads = z.interleaved;
  args.state = states.view();
  args.slots = slots.data();
  args.read_slots = read_slots.data();
  if (std::any_of(kept.begin(), kept.end(), [](std::int32_t n) { return n > 0; }))
    args.kept = {kept.data(), kept_slots.data()};
  args.out = heads_view(out.view().template data<float>(), z.heads, z.value_dim, out.view().stride(0));
  const Status done = delta_rule(host.context(), args);
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_TRUE(out.guards_intact());
}

TEST(DeltaRule, MatchesDoubles) {
  on_every_target([&] {
    for (const Sizes& z :
         {Sizes{2, 2, 16, 16}, Sizes{2, 4, 33, 48}, Sizes{2, 4, 32, 32, true}, Sizes{1, 2, 128, 128}}) {
      Host host(2, delta_rule_workspace_bytes({.key_dim = z.key_dim, .num_threads = 2}));
      const Sequence a(z, 50, 1), b(z, 2, 21);
      States<float> states(z);
      Guarded out(52, z.heads * z.value_dim, z.heads * z.value_dim + 9);
      run(host, z, {{&a, 0, 50, 2}, {&b, 0, 0, 0}, {&b, 0, 2, 1}}, states, out);
      const Exact first = exactly(a, 1 / std::sqrt(static_cast<double>(z.key_dim)));
      const Exact second = exactly(b, 1 / std::sqrt(static_cast<double>(z.key_dim)));
      for (std::int64_t i = 0; i < z.heads * z.value_dim; ++i) {
        for (std::int64_t t = 0; t < 50; ++t)
          ASSERT_NEAR(out.at(t, i), first.out[static_cast<std::size_t>(t * z.heads * z.value_dim + i)], 2e-6);
        for (std::int64_t t = 0; t < 2; ++t)
          ASSERT_NEAR(out.at(50 + t, i), second.out[static_cast<std::size_t>(t * z.heads * z.value_dim + i)], 2e-6);
      }
      for (std::size_t i = 0; i < first.state.size(); ++i) {
        ASSERT_NEAR(states.slot(2)[i], first.state[i], 3e-6);
        ASSERT_NEAR(states.slot(1)[i], second.state[i], 3e-6);
        ASSERT_TRUE(std::isnan(states.slot(0)[i])) << "a row without tokens leaves its slot alone";
      }
    }
  });
}

template <class T>
void expect_the_same_bits(const Sizes& z) {
  Host host(2), single(1);
  const Sequence a(z, 9, 1), b(z, 30, 21);
  States<T> whole_states(z), states(z);
  Guarded whole(39, z.heads * z.value_dim);
  run(host, z, {{&a, 0, 9, 1}, {&b, 0, 30, 2}}, whole_states, whole);
  std::int64_t done = 0;
  for (const std::int32_t count : {1, 1, 2, 9, 3, 13, 1}) {
    Guarded part(count, z.heads * z.value_dim);
    run(single, z, {{&b, done, count, 2}}, states, part);
    for (std::int64_t t = 0; t < count; ++t) ASSERT_TRUE(part.row_equals(t, whole, 9 + done + t)) << done + t;
    done += count;
  }
  ASSERT_EQ(std::memcmp(states.slot(2), whole_states.slot(2),
                        static_cast<std::size_t>(z.heads * z.key_dim * z.value_dim) * sizeof(T)),
            0);
  // From one slot to another and back; what is read stays.
  std::int32_t at = 0;
  done = 0;
  for (const std::int32_t count : {1, 1, 2, 9, 3, 13, 1}) {
    Guarded part(count, z.heads * z.value_dim);
    const auto before = states.values;
    run(single, z, {{&b, done, count, 1 - at, at}}, states, part);
    for (std::int64_t t = 0; t < count; ++t) ASSERT_TRUE(part.row_equals(t, whole, 9 + done + t)) << done + t;
    ASSERT_EQ(std::memcmp(states.slot(at), before.data() + at * states.stride,
                          static_cast<std::size_t>(states.stride) * sizeof(T)),
              0);
    at = 1 - at;
    done += count;
  }
}

TEST(DeltaRule, BitsDependNeitherOnStepsNorOnOtherRows) {
  on_every_target([&] {
    expect_the_same_bits<float>({2, 4, 33, 48});
    expect_the_same_bits<BFloat16>({2, 2, 32, 32});
  });
}

template <class T>
void expect_kept_states(const Sizes& z) {
  Host host(2);
  const Sequence a(z, 9, 1), b(z, 30, 21);
  const auto bytes = static_cast<std::size_t>(z.heads * z.key_dim * z.value_dim) * sizeof(T);
  for (const std::int64_t done : {0, 4}) {
    for (const std::int32_t count : {2, 20}) {
      for (const std::int32_t kept : {1, 2, 13, 20}) {
        if (kept > count) continue;
        States<T> before(z);
        Guarded first(done + 1, z.heads * z.value_dim);
        if (done > 0) run(host, z, {{&b, 0, static_cast<std::int32_t>(done), 1}}, before, first);
        States<T> states = before, plain = before, cut = before;
        Guarded out(9 + count, z.heads * z.value_dim), whole(count, z.heads * z.value_dim),
            part(kept, z.heads * z.value_dim);
        run(host, z, {{&a, 0, 9, 0}, {&b, done, count, 1, 1, kept, 2}}, states, out);
        run(host, z, {{&b, done, count, 1}}, plain, whole);
        run(host, z, {{&b, done, kept, 2, 1}}, cut, part);
        for (std::int64_t t = 0; t < count; ++t) ASSERT_TRUE(out.row_equals(9 + t, whole, t));
        ASSERT_EQ(std::memcmp(states.slot(1), plain.slot(1), bytes), 0);
        ASSERT_EQ(std::memcmp(states.slot(2), cut.slot(2), bytes), 0) << kept << " of " << count;
      }
    }
  }
}

TEST(DeltaRule, KeepsWhatAShorterRowWouldEndWith) {
  on_every_target([&] {
    expect_kept_states<float>({2, 4, 33, 48});
    expect_kept_states<BFloat16>({2, 2, 32, 32});
  });
}

TEST(DeltaRule, HalfStatesStayClose) {
  const Sizes z = {1, 1, 64, 64};
  Host host(1);
  const Sequence a(z, 40, 1);
  States<BFloat16> states(z);
  Guarded out(40, 64);
  run(host, z, {{&a, 0, 40, 1}}, states, out);
  const Exact exact = exactly(a, 1 / std::sqrt(64.0));
  for (std::int64_t t = 0; t < 40; ++t)
    for (std::int64_t i = 0; i < 64; ++i)
      ASSERT_NEAR(out.at(t, i), exact.out[static_cast<std::size_t>(t * 64 + i)], 3e-3);
}

TEST(DeltaGates, MatchDoublesOverTheWholeRange) {
  Host host(2);
  const std::int64_t tokens = 7, heads = 5;
  auto both = random_floats(tokens * (2 * heads + 1), 1, 30.0f), rate = random_floats(heads, 2),
       bias = random_floats(heads, 3);
  for (float& r : rate) r = std::fabs(r) * 4;
  TensorView a(both.data(), DType::f32, {tokens, heads}), b(both.data() + heads, DType::f32, {tokens, heads});
  a.strides[0] = b.strides[0] = 2 * heads + 1;
  Guarded decay(tokens, heads), beta(tokens, heads);
  ASSERT_TRUE(delta_gates(host.context(), {a, b, vector(rate), vector(bias), decay.view(), beta.view()}));
  EXPECT_TRUE(decay.guards_intact() && beta.guards_intact());
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto head = static_cast<std::size_t>(h), at = static_cast<std::size_t>(t * (2 * heads + 1) + h);
      const double x = static_cast<double>(both[at]) + bias[head];
      const double softplus = x > 30 ? x : std::log(1 + std::exp(x));
      const double expected = std::exp(-rate[head] * softplus);
      EXPECT_NEAR(decay.at(t, h), expected, 1e-6 * expected + 1e-30);
      const double sigmoid = 1 / (1 + std::exp(-static_cast<double>(both[at + static_cast<std::size_t>(heads)])));
      EXPECT_NEAR(beta.at(t, h), sigmoid, 1e-6 * sigmoid);
    }
  }
}

}  // namespace
}  // namespace mstar
