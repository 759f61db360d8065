#include "memory_plan.h"

#include <gtest/gtest.h>

namespace mstar::apps {
namespace {

// 1 KiB a token.
const decl::PagedKv kSpec{
    .name = "kv", .layers = 1, .kv_heads = 1, .head_dim = 128, .page_tokens = 16, .max_tokens_per_request = 8192};
constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(DefaultKvTokens, AnEighthOfTheMemory) {
  EXPECT_EQ(default_kv_tokens(kSpec, 16, 512 * kMiB, 4096 * kMiB), 64 * 1024);
  EXPECT_EQ(default_kv_tokens(kSpec, 16, 512 * kMiB + 8 * 15 * 1024, 4096 * kMiB), 64 * 1024);  // whole pages
}

TEST(DefaultKvTokens, TwoOfTheLongestRequestsAtLeast) {
  EXPECT_EQ(default_kv_tokens(kSpec, 16, 64 * kMiB, 4096 * kMiB), 2 * 8192);
  EXPECT_EQ(default_kv_tokens(kSpec, 16, 24 * kMiB, 4096 * kMiB), 12 * 1024);  // half of the memory
}

TEST(DefaultKvTokens, TheWorstCaseWhereThatIsLessOrNothingFits) {
  EXPECT_EQ(default_kv_tokens(kSpec, 16, 1024 * kMiB, 4096 * kMiB), 0);
  EXPECT_EQ(default_kv_tokens(kSpec, 2, 64 * kMiB, 4096 * kMiB), 0);
  EXPECT_EQ(default_kv_tokens(kSpec, 1, 64 * kMiB, 4096 * kMiB), 0);
  EXPECT_EQ(default_kv_tokens(kSpec, 16, 8 * kMiB, 4096 * kMiB), 0);
}

TEST(DefaultKvTokens, NoMoreThanWeightsLeave) {
  EXPECT_EQ(default_kv_tokens(kSpec, 16, 512 * kMiB, 20 * kMiB), 20 * 1024);
  EXPECT_EQ(default_kv_tokens(kSpec, 16, 512 * kMiB, 5 * kMiB), 0);
}

}  // namespace
}  // namespace mstar::apps
