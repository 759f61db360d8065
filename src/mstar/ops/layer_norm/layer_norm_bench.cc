#include "mstar/ops/layer_norm/layer_norm.h"

#include "mstar/ops/op_bench_support.h"
#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar::op_test {
namespace {

const bool registered = [] {
  for (const int threads : {1, 2}) {
    for (const std::int64_t m : {1, 1500}) {
      auto host = std::make_shared<Host>(threads);
      auto x = std::make_shared<std::vector<float>>(random_floats(m * 512, 1)),
           weight = std::make_shared<std::vector<float>>(random_floats(512, 2));
      auto out = std::make_shared<std::vector<float>>(x->size());
      const std::string suffix = "/" + std::to_string(m) + "x512/threads:" + std::to_string(threads);
      const double bytes = 8.0 * 512 * static_cast<double>(m);
      register_bench("layer_norm" + suffix, 0, bytes, threads, [=] {
        if (!layer_norm(host->context(),
                        {matrix(*x, m, 512), vector(*weight), vector(*weight), 1e-5f, matrix(*out, m, 512)}))
          std::abort();
      });
      register_bench("rms_norm" + suffix, 0, bytes, threads, [=] {
        if (!rms_norm(host->context(), {matrix(*x, m, 512), vector(*weight), 1e-6f, 0.0f, matrix(*out, m, 512)}))
          std::abort();
      });
    }
  }
  return true;
}();

}  // namespace
}  // namespace mstar::op_test
