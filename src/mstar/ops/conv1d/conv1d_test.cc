#include "mstar/ops/conv1d/conv1d.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

TEST(Conv1d, MatchesDoubles) {
  auto device = make_cpu_device();
  for (const int stride : {1, 2}) {
    for (const std::int64_t frames : {1, 2, 3, 4, 31, 60}) {
      for (const bool channels_first : {false, true}) {
        const std::int64_t channels = 13, outputs = 35, out_frames = (frames - 1) / stride + 1;
        auto x = random_floats(channels * frames, 1), w = random_floats(outputs * channels * 3, 2, 0.3f),
             bias = random_floats(outputs, 3);
        auto residual = random_floats(out_frames * outputs, 4);
        auto weight = pack_conv1d(*device, TensorView(w.data(), DType::f32, {outputs, channels, 3}), DType::f32);
        ASSERT_TRUE(weight);
        Guarded out(out_frames, outputs, outputs + 4);
        Conv1dArgs args;
        args.x = channels_first ? matrix(x, channels, frames) : matrix(x, frames, channels);
        args.channels_first = channels_first;
        args.weight = &*weight;
        args.bias = vector(bias);
        args.stride = stride;
        args.activation = Activation::gelu_erf;
        args.residual = matrix(residual, out_frames, outputs);
        args.out = out.view();
        Host host(2, conv1d_workspace_bytes(args, 2));
        ASSERT_TRUE(conv1d(host.context(), args));
        EXPECT_TRUE(out.guards_intact());
        for (std::int64_t t = 0; t < out_frames; ++t) {
          for (std::int64_t o = 0; o < outputs; ++o) {
            double sum = bias[static_cast<std::size_t>(o)];
            for (int tap = 0; tap < 3; ++tap) {
              const std::int64_t frame = t * stride + tap - 1;
              if (frame < 0 || frame >= frames) continue;
              for (std::int64_t c = 0; c < channels; ++c)
                sum += static_cast<double>(w[static_cast<std::size_t>((o * channels + c) * 3 + tap)]) *
                       x[static_cast<std::size_t>(channels_first ? c * frames + frame : frame * channels + c)];
            }
            const double expected =
                0.5 * sum * (1 + std::erf(sum / std::sqrt(2.0))) + residual[static_cast<std::size_t>(t * outputs + o)];
            ASSERT_NEAR(out.at(t, o), expected, 1e-5) << stride << " " << frames << " " << t;
          }
        }
      }
    }
  }
}

TEST(Conv1d, RefusesOtherKernels) {
  Host host;
  std::vector<float> w(40);
  EXPECT_EQ(pack_conv1d(host.device(), TensorView(w.data(), DType::f32, {2, 4, 5}), DType::f32).error().code,
            Code::bad_model);
}

}  // namespace
}  // namespace mstar
