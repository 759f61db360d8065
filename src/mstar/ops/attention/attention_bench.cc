// Encoder, cross and paged attention at Whisper's and a language model's shapes.
#include "mstar/ops/attention/attention.h"

#include <cmath>

#include "mstar/ops/cpu_target.h"
#include "mstar/ops/op_bench_support.h"

namespace mstar::op_test {
namespace {

struct Arm {
  std::unique_ptr<Host> host;
  std::vector<float> q, k, v, out;
  std::vector<std::byte> keys, values;
  std::vector<std::int32_t> offsets, slots, lengths, pages;
};

std::string label(const char* name, CpuTarget target, int threads) {
  return std::string(name) + "/" + std::string(cpu_target_name(target)) + "/threads:" + std::to_string(threads);
}

void register_dense(const char* name, std::int64_t tokens, std::int64_t heads, std::int64_t d, CpuTarget target,
                    int threads) {
  auto arm = std::make_shared<Arm>();
  const double flop = 4.0 * static_cast<double>(tokens * tokens * heads * d);
  register_bench(label(name, target, threads), flop, 0, threads, [=] {
    if (!arm->host) {
      arm->host = std::make_unique<Host>(threads);
      arm->q = random_floats(tokens * heads * d * 3, 1);
      arm->out.resize(static_cast<std::size_t>(tokens * heads * d));
      arm->offsets = {0, static_cast<std::int32_t>(tokens)};
    }
    if (cpu_target() != target) force_cpu_target(target);
    DenseAttentionArgs args;
    TensorView* parts[] = {&args.q, &args.k, &args.v};
    for (int i = 0; i < 3; ++i) {
      *parts[i] = TensorView(arm->q.data() + i * heads * d, DType::f32, {tokens, heads, d});
      parts[i]->strides[0] = 3 * heads * d;
    }
    args.rows = {arm->offsets.data(), 1, static_cast<int>(tokens)};
    args.scale = 0.125f;
    args.out = TensorView(arm->out.data(), DType::f32, {tokens, heads, d});
    if (!attention_dense(arm->host->context(), args)) std::abort();
  });
}

// rows x queries against `length` keys each.
void register_cached(const char* name, bool paged, DType dtype, int rows, int queries, int length, std::int64_t heads,
                     std::int64_t kv_heads, std::int64_t d, CpuTarget target, int threads) {
  auto arm = std::make_shared<Arm>();
  const std::int64_t capacity = (length + 31) / 32 * 32;
  const double flop = 4.0 * static_cast<double>(heads * d) * rows * queries * length;
  const double bytes =
      2.0 * static_cast<double>(kv_heads * d) * rows * length * static_cast<double>(dtype_bytes(dtype));
  register_bench(label(name, target, threads), flop, bytes, threads, [=] {
    if (!arm->host) {
      arm->host = std::make_unique<Host>(threads);
      arm->q = random_floats(rows * queries * heads * d, 1);
      arm->out.resize(arm->q.size());
      arm->keys.resize(static_cast<std::size_t>(rows * capacity * kv_heads * d) * dtype_bytes(dtype));
      arm->values = arm->keys;
      for (int r = 0; r <= rows; ++r) arm->offsets.push_back(r * queries);
      for (int r = 0; r < rows; ++r) arm->slots.push_back(r);
      arm->lengths.assign(static_cast<std::size_t>(rows), length);
      for (std::int64_t p = 0; p < rows * capacity / 32; ++p) arm->pages.push_back(static_cast<std::int32_t>(p));
    }
    if (cpu_target() != target) force_cpu_target(target);
    const RaggedView ragged{arm->offsets.data(), rows, rows * queries};
    const TensorView q(arm->q.data(), DType::f32, {rows * queries, heads, d}),
        out(arm->out.data(), DType::f32, {rows * queries, heads, d});
    if (paged) {
      const Shape shape{rows * capacity / 32, 32, kv_heads, d};
      PagedKvView kv{TensorView(arm->keys.data(), dtype, shape),
                     TensorView(arm->values.data(), dtype, shape),
                     arm->pages.data(),
                     arm->lengths.data(),
                     static_cast<int>(capacity / 32),
                     32};
      if (!attention_paged(arm->host->context(), {q, ragged, kv, 0.125f, out})) std::abort();
    } else {
      const Shape shape{rows, capacity, kv_heads, d};
      SlotKvView kv{TensorView(arm->keys.data(), dtype, shape), TensorView(arm->values.data(), dtype, shape),
                    arm->slots.data(), arm->lengths.data()};
      if (!attention_slots(arm->host->context(), {q, ragged, kv, 0.125f, out})) std::abort();
    }
  });
}

void register_all() {
  for (const CpuTarget target : cpu_targets()) {
    if (target == CpuTarget::avx512_vnni) continue;
    for (const int threads : {1, 2}) {
      register_dense("encoder_base", 1500, 8, 64, target, threads);
      for (const DType dtype : {DType::f32, DType::f16}) {
        const std::string suffix = "_" + std::string(dtype_name(dtype));
        register_cached(("cross_1x1" + suffix).c_str(), false, dtype, 1, 1, 1500, 8, 8, 64, target, threads);
        register_cached(("cross_8x1" + suffix).c_str(), false, dtype, 8, 1, 1500, 8, 8, 64, target, threads);
        register_cached(("cross_1x200" + suffix).c_str(), false, dtype, 1, 200, 1500, 8, 8, 64, target, threads);
        register_cached(("paged_1x1_200" + suffix).c_str(), true, dtype, 1, 1, 200, 8, 8, 64, target, threads);
        register_cached(("paged_1x200_200" + suffix).c_str(), true, dtype, 1, 200, 200, 8, 8, 64, target, threads);
        register_cached(("paged_gqa_1x1_4096" + suffix).c_str(), true, dtype, 1, 1, 4096, 32, 8, 128, target, threads);
        register_cached(("paged_gqa_1x512_4096" + suffix).c_str(), true, dtype, 1, 512, 4096, 32, 8, 128, target,
                        threads);
      }
    }
  }
}

}  // namespace
}  // namespace mstar::op_test

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  mstar::op_test::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
