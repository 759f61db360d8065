#include "mstar/ops/delta_rule/delta_rule.h"

#include "mstar/ops/causal_conv1d/causal_conv1d.h"
#include "mstar/ops/op_bench_support.h"

namespace mstar::op_test {
namespace {

// A layer of Qwen3.5 with 16 key heads of 128; 16 value heads (0.8B) or 32 (9B).
struct Layer {
  std::int64_t tokens, heads;
  Host host;
  std::vector<float> x, conv, weight, decay, beta, out, conv_state, state;
  std::vector<std::int32_t> offsets, positions, slots = {0};

  Layer(std::int64_t num_tokens, std::int64_t num_heads, int threads)
      : tokens(num_tokens), heads(num_heads), host(threads), offsets{0, static_cast<std::int32_t>(num_tokens)} {
    x = random_floats(tokens * width(), 1);
    conv = x;
    weight = random_floats(4 * width(), 2);
    decay.assign(static_cast<std::size_t>(tokens * heads), 0.9f);
    beta.assign(decay.size(), 0.5f);
    out.resize(static_cast<std::size_t>(tokens * heads * 128));
    conv_state.resize(static_cast<std::size_t>(3 * width()));
    state.resize(static_cast<std::size_t>(heads * 128 * 128));
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<std::int32_t>(t + 1));
  }
  std::int64_t width() const { return (2 * 16 + heads) * 128; }
  TensorView part(std::int64_t first, std::int64_t count) {
    TensorView view(x.data() + first * 128, DType::f32, {tokens, count, 128});
    view.strides[0] = width();
    return view;
  }
  RaggedView rows() const { return {offsets.data(), 1, offsets[1]}; }
  Status convolve() {
    return causal_conv1d(host.context(), {.x = matrix(x, tokens, width()),
                                          .rows = rows(),
                                          .positions = positions.data(),
                                          .weight = matrix(weight, 4, width()),
                                          .activation = Activation::silu,
                                          .state = TensorView(conv_state.data(), DType::f32, {1, 3, width()}),
                                          .slots = slots.data(),
                                          .out = matrix(conv, tokens, width())});
  }
  Status rule() {
    return delta_rule(host.context(), {.q = part(0, 16),
                                       .k = part(16, 16),
                                       .v = part(32, heads),
                                       .decay = matrix(decay, tokens, heads),
                                       .beta = matrix(beta, tokens, heads),
                                       .rows = rows(),
                                       .positions = positions.data(),
                                       .scale = 0.088f,
                                       .state = TensorView(state.data(), DType::f32, {1, heads, 128, 128}),
                                       .slots = slots.data(),
                                       .out = TensorView(out.data(), DType::f32, {tokens, heads, 128})});
  }
};

const bool registered = [] {
  for (const int threads : {1, 2}) {
    for (const std::int64_t heads : {16, 32}) {
      for (const std::int64_t tokens : {1, 128}) {
        auto layer = std::make_shared<Layer>(tokens, heads, threads);
        const std::string suffix = "/heads:" + std::to_string(heads) + "/tokens:" + std::to_string(tokens) +
                                   "/threads:" + std::to_string(threads);
        const auto elements = static_cast<double>(heads) * 128 * 128;
        register_bench("delta_rule" + suffix, 8 * elements * static_cast<double>(tokens), 8 * elements, threads, [=] {
          if (!layer->rule()) std::abort();
        });
        register_bench("causal_conv1d" + suffix, 0, 8.0 * static_cast<double>(tokens * layer->width()), threads, [=] {
          if (!layer->convolve()) std::abort();
        });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace mstar::op_test
