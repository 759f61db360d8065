// Where norms are passed, as far as a machine without a GPU can tell: the rule reads shapes alone.
#include "mstar/ops/linear/passed_norm.h"

#include <gtest/gtest.h>

#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

LinearWeight weight_of(Device& device, std::int64_t n, std::int64_t k) {
  std::vector<float> values(static_cast<std::size_t>(n * k), 0.5f);
  auto packed = LinearWeight::pack(device, LinearSource{matrix(values, n, k)}, DType::bf16);
  EXPECT_TRUE(packed);
  return std::move(*packed);
}

TEST(PassedNorm, IsNoneOnTheCpu) {
  Host host;
  const LinearWeight adds = weight_of(host.device(), 64, 64), reads = weight_of(host.device(), 64, 64);
  Guarded x(2, 64), stream(2, 64);
  LinearArgs args;
  args.x = x.view();
  args.weight = &adds;
  args.residual = args.out = stream.view();
  EXPECT_EQ(passed_norm_parts(host.context(), args, {.weight = &reads, .out = DType::f32}), 0);
}

#ifdef MSTAR_CUDA
std::int64_t parts_on_cuda(const LinearWeight& adds, const LinearWeight& reads, std::int64_t rows, DType out) {
  Host host;
  alignas(16) static float somewhere[4];
  LinearArgs args;
  args.x = TensorView(somewhere, DType::bf16, {rows, adds.num_inputs()});
  args.weight = &adds;
  args.residual = args.out = TensorView(somewhere, DType::f32, {rows, adds.num_outputs()});
  return linear_cuda_passed_norm_parts(host.context(), args, {.weight = &reads, .out = out});
}

// Whisper large-v3's decoder: a part for each block of 64 outputs and each part of K, as its table of cuts says.
TEST(PassedNorm, PassesBetweenTheProductsOfWhispersDecoder) {
  Host host;
  LinearWeight square = weight_of(host.device(), 1280, 1280);
  const LinearWeight up = weight_of(host.device(), 5120, 1280), down = weight_of(host.device(), 1280, 5120),
                     qkv = weight_of(host.device(), 3840, 1280);
  for (const std::int64_t rows : {1, 3, 8, 24}) {
    EXPECT_EQ(parts_on_cuda(square, square, rows, DType::bf16), 80) << rows;
    EXPECT_EQ(parts_on_cuda(square, up, rows, DType::bf16), 80) << rows;
  }
  EXPECT_EQ(parts_on_cuda(down, qkv, 8, DType::bf16), 160);
  EXPECT_GT(parts_on_cuda(down, qkv, kMostPassedRows, DType::bf16), 0);
  EXPECT_LE(parts_on_cuda(down, qkv, kMostPassedRows, DType::bf16), most_square_parts(1280));
  EXPECT_EQ(parts_on_cuda(down, qkv, kMostPassedRows + 1, DType::bf16), 0);
  square.keep_one_order();
  EXPECT_EQ(parts_on_cuda(square, up, 1, DType::bf16), 0);
  EXPECT_EQ(parts_on_cuda(down, square, 1, DType::bf16), 0);
}

// Logits of 51866 tokens: too many numbers for the rule of what streams faster, and rows that cuBLASLt refuses.
TEST(PassedNorm, PassesToLogitsThatTheLibraryRefuses) {
  Host host;
  const LinearWeight down = weight_of(host.device(), 256, 64), head = weight_of(host.device(), 65538, 256),
                     taken = weight_of(host.device(), 65540, 256);
  EXPECT_GT(parts_on_cuda(down, head, 1, DType::f32), 0);
  EXPECT_EQ(parts_on_cuda(down, taken, 1, DType::f32), 0);
}
#endif

}  // namespace
}  // namespace mstar
