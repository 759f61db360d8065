#include "mstar/ops/embedding/embedding.h"

#include <gtest/gtest.h>

#include "mstar/ops/linear/block_cases.h"
#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

TEST(Embedding, ReadsEveryTableAndTheTiedProjectionAlike) {
  Host host(2);
  const std::int64_t d = 21;
  auto table = random_floats(50 * d, 1), positions_table = random_floats(10 * d, 2);
  std::vector<std::int32_t> ids = {49, 0, 7, 33}, positions = {0, 9, 3, 3};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<std::uint16_t> half(table.size());
    for (std::size_t i = 0; i < table.size(); ++i)
      half[i] = dtype == DType::f16 ? to_half(table[i]).bits : to_bfloat16(table[i]).bits;
    const TensorView view = dtype == DType::f32 ? matrix(table, 50, d) : TensorView(half.data(), dtype, {50, d});
    auto tied = LinearWeight::pack(host.device(), LinearSource{view, nullptr}, dtype);
    ASSERT_TRUE(tied);
    Guarded out(4, d, d + 1), from_tied(4, d);
    EmbeddingArgs args;
    args.ids = vector(ids);
    args.table = view;
    args.positions = vector(positions);
    args.position_table = matrix(positions_table, 10, d);
    args.out = out.view();
    ASSERT_TRUE(embedding(host.context(), args));
    EXPECT_TRUE(out.guards_intact());
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < d; ++i) {
        const auto at = static_cast<std::size_t>(ids[static_cast<std::size_t>(t)] * d + i);
        const float row = dtype == DType::f32   ? table[at]
                          : dtype == DType::f16 ? to_float(Half{half[at]})
                                                : to_float(BFloat16{half[at]});
        EXPECT_EQ(out.at(t, i),
                  row + positions_table[static_cast<std::size_t>(positions[static_cast<std::size_t>(t)] * d + i)]);
      }
    }
    args.table = {};
    args.tied = &*tied;
    args.out = from_tied.view();
    ASSERT_TRUE(embedding(host.context(), args));
    EXPECT_TRUE(from_tied.equals(out));
  }
}

TEST(Embedding, ReadsI8WithScales) {
  Host host;
  std::vector<std::int8_t> table = {1, -2, 3, 4, 5, -128};
  const float scales[] = {0.5f, 2.0f};
  std::vector<std::int32_t> ids = {1, 0};
  Guarded out(2, 3);
  EmbeddingArgs args;
  args.ids = vector(ids);
  args.table = TensorView(table.data(), DType::i8, {2, 3});
  args.row_scale = scales;
  args.out = out.view();
  ASSERT_TRUE(embedding(host.context(), args));
  EXPECT_EQ(out.at(0, 2), -256.0f);
  EXPECT_EQ(out.at(1, 1), -1.0f);
}

TEST(Embedding, ReadsBlocksAndTheTiedProjectionAlike) {
  Host host(2);
  for (const BlockFormat format : kBlockFormats) {
    SCOPED_TRACE(block_format_name(format));
    BlockRows table(format, 40, 512, 1);
    std::vector<std::int32_t> ids = {39, 0, 7};
    Guarded out(3, 512, 515), from_tied(3, 512);
    EmbeddingArgs args;
    args.ids = vector(ids);
    args.table = table.source().weight;
    args.table_blocks = format;
    args.out = out.view();
    ASSERT_TRUE(embedding(host.context(), args));
    EXPECT_TRUE(out.guards_intact());
    auto tied = LinearWeight::pack(host.device(), table.source(), format);
    ASSERT_TRUE(tied);
    args.table = {};
    args.table_blocks.reset();
    args.tied = &*tied;
    args.out = from_tied.view();
    ASSERT_TRUE(embedding(host.context(), args));
    EXPECT_TRUE(from_tied.equals(out));
    for (int t = 0; t < 3; ++t) {
      const std::vector<float> row = table.row(ids[static_cast<std::size_t>(t)]);
      for (int i = 0; i < 512; ++i) ASSERT_EQ(out.at(t, i), row[static_cast<std::size_t>(i)]) << t << " " << i;
    }
  }
}

// Zeros where another rank has the row, so that the sum of the parts is the whole.
TEST(Embedding, PartsOfAVocabularyAddUp) {
  Host host;
  const std::int64_t d = 6;
  auto table = random_floats(10 * d, 1);
  std::vector<std::int32_t> ids = {9, 0, 3, 4};
  Guarded whole(4, d), sum(4, d);
  ASSERT_TRUE(embedding(host.context(), {.ids = vector(ids), .table = matrix(table, 10, d), .out = whole.view()}));
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < d; ++i) sum.set(t, i, 0);
  const std::int64_t cuts[] = {0, 4, 8, 10};
  for (int part = 0; part < 3; ++part) {
    const TensorView own = matrix(table, 10, d).slice(cuts[part], cuts[part + 1]);
    const auto tied = LinearWeight::pack(host.device(), LinearSource{own, nullptr}, DType::f32);
    ASSERT_TRUE(tied);
    Guarded out(4, d), from_tied(4, d);
    EmbeddingArgs args{.ids = vector(ids), .table = own, .out = out.view(), .first_id = cuts[part], .vocabulary = 10};
    ASSERT_TRUE(embedding(host.context(), args));
    args.table = {};
    args.tied = &*tied;
    args.out = from_tied.view();
    ASSERT_TRUE(embedding(host.context(), args));
    EXPECT_TRUE(from_tied.equals(out));
    for (int t = 0; t < 4; ++t)
      for (int i = 0; i < d; ++i) sum.set(t, i, sum.at(t, i) + out.at(t, i));
    args.vocabulary = 9;  // ids are still checked against the whole
    const Status foreign = embedding(host.context(), args);
    ASSERT_FALSE(foreign);
  }
  EXPECT_TRUE(sum.equals(whole));
}

TEST(Embedding, RefusesForeignIds) {
  Host host;
  auto table = random_floats(8, 1);
  for (const std::int32_t id : {-1, 4}) {
    std::vector<std::int32_t> ids = {0, id};
    Guarded out(2, 2);
    EmbeddingArgs args;
    args.ids = vector(ids);
    args.table = matrix(table, 4, 2);
    args.out = out.view();
    const Status status = embedding(host.context(), args);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::invalid_request);
    EXPECT_EQ(out.at(0, 0), Guarded::kGuard);
  }
}

}  // namespace
}  // namespace mstar
