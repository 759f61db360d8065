// Our kernels against oneDNN and OpenBLAS (when found), all single-threaded unless the name says threads:2.
// Run with --benchmark_enable_random_interleaving=true on a shared machine.
#include "mstar/ops/linear/linear.h"

#include <map>

#include "mstar/ops/cpu_target.h"
#include "mstar/ops/linear/block_cases.h"
#include "mstar/ops/linear/linear_cases.h"
#include "mstar/ops/op_bench_support.h"

#ifdef MSTAR_HAS_OPENBLAS
#include <cblas.h>
extern "C" void openblas_set_num_threads(int);
#endif
#ifdef MSTAR_HAS_DNNL
#include <dnnl.hpp>
extern "C" void omp_set_num_threads(int);
#endif

namespace mstar::op_test {
namespace {

struct Data {
  explicit Data(const LinearCase& c) : shape(c) {}
  // Filled by the first arm that runs.
  void fill() {
    if (!x.empty()) return;
    x = random_floats(shape.m * shape.k, 1);
    w = random_floats(shape.n * shape.k, 2);
    out.resize(static_cast<std::size_t>(shape.m * shape.n));
  }
  LinearWeight pack(Device& device, StoredType storage) {
    fill();
    if (storage.is_blocks())
      return std::move(*LinearWeight::pack(device, BlockRows(storage.blocks(), shape.n, shape.k, 3).source(), storage));
    return std::move(*LinearWeight::pack(device, LinearSource{matrix(w, shape.n, shape.k), nullptr}, storage));
  }
  LinearCase shape;
  std::vector<float> x, w, out;
};

double flop_of(const LinearCase& c) { return 2.0 * static_cast<double>(c.m * c.n * c.k); }

void register_ours(const std::shared_ptr<Data>& data, StoredType storage, int threads, CpuTarget target) {
  const LinearCase& c = data->shape;
  const std::string name = std::string(c.name) + "/ours_" + std::string(storage.name()) + "/" +
                           std::string(cpu_target_name(target)) + "/threads:" + std::to_string(threads);
  const double bytes = static_cast<double>(storage.row_bytes(c.n * c.k)) + 4.0 * static_cast<double>(c.m * (c.n + c.k));
  struct Arm {
    std::unique_ptr<Host> host;
    LinearWeight weight;
  };
  auto arm = std::make_shared<Arm>();
  register_bench(name, flop_of(c), bytes, threads, [=] {
    if (!arm->host) {
      arm->host = std::make_unique<Host>(threads, std::size_t{64} << 20);
      arm->weight = data->pack(arm->host->device(), storage);
    }
    if (cpu_target() != target) force_cpu_target(target);
    LinearArgs args;
    args.x = matrix(data->x, data->shape.m, data->shape.k);
    args.weight = &arm->weight;
    args.out = matrix(data->out, data->shape.m, data->shape.n);
    if (!linear(arm->host->context(), args)) std::abort();
  });
}

#ifdef MSTAR_HAS_OPENBLAS
void register_openblas(const std::shared_ptr<Data>& data) {
  openblas_set_num_threads(1);
  register_bench(std::string(data->shape.name) + "/openblas_f32", flop_of(data->shape), 0, 1, [=] {
    data->fill();
    const auto m = static_cast<int>(data->shape.m), n = static_cast<int>(data->shape.n),
               k = static_cast<int>(data->shape.k);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, data->x.data(), k, data->w.data(), k, 0.0f,
                data->out.data(), n);
  });
}
#endif

#ifdef MSTAR_HAS_DNNL
// The weight in the layout that oneDNN asks for, as a program would keep it.
void register_onednn(const std::shared_ptr<Data>& data, bool i8) {
  using dnnl::memory;
  omp_set_num_threads(1);
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  auto stream = std::make_shared<dnnl::stream>(engine);
  const LinearCase& c = data->shape;
  const memory::desc x({c.m, c.k}, i8 ? memory::data_type::u8 : memory::data_type::f32, memory::format_tag::ab);
  const memory::desc any({c.k, c.n}, i8 ? memory::data_type::s8 : memory::data_type::f32, memory::format_tag::any);
  const memory::desc out({c.m, c.n}, i8 ? memory::data_type::s32 : memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc plan({x, any, out}, engine);
  struct Arm {
    memory x, w, out;
    dnnl::matmul matmul;
  };
  auto arm = std::make_shared<Arm>();
  const memory::desc packed = plan.weights_desc();
  register_bench(std::string(c.name) + (i8 ? "/onednn_i8" : "/onednn_f32"), flop_of(c), 0, 1, [=] {
    if (!arm->matmul) *arm = {memory(x, engine), memory(packed, engine), memory(out, engine), dnnl::matmul(plan)};
    arm->matmul.execute(*stream, {{DNNL_ARG_SRC, arm->x}, {DNNL_ARG_WEIGHTS, arm->w}, {DNNL_ARG_DST, arm->out}});
    stream->wait();
  });
}
#endif

void register_all() {
  for (const LinearCase& c : kBenchLinearCases) {
    auto data = std::make_shared<Data>(c);
    for (const DType storage : {DType::f32, DType::f16, DType::bf16, DType::i8})
      for (const CpuTarget target : cpu_targets())
        for (const int threads : {1, 2}) {
          if (target == CpuTarget::avx512 && storage == DType::i8) continue;  // same kernel as avx2
          if (target == CpuTarget::avx512_vnni && storage != DType::i8) continue;
          register_ours(data, storage, threads, target);
        }
    for (const BlockFormat format : kBlockFormats)
      for (const CpuTarget target : cpu_targets())
        for (const int threads : {1, 2})
          if (target != CpuTarget::avx512 && c.k % block_elements(format) == 0)
            register_ours(data, format, threads, target);
#ifdef MSTAR_HAS_OPENBLAS
    register_openblas(data);
#endif
#ifdef MSTAR_HAS_DNNL
    register_onednn(data, false);
    register_onednn(data, true);
#endif
  }
}

}  // namespace
}  // namespace mstar::op_test

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  mstar::op_test::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
