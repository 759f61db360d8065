#include "mstar/ops/kv_append/kv_append.h"

#include "mstar/ops/op_bench_support.h"

namespace mstar::op_test {
namespace {

// Whisper base: the encoder's 1500 states of one layer to a slot, and one decoded token to its page.
const bool registered = [] {
  for (const int threads : {1, 2}) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      struct Arm {
        std::unique_ptr<Host> host;
        std::vector<float> kv;
        std::vector<std::byte> keys, values;
        std::vector<std::int32_t> offsets = {0, 1500}, slots = {0}, lengths = {1500};
      };
      auto arm = std::make_shared<Arm>();
      register_bench(
          "kv_store_1500/" + std::string(dtype_name(dtype)) + "/threads:" + std::to_string(threads), 0,
          2.0 * 1500 * 512 * static_cast<double>(4 + dtype_bytes(dtype)), threads, [=] {
            if (!arm->host) {
              arm->host = std::make_unique<Host>(threads);
              arm->kv = random_floats(1500 * 1024, 1);
              arm->keys.resize(1504 * 512 * dtype_bytes(dtype));
              arm->values = arm->keys;
            }
            TensorView k(arm->kv.data(), DType::f32, {1500, 8, 64}), v(arm->kv.data() + 512, DType::f32, {1500, 8, 64});
            k.strides[0] = v.strides[0] = 1024;
            const Shape shape{1, 1504, 8, 64};
            const SlotKvView kv{TensorView(arm->keys.data(), dtype, shape),
                                TensorView(arm->values.data(), dtype, shape), arm->slots.data(), arm->lengths.data()};
            if (!kv_store(arm->host->context(), {k, v, {arm->offsets.data(), 1, 1500}, kv})) std::abort();
          });
    }
  }
  return true;
}();

}  // namespace
}  // namespace mstar::op_test
