#include "mstar/ops/conv1d/conv1d.h"

#include "mstar/ops/op_bench_support.h"

namespace mstar::op_test {
namespace {

// The two convolutions of Whisper base.
const bool registered = [] {
  for (const int threads : {1, 2}) {
    for (const int which : {1, 2}) {
      const std::int64_t channels = which == 1 ? 80 : 512, frames = 3000, out_frames = frames / which;
      struct Arm {
        std::unique_ptr<Host> host;
        LinearWeight weight;
        std::vector<float> x, out, bias;
      };
      auto arm = std::make_shared<Arm>();
      register_bench("conv" + std::to_string(which) + "_base/threads:" + std::to_string(threads),
                     2.0 * static_cast<double>(out_frames * channels) * 3 * 512, 0, threads, [=] {
                       if (!arm->host) {
                         arm->host = std::make_unique<Host>(threads);
                         auto w = random_floats(512 * channels * 3, 1);
                         arm->weight = std::move(*pack_conv1d(
                             arm->host->device(), TensorView(w.data(), DType::f32, {512, channels, 3}), DType::f32));
                         arm->x = random_floats(channels * frames, 2);
                         arm->bias = random_floats(512, 3);
                         arm->out.resize(static_cast<std::size_t>(out_frames) * 512);
                       }
                       Conv1dArgs args;
                       args.x = which == 1 ? matrix(arm->x, channels, frames) : matrix(arm->x, frames, channels);
                       args.channels_first = which == 1;
                       args.weight = &arm->weight;
                       args.bias = vector(arm->bias);
                       args.stride = which;
                       args.activation = Activation::gelu_erf;
                       args.out = matrix(arm->out, out_frames, 512);
                       if (!conv1d(arm->host->context(), args)) std::abort();
                     });
    }
  }
  return true;
}();

}  // namespace
}  // namespace mstar::op_test
