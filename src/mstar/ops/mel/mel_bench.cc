#include "mstar/ops/mel/mel.h"

#include "mstar/ops/op_bench_support.h"

namespace mstar::op_test {
namespace {

// One window of 30 s.
const bool registered = [] {
  for (const int threads : {1, 2}) {
    for (const int num_mels : {80, 128}) {
      auto host = std::make_shared<Host>(threads);
      auto plan = std::make_shared<MelPlan>(*MelPlan::make(num_mels));
      auto pcm = std::make_shared<std::vector<float>>(random_floats(mel_samples(3000), 1, 0.1f));
      auto out = std::make_shared<std::vector<float>>(static_cast<std::size_t>(num_mels) * 3000);
      const std::string suffix = "/" + std::to_string(num_mels) + "x3000/threads:" + std::to_string(threads);
      register_bench("log_mel" + suffix, 0, 0, threads, [=] {
        if (!log_mel(host->context(), {plan.get(), vector(*pcm), matrix(*out, num_mels, 3000)})) std::abort();
      });
      register_bench("mel_normalise" + suffix, 0, 8.0 * num_mels * 3000, threads, [=] {
        const float maximum = mel_maximum(matrix(*out, num_mels, 3000));
        if (!mel_normalise(host->context(), {matrix(*out, num_mels, 3000), maximum, matrix(*out, num_mels, 3000)}))
          std::abort();
      });
    }
  }
  return true;
}();

}  // namespace
}  // namespace mstar::op_test
