#include "mstar/nn/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/op_test_support.h"

namespace mstar::nn {
namespace {

using namespace op_test;

// A fused projection whose parts are in three formats, as files of mixed precision have them.
TEST(NnLinear, ComputesPartsOfDifferentBlocksInPlace) {
  auto checkpoint = weights::Checkpoint::open(std::string(MSTAR_SOURCE_DIR) + "/tests/golden/gguf/blocks.gguf");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const decl::WeightRule rules[] = {decl::Fuse{.from = {"q4_k", "q5_k", "q6_k"}, .to = "qkv.weight"}};
  auto map = weights::WeightMap::create(std::shared_ptr<const weights::Checkpoint>(std::move(*checkpoint)), rules);
  ASSERT_TRUE(map) << map.error().message;
  Host host(2);
  LoadContext context{.weights = *map, .device = host.device(), .storage = DType::f32};
  const auto kept = Linear::load(context, "qkv", 9, 512, false);
  context.keep_blocks = false;
  const auto widened = Linear::load(context, "qkv", 9, 512, false);
  ASSERT_TRUE(kept && widened);
  EXPECT_LT(kept->bytes(), widened->bytes());
  EXPECT_GT(kept->workspace_bytes(20, 2), 0u);

  std::vector<float> x = random_floats(2 * 512, 1);
  Guarded residual(2, 9), a(2, 9, 11), b(2, 9, 11);
  for (int row = 0; row < 2; ++row)
    for (int i = 0; i < 9; ++i) residual.set(row, i, static_cast<float>(i));
  ASSERT_TRUE(kept->run(host.context(), matrix(x, 2, 512), a.view(), Activation::none, residual.view()));
  ASSERT_TRUE(widened->run(host.context(), matrix(x, 2, 512), b.view(), Activation::none, residual.view()));
  EXPECT_TRUE(a.guards_intact());
  std::vector<float> row(512);
  for (int i = 0; i < 9; ++i) {
    widened->weight().read_row(i, row.data());
    double size = 1;
    for (const float w : row) size += static_cast<double>(w) * w;
    for (int m = 0; m < 2; ++m) EXPECT_NEAR(a.at(m, i), b.at(m, i), 0.05 * std::sqrt(size)) << m << " " << i;
  }
}

}  // namespace
}  // namespace mstar::nn
