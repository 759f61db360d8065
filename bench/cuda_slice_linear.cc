// Matrix products on the GPU: dtypes, epilogues and kernels against the CPU in f32, and one order of sums where
// promised.
#include <algorithm>
#include <cmath>

#include "cuda_slice.h"
#include "linear_probe.h"
#include "mstar/ops/linear/gated_linear.h"

namespace mstar::bench {
namespace {

using Residual = LinearProbe::Residual;

const char* name_of(Activation activation) {
  constexpr const char* kNames[] = {"", " gelu", " gelu_tanh", " silu"};
  return kNames[static_cast<int>(activation)];
}
std::string name_of(const LinearProbe& p) {
  constexpr const char* kResiduals[] = {"", " + residual", " + out"};
  return text("%s to %s%s%s%s, %lldx%lldx%lld", std::string(dtype_name(p.in)).c_str(),
              std::string(dtype_name(p.out)).c_str(), p.bias ? " + bias" : "", name_of(p.activation),
              kResiduals[static_cast<int>(p.residual)], static_cast<long long>(p.m), static_cast<long long>(p.n),
              static_cast<long long>(p.k));
}

// The values of a probe, which both devices get.
struct Values {
  explicit Values(const LinearProbe& p)
      : x(drawn(p.in, p.m * p.k, 1)),
        w(drawn(p.in, p.n * p.k, 2, 1.0 / std::sqrt(static_cast<double>(p.k)))),
        bias(drawn(DType::f32, p.n, 3)),
        residual(drawn(p.out, p.m * p.n, 4)) {}
  std::vector<float> x, w, bias, residual;
};

class Prober {
 public:
  Prober(Report& report, Device& cuda) : report_(report), cpu_(make_cpu_device()), cuda_(cuda), pool_(4) {
    for (Device* device : {cpu_.get(), &cuda_}) {
      auto memory = Tensor::allocate(*device, DType::u8, {std::int64_t{256} << 20});
      MSTAR_CHECK(memory.has_value(), "no memory for the arena");
      memories_.push_back(std::move(*memory));
    }
  }
  // Rows [begin, end) of the product; empty after a fault, which is reported.
  std::vector<float> run(bool on_cuda, const LinearProbe& p, const Values& values, std::int64_t begin,
                         std::int64_t end) {
    auto out = try_run(on_cuda, p, values, begin, end);
    if (out) return *out;
    fail(p, out.error().message);
    return {};
  }
  // One line for the checks since the last one; each failure has its own.
  void sum_up(const char* what) {
    report_.check(num_failed_ == 0, what,
                  text("%d products, %d failed, error %.2f of what is allowed", num_checked_, num_failed_, worst_));
    num_checked_ = num_failed_ = 0;
    worst_ = 0;
  }
  void check(const LinearProbe& p) {
    if (!report_.takes(p.m * p.n * p.k)) return;
    const Values values(p);
    const auto got = run(true, p, values, 0, p.m), expected = run(false, p, values, 0, p.m);
    double largest = 0, squares = 0, norm = 0;
    for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
      const double apart = std::fabs(static_cast<double>(got[i]) - expected[i]);
      largest = std::max(largest, std::isfinite(got[i]) ? apart / std::max(1.0f, std::fabs(expected[i])) : 1e30);
      squares += apart * apart;
      norm += static_cast<double>(expected[i]) * expected[i];
    }
    // Products have a spread of 1. Roundings to 16 bits: of the output, and before bias and activation. The sum of an
    // f32 output grows by one rounding every 16 k.
    const double step = p.out == DType::bf16  ? 0x1p-8
                        : p.out == DType::f16 ? 0x1p-11
                                              : 0x1p-17 * (1.0 + static_cast<double>(p.k) / 2048);
    const double relative = std::sqrt(squares / norm);
    const double of_allowed = std::max(largest / (6 * step), relative / step);
    ++num_checked_;
    worst_ = std::max(worst_, of_allowed);
    if (got.empty() || got.size() != expected.size() || of_allowed > 1)
      fail(p, text("error %.2e, relative %.2e", largest, relative));
  }
  // A row alone and among others.
  void check_one_order(LinearProbe p) {
    p.one_order = true;
    const Values values(p);
    const auto whole = run(true, p, values, 0, p.m);
    bool same = !whole.empty();
    for (const std::int64_t size : {1, 3, 8, 16, 29, 64, 70}) {
      for (std::int64_t begin = 0; same && begin < p.m; begin += 37) {
        const std::int64_t end = std::min(p.m, begin + size);
        const auto part = run(true, p, values, begin, end);
        same = !part.empty() && std::equal(part.begin(), part.end(), whole.begin() + begin * p.n);
      }
    }
    report_.check(same, "linear " + name_of(p) + ": a row's bits in any batch");
  }

 private:
  Result<std::vector<float>> try_run(bool on_cuda, const LinearProbe& p, const Values& values, std::int64_t begin,
                                     std::int64_t end) {
    Device& device = on_cuda ? cuda_ : *cpu_;
    const DType in = on_cuda ? p.in : DType::f32, to = on_cuda ? p.out : DType::f32;
    MSTAR_TRY_ASSIGN(
        LinearWeight weight,
        LinearWeight::pack(device,
                           LinearSource{TensorView(const_cast<float*>(values.w.data()), DType::f32, {p.n, p.k})}, in));
    if (p.one_order) weight.keep_one_order();
    const std::int64_t rows = end - begin;
    const auto part = [&](const std::vector<float>& all, std::int64_t columns) {
      return std::vector<float>(all.begin() + begin * columns, all.begin() + end * columns);
    };
    MSTAR_TRY_ASSIGN(const ProbeMatrix x, ProbeMatrix::place(device, in, part(values.x, p.k), rows, p.k, p.padding));
    MSTAR_TRY_ASSIGN(const ProbeMatrix bias, ProbeMatrix::place(device, DType::f32, values.bias, 1, p.n, 0));
    MSTAR_TRY_ASSIGN(const ProbeMatrix residual,
                     ProbeMatrix::place(device, to, part(values.residual, p.n), rows, p.n, p.padding));
    MSTAR_TRY_ASSIGN(const ProbeMatrix out, ProbeMatrix::place(device, to, {}, rows, p.n, p.padding));
    LinearArgs args;
    args.x = x.view();
    args.weight = &weight;
    if (p.bias) args.bias = bias.view().at(0);
    if (p.residual != Residual::none) args.residual = residual.view();
    args.activation = p.activation;
    args.out = p.residual == Residual::in_place ? residual.view() : out.view();
    const TensorView arena = memories_[on_cuda ? 1 : 0].view();
    Arena step(arena.pointer, arena.bytes());
    OpContext context{
        .device = device, .stream = device.default_stream(), .arena = step, .pool = on_cuda ? nullptr : &pool_};
    MSTAR_TRY(linear(context, args));
    if (step.mark() != 0) return internal_error("linear kept memory of the arena");
    const std::size_t promised = linear_workspace_bytes(weight, rows, context.num_threads());
    if (step.peak_bytes() > promised) return internal_error("linear took more of the arena than it said");
    return (p.residual == Residual::in_place ? residual : out).read(device);
  }

  void fail(const LinearProbe& p, const std::string& note) {
    ++num_failed_;
    std::printf("FAIL  linear %s: %s\n", name_of(p).c_str(), note.c_str());
  }

  Report& report_;
  int num_checked_ = 0, num_failed_ = 0;
  double worst_ = 0;
  std::unique_ptr<Device> cpu_;
  Device& cuda_;
  ThreadPool pool_;
  std::vector<Tensor> memories_;
};

// Everything that an epilogue may be, on few rows and on many.
void check_epilogues(Prober& prober) {
  int which = 0;
  for (const DType in : {DType::bf16, DType::f16, DType::f32})
    for (const DType out : {in, DType::f32})
      for (const std::int64_t m : {1, 7, 19, 40, 64, 150})
        for (const Residual residual : {Residual::none, Residual::apart, Residual::in_place})
          for (const bool bias : {false, true})
            prober.check({.m = m,
                          .n = 136,
                          .k = 72 * (1 + which % 9),
                          .in = in,
                          .out = out,
                          .bias = bias,
                          .residual = residual,
                          .activation = static_cast<Activation>(which++ % 4)});
}

// Mixtures of dtypes, odd shapes and rows at odd places: no fast kernel takes these.
void check_rest(Prober& prober) {
  for (const std::int64_t m : {1, 3, 33})
    for (const auto& [n, k] : {std::pair{1, 1}, {33, 130}, {40, 64}})
      for (const DType in : {DType::bf16, DType::f16, DType::f32})
        for (const DType out : {DType::bf16, DType::f16, DType::f32})
          prober.check({.m = m, .n = n, .k = k, .in = in, .out = out, .bias = true, .padding = 3});
}

// Shapes of models, their rows dense.
void check_shapes(Prober& prober) {
  for (const auto& [n, k] :
       {std::pair{8224, 1024}, {1024, 2048}, {5120, 1024}, {1024, 3584}, {12352, 4096}, {4096, 12288}})
    for (const std::int64_t m : {1, 8, 13, 32, 64, 100}) {
      if (m > 32 && n * k > 20000000) continue;  // the CPU takes its time
      prober.check({.m = m,
                    .n = n,
                    .k = k,
                    .out = n < k ? DType::f32 : DType::bf16,
                    .residual = n < k ? Residual::in_place : Residual::none,
                    .padding = 0});
    }
}

// silu(gate) * up in one kernel and in two.
void check_gated(Report& report, Device& cuda) {
  const auto cpu = make_cpu_device();
  ThreadPool pool(4);
  int num_checked = 0, num_failed = 0;
  for (const DType to : {DType::bf16, DType::f32}) {
    for (const auto& [f, k] : {std::pair{40, 72}, {3584, 1024}, {100, 520}}) {
      for (const std::int64_t m : {1, 8, 20, 64, 130}) {
        if (!report.takes(m * f * k)) continue;
        const auto x = drawn(DType::bf16, m * k, 1);
        const auto w = drawn(DType::bf16, 2 * f * k, 2, 1.0 / std::sqrt(static_cast<double>(k)));
        const auto run = [&](Device& device, DType in, DType out_dtype) -> Result<std::vector<float>> {
          const LinearSource source{TensorView(const_cast<float*>(w.data()), DType::f32, {2 * f, k})};
          MSTAR_TRY_ASSIGN(const LinearWeight weight, LinearWeight::pack(device, source, in));
          MSTAR_TRY_ASSIGN(const ProbeMatrix rows, ProbeMatrix::place(device, in, x, m, k, 8));
          MSTAR_TRY_ASSIGN(const ProbeMatrix out, ProbeMatrix::place(device, out_dtype, {}, m, f, 8));
          const auto bytes = static_cast<std::int64_t>(gated_linear_workspace_bytes(weight, m, 4));
          MSTAR_TRY_ASSIGN(const Tensor memory, Tensor::allocate(device, DType::u8, {bytes}));
          Arena arena(memory.view().pointer, memory.bytes());
          OpContext context{.device = device,
                            .stream = device.default_stream(),
                            .arena = arena,
                            .pool = &device == cpu.get() ? &pool : nullptr};
          MSTAR_TRY(gated_linear(context, {.x = rows.view(), .weight = &weight, .out = out.view()}));
          return out.read(device);
        };
        const auto got = run(cuda, DType::bf16, to), expected = run(*cpu, DType::f32, DType::f32);
        const std::string name = text("gated linear to %s, %lldx%dx%d", std::string(dtype_name(to)).c_str(),
                                      static_cast<long long>(m), f, k);
        double largest = got && expected && got->size() == expected->size() ? 0 : 1e30;
        for (std::size_t i = 0; largest < 1e29 && i < got->size(); ++i) {
          const double apart = std::fabs(static_cast<double>((*got)[i]) - (*expected)[i]);
          largest =
              std::max(largest, std::isfinite((*got)[i]) ? apart / std::max(1.0f, std::fabs((*expected)[i])) : 1e30);
        }
        ++num_checked;
        if (largest <= (to == DType::bf16 ? 0x1p-5 : 1e-4)) continue;
        ++num_failed;
        std::printf("FAIL  %s: error %.2e %s\n", name.c_str(), largest, got ? "" : got.error().message.c_str());
      }
    }
  }
  report.check(num_failed == 0, "gated linear", text("%d products, %d failed", num_checked, num_failed));
}

}  // namespace

void check_linear_products(Report& report, Device& cuda) {
  Prober prober(report, cuda);
  check_epilogues(prober);
  prober.sum_up("linear: dtypes and epilogues");
  check_rest(prober);
  prober.sum_up("linear: mixtures of dtypes, odd shapes");
  check_shapes(prober);
  prober.sum_up("linear: shapes of models");
  check_gated(report, cuda);
  for (const auto& [n, k] : {std::pair{1024, 2048}, {520, 1096}, {136, 72}})
    if (report.takes(std::int64_t{150} * n * k))
      prober.check_one_order({.m = 150, .n = n, .k = k, .bias = true, .activation = Activation::silu});
}

}  // namespace mstar::bench
