#include "mstar/ops/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "mstar/ops/attention/attention_cases.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& counts) {
  std::vector<std::int32_t> out = {0};
  for (const std::int32_t n : counts) out.push_back(out.back() + n);
  return out;
}

RaggedView ragged(const std::vector<std::int32_t>& offsets) {
  return {offsets.data(), static_cast<int>(offsets.size()) - 1, offsets.back()};
}

TensorView heads_view(std::vector<float>& values, std::int64_t heads, std::int64_t d) {
  const std::int64_t tokens = static_cast<std::int64_t>(values.size()) / (heads * d);
  return TensorView(values.data(), DType::f32, {tokens, heads, d});
}

// One query in doubles; key(p)[d], value(p)[d].
template <class Key, class Value>
std::vector<double> exactly(const float* q, int d, double scale, std::int64_t num_keys, Key key, Value value) {
  std::vector<double> scores, out(static_cast<std::size_t>(d));
  double largest = -INFINITY, sum = 0;
  for (std::int64_t p = 0; p < num_keys; ++p) {
    double dot = 0;
    for (int i = 0; i < d; ++i) dot += static_cast<double>(q[i]) * key(p)[i];
    scores.push_back(dot * scale);
    largest = std::max(largest, dot * scale);
  }
  for (std::int64_t p = 0; p < num_keys; ++p) {
    const double weight = std::exp(scores[static_cast<std::size_t>(p)] - largest);
    sum += weight;
    for (int i = 0; i < d; ++i) out[static_cast<std::size_t>(i)] += weight * value(p)[i];
  }
  for (double& o : out) o /= sum;
  return out;
}

class DenseAttention : public testing::TestWithParam<bool> {};

TEST_P(DenseAttention, MatchesDoubles) {
  on_every_target([&] {
    auto cases = kAttentionCases;
    cases.push_back({3, 3, 72, {20, 150}, {}});
    cases.push_back({2, 1, 7, {1, 9}, {}});
    for (const AttentionCase& c : cases) {
      const auto offsets = offsets_of(c.counts);
      const std::int64_t tokens = offsets.back(), row = (c.heads + 2 * c.kv_heads) * c.d;
      auto qkv = random_floats(tokens * row, 5);
      Guarded out(tokens, c.heads * c.d, c.heads * c.d + 3);
      const auto slice = [&](std::int64_t at, int heads) {
        TensorView view(qkv.data() + at, DType::f32, {tokens, heads, c.d});
        view.strides[0] = row;
        return view;
      };
      DenseAttentionArgs args;
      args.q = slice(0, c.heads);
      args.k = slice(c.heads * c.d, c.kv_heads);
      args.v = slice((c.heads + c.kv_heads) * c.d, c.kv_heads);
      args.rows = ragged(offsets);
      args.scale = 1.0f / std::sqrt(static_cast<float>(c.d));
      args.causal = GetParam();
      args.out = TensorView(out.view().pointer, DType::f32, {tokens, c.heads, c.d});
      args.out.strides[0] = c.heads * c.d + 3;
      Host host(2, attention_dense_workspace_bytes(tokens, c.kv_heads, c.d, 2, args.rows.num_rows));
      ASSERT_TRUE(attention_dense(host.context(), args));
      EXPECT_TRUE(out.guards_intact());
      for (std::size_t r = 0; r < c.counts.size(); ++r) {
        for (int i = 0; i < c.counts[r]; ++i) {
          for (int h = 0; h < c.heads; ++h) {
            const float* base = qkv.data() + offsets[r] * row;
            const int kv = h / (c.heads / c.kv_heads);
            const auto expected = exactly(
                base + i * row + h * c.d, c.d, args.scale, GetParam() ? i + 1 : c.counts[r],
                [&](std::int64_t p) { return base + p * row + (c.heads + kv) * c.d; },
                [&](std::int64_t p) { return base + p * row + (c.heads + c.kv_heads + kv) * c.d; });
            for (int j = 0; j < c.d; ++j)
              ASSERT_NEAR(out.at(offsets[r] + i, h * c.d + j), expected[static_cast<std::size_t>(j)], 1e-5)
                  << c.d << " " << i;
          }
        }
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Causal, DenseAttention, testing::Bool());

// Rows of keys and values with their pages; the whole history of a row is kept to compare with.
class PagedRows {
 public:
  PagedRows(const AttentionCase& c, int page_tokens, DType dtype) : c_(c) {
    for (std::size_t r = 0; r < c.counts.size(); ++r) totals_.push_back(c.before[r] + c.counts[r]);
    for (const std::int32_t total : totals_) max_pages_ = std::max(max_pages_, (total + page_tokens - 1) / page_tokens);
    const int num_pages = 1 + max_pages_ * static_cast<int>(totals_.size());
    // Pages are dealt in a scrambled order; what no token fills is NaN.
    for (int page = 1; page < num_pages; ++page) table_.push_back(page);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(7));
    const std::size_t bytes = static_cast<std::size_t>(num_pages * page_tokens * c.kv_heads * c.d) * dtype_bytes(dtype);
    k_memory_.assign(bytes, std::byte{0xff});
    v_memory_.assign(bytes, std::byte{0xff});
    const Shape shape{num_pages, page_tokens, c.kv_heads, c.d};
    kv_.keys = TensorView(k_memory_.data(), dtype, shape);
    kv_.values = TensorView(v_memory_.data(), dtype, shape);
    kv_.page_table = table_.data();
    kv_.max_pages = max_pages_;
    kv_.page_tokens = page_tokens;
    for (std::size_t r = 0; r < totals_.size(); ++r) {
      keys_.push_back(random_floats(totals_[r] * c.kv_heads * c.d, 100 + static_cast<std::uint32_t>(r)));
      values_.push_back(random_floats(totals_[r] * c.kv_heads * c.d, 200 + static_cast<std::uint32_t>(r)));
      queries_.push_back(random_floats(totals_[r] * c.heads * c.d, 300 + static_cast<std::uint32_t>(r)));
    }
  }

  // Tokens [from[r], to[r]) of each row: appended, then attended. Returns [tokens, heads * d].
  Guarded step(Host& host, const std::vector<std::int32_t>& from, const std::vector<std::int32_t>& to,
               TensorView gate = {}) {
    std::vector<std::int32_t> counts;
    std::vector<float> q, k, v;
    const auto append = [](std::vector<float>& out, const std::vector<float>& all, std::int64_t begin, std::int64_t end,
                           std::int64_t width) {
      out.insert(out.end(), all.begin() + begin * width, all.begin() + end * width);
    };
    for (std::size_t r = 0; r < from.size(); ++r) {
      counts.push_back(to[r] - from[r]);
      append(q, queries_[r], from[r], to[r], c_.heads * c_.d);
      append(k, keys_[r], from[r], to[r], c_.kv_heads * c_.d);
      append(v, values_[r], from[r], to[r], c_.kv_heads * c_.d);
    }
    const auto offsets = offsets_of(counts);
    kv_.lengths = to.data();
    EXPECT_TRUE(kv_append(host.context(),
                          {heads_view(k, c_.kv_heads, c_.d), heads_view(v, c_.kv_heads, c_.d), ragged(offsets), kv_}));
    Guarded out(offsets.back(), c_.heads * c_.d);
    PagedAttentionArgs args;
    args.q = heads_view(q, c_.heads, c_.d);
    args.rows = ragged(offsets);
    args.kv = kv_;
    args.scale = scale();
    args.out = TensorView(out.view().pointer, DType::f32, {offsets.back(), c_.heads, c_.d});
    args.gate = gate;
    EXPECT_TRUE(attention_paged(host.context(), args));
    EXPECT_TRUE(out.guards_intact());
    return out;
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c_.d)); }
  const std::vector<std::int32_t>& totals() const { return totals_; }
  std::vector<double> expected(std::size_t r, std::int64_t position, int head) const {
    const int kv = head / (c_.heads / c_.kv_heads);
    return exactly(
        queries_[r].data() + (position * c_.heads + head) * c_.d, c_.d, scale(), position + 1,
        [&](std::int64_t p) { return keys_[r].data() + (p * c_.kv_heads + kv) * c_.d; },
        [&](std::int64_t p) { return values_[r].data() + (p * c_.kv_heads + kv) * c_.d; });
  }

 private:
  AttentionCase c_;
  int max_pages_ = 0;
  std::vector<std::int32_t> totals_, table_;
  std::vector<std::byte> k_memory_, v_memory_;
  PagedKvView kv_;
  std::vector<std::vector<float>> keys_, values_, queries_;
};

TEST(PagedAttention, MatchesDoubles) {
  on_every_target([&] {
    Host host(2);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const double tolerance = dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 4e-3 : 3e-2;
      for (const AttentionCase& c : kAttentionCases) {
        for (const int page_tokens : {16, 32, 64}) {
          PagedRows rows(c, page_tokens, dtype);
          const std::vector<std::int32_t> zero(c.counts.size(), 0);
          rows.step(host, zero, c.before);
          const Guarded out = rows.step(host, c.before, rows.totals());
          std::int64_t token = 0;
          for (std::size_t r = 0; r < c.counts.size(); ++r) {
            for (int i = 0; i < c.counts[r]; ++i, ++token) {
              for (int h = 0; h < c.heads; ++h) {
                const auto expected = rows.expected(r, c.before[r] + i, h);
                for (int j = 0; j < c.d; ++j)
                  ASSERT_NEAR(out.at(token, h * c.d + j), expected[static_cast<std::size_t>(j)], tolerance)
                      << r << " " << i;
              }
            }
          }
        }
      }
    }
  });
}

TEST(PagedAttention, ChunksBatchesPagesAndThreadsKeepTheBits) {
  on_every_target([&] {
    const AttentionCase c{4, 2, 64, {150, 37, 1}, {0, 0, 0}};
    const std::vector<std::int32_t> zero(3, 0);
    Host host(1);
    PagedRows whole_rows(c, 32, DType::f32);
    const Guarded whole = whole_rows.step(host, zero, whole_rows.totals());
    for (const int threads : {2, 3}) {
      Host other(threads);
      PagedRows rows(c, 32, DType::f32);
      EXPECT_TRUE(rows.step(other, zero, rows.totals()).equals(whole));
    }
    for (const int page_tokens : {16, 64}) {
      PagedRows rows(c, page_tokens, DType::f32);
      EXPECT_TRUE(rows.step(host, zero, rows.totals()).equals(whole));
    }
    // Row 0 alone, in chunks: each query as in the whole.
    for (const int chunk : {1, 2, 3, 5, 7, 12, 13, 100}) {
      PagedRows rows({4, 2, 64, {150}, {0}}, 32, DType::f32);
      for (int at = 0; at < 150; at += chunk) {
        const int end = std::min(at + chunk, 150);
        const Guarded part = rows.step(host, {at}, {end});
        for (int i = at; i < end; ++i) ASSERT_TRUE(part.row_equals(i - at, whole, i)) << chunk << " " << i;
      }
    }
  });
}

TEST(PagedAttention, AGateScalesTheOutput) {
  on_every_target([&] {
    const AttentionCase c{4, 2, 64, {17, 1, 0, 3}, {0, 140, 5, 15}};
    const std::int64_t tokens = 21;
    Host host(2);
    PagedRows rows(c, 16, DType::f32);
    rows.step(host, {0, 0, 0, 0}, c.before);
    Guarded plain = rows.step(host, c.before, rows.totals());
    // A head's gate beside its query, as of one projection.
    auto fused = random_floats(tokens * 2 * c.heads * c.d, 9, 3.0f);
    TensorView gate(fused.data() + c.d, DType::f32, {tokens, c.heads, c.d});
    gate.strides = {2 * c.heads * c.d, 2 * c.d, 1};
    const Guarded got = rows.step(host, c.before, rows.totals(), gate);
    const TensorView scaled(plain.view().pointer, DType::f32, {tokens, c.heads, c.d});
    ASSERT_TRUE(sigmoid_mul(host.context(), {.gate = gate, .x = scaled, .out = scaled}));
    EXPECT_TRUE(got.equals(plain));
    const double g = fused[static_cast<std::size_t>(20 * 2 * c.heads * c.d + 3 * 2 * c.d + c.d + 5)];
    EXPECT_NEAR(got.at(20, 3 * c.d + 5), rows.expected(3, 17, 3)[5] / (1 + std::exp(-g)), 1e-5);
  });
}

TEST(PagedAttention, RefusesAGateOfOtherHeads) {
  Host host;
  std::vector<float> q(16), out(16), memory(16 * 16), gates(32);
  const std::vector<std::int32_t> offsets = {0, 1}, table = {0}, lengths = {1};
  PagedAttentionArgs args;
  args.kv.keys = args.kv.values = TensorView(memory.data(), DType::f32, {1, 16, 1, 16});
  args.kv.page_table = table.data();
  args.kv.lengths = lengths.data();
  args.kv.max_pages = 1;
  args.kv.page_tokens = 16;
  args.q = heads_view(q, 1, 16);
  args.out = heads_view(out, 1, 16);
  args.rows = ragged(offsets);
  args.gate = heads_view(gates, 2, 16);
  EXPECT_FALSE(attention_paged(host.context(), args));
  args.gate = TensorView(gates.data(), DType::f32, {1, 1, 16});
  EXPECT_TRUE(attention_paged(host.context(), args));
}

TEST(PagedAttention, InstructionSetsGiveTheSameBits) {
  Host host(2);
  std::vector<Guarded> outs;
  on_every_target([&] {
    PagedRows rows({4, 2, 64, {150, 37, 1}, {0, 0, 0}}, 32, DType::f16);
    outs.push_back(rows.step(host, {0, 0, 0}, rows.totals()));
    EXPECT_TRUE(outs.back().equals(outs.front()));
  });
}

TEST(SlotAttention, MatchesDoublesAndKeepsBits) {
  on_every_target([&] {
    Host host(2);
    for (const DType dtype : {DType::f32, DType::f16}) {
      for (const AttentionCase& c : std::vector<AttentionCase>{
               {2, 2, 64, {1, 5, 30}, {3, 150, 1}}, {8, 8, 64, {1, 2}, {1500, 1499}}, {4, 1, 32, {3}, {300}}}) {
        const int capacity = 1504, num_slots = 5;
        const std::size_t bytes =
            static_cast<std::size_t>(num_slots * capacity * c.kv_heads * c.d) * dtype_bytes(dtype);
        std::vector<std::byte> k_memory(bytes, std::byte{0xff}), v_memory(bytes, std::byte{0xff});
        const std::vector<std::int32_t> slots = {4, 0, 2};
        SlotKvView kv;
        kv.keys = TensorView(k_memory.data(), dtype, {num_slots, capacity, c.kv_heads, c.d});
        kv.values = TensorView(v_memory.data(), dtype, {num_slots, capacity, c.kv_heads, c.d});
        kv.slots = slots.data();
        kv.lengths = c.before.data();
        const auto kv_offsets = offsets_of(c.before), offsets = offsets_of(c.counts);
        auto k = random_floats(kv_offsets.back() * c.kv_heads * c.d, 6),
             v = random_floats(kv_offsets.back() * c.kv_heads * c.d, 7);
        auto q = random_floats(offsets.back() * c.heads * c.d, 8);
        ASSERT_TRUE(kv_store(host.context(),
                             {heads_view(k, c.kv_heads, c.d), heads_view(v, c.kv_heads, c.d), ragged(kv_offsets), kv}));
        Guarded out(offsets.back(), c.heads * c.d);
        SlotAttentionArgs args;
        args.q = heads_view(q, c.heads, c.d);
        args.rows = ragged(offsets);
        args.kv = kv;
        args.scale = 0.125f;
        args.out = TensorView(out.view().pointer, DType::f32, {offsets.back(), c.heads, c.d});
        ASSERT_TRUE(attention_slots(host.context(), args));
        EXPECT_TRUE(out.guards_intact());
        for (std::size_t r = 0; r < c.counts.size(); ++r) {
          for (int i = 0; i < c.counts[r]; ++i) {
            const std::int64_t token = offsets[r] + i;
            for (int h = 0; h < c.heads; ++h) {
              const int head = h / (c.heads / c.kv_heads);
              const auto expected = exactly(
                  q.data() + (token * c.heads + h) * c.d, c.d, args.scale, c.before[r],
                  [&](std::int64_t p) { return k.data() + ((kv_offsets[r] + p) * c.kv_heads + head) * c.d; },
                  [&](std::int64_t p) { return v.data() + ((kv_offsets[r] + p) * c.kv_heads + head) * c.d; });
              for (int j = 0; j < c.d; ++j)
                ASSERT_NEAR(out.at(token, h * c.d + j), expected[static_cast<std::size_t>(j)],
                            dtype == DType::f32 ? 1e-5 : 4e-3);
            }
            // The query alone.
            const std::vector<std::int32_t> one = {0, 1};
            Guarded alone(1, c.heads * c.d);
            SlotAttentionArgs single = args;
            single.q = args.q.slice(token, token + 1);
            single.rows = ragged(one);
            single.kv.slots += r;
            single.kv.lengths += r;
            single.out = TensorView(alone.view().pointer, DType::f32, {1, c.heads, c.d});
            ASSERT_TRUE(attention_slots(host.context(), single));
            ASSERT_TRUE(alone.row_equals(0, out, token));
          }
        }
      }
    }
  });
}

TEST(KvAppend, RefusesRowsOutsideTheirPages) {
  Host host;
  PagedRows rows({1, 1, 16, {20}, {0}}, 16, DType::f32);
  std::vector<float> k(16), v(16), memory(2 * 16 * 16);
  const std::vector<std::int32_t> offsets = {0, 1}, table = {1}, lengths = {17};
  PagedKvView kv;
  kv.keys = kv.values = TensorView(memory.data(), DType::f32, {2, 16, 1, 16});
  kv.page_table = table.data();
  kv.lengths = lengths.data();
  kv.max_pages = 1;
  kv.page_tokens = 16;
  EXPECT_FALSE(kv_append(host.context(), {heads_view(k, 1, 16), heads_view(v, 1, 16), ragged(offsets), kv}));
}

}  // namespace
}  // namespace mstar
