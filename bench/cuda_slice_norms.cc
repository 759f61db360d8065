// Norms that pass between two products without a kernel of their own, against the CPU's product, norm and product.
#include <algorithm>
#include <cmath>

#include "cuda_slice.h"
#include "linear_probe.h"
#include "mstar/ops/linear/fold_norm.h"
#include "norm_chain.h"

namespace mstar::bench {
namespace {

constexpr double kSpread = 8.0;  // of the stream's rows

struct Case {
  const char* name;
  std::int64_t k, d, n;  // [M, k] -> adds to [M, d] -> norm -> [M, n]
  bool gated = false;
  DType out = DType::bf16;
  bool layer = false;  // a layer norm, and products with biases; else an RMS norm
  Activation activation = Activation::none;
  double mean = 0.0;                                                   // of the stream's rows
  bool has_reads_bias() const { return layer && out == DType::bf16; }  // logits have none
};

class NormProbe {
 public:
  NormProbe(Report& report, Device& cuda) : report_(report), cpu_(make_cpu_device()), cuda_(cuda), pool_(4) {}

  // Rows of the stream have a spread of 8, so that a factor that is missing is seen; gains lie around 1.
  void check(const Case& c, std::int64_t m, std::int64_t padding) {
    if (!report_.takes(m * c.d * (c.k + c.n) / 8)) return;
    Values values{drawn(DType::bf16, m * c.k, 1),
                  drawn(DType::bf16, c.d * c.k, 2, 1.0 / std::sqrt(static_cast<double>(c.k))),
                  drawn(DType::f32, m * c.d, 3, kSpread),
                  drawn(DType::f32, c.d, 4, 0.3),
                  drawn(DType::bf16, c.n * c.d, 5, 1.0 / std::sqrt(static_cast<double>(c.d))),
                  drawn(DType::f32, c.d, 6, 0.5),
                  drawn(DType::f32, c.n, 7, 0.5),
                  drawn(DType::f32, c.d, 8, 2.0)};
    for (float& value : values.stream) value += static_cast<float>(c.mean);
    if (c.layer)
      for (float& gain : values.gains) gain += 1.0f;
    const auto expected = run(*cpu_, c, m, 0, values), got = run(cuda_, c, m, padding, values);
    ++num_checked_;
    const std::string name = text("%s, %lld rows", c.name, static_cast<long long>(m));
    if (!expected || !got) return fail(name, (expected ? got : expected).error().message);
    num_passed_ += got->passed;
    // The stream is f32; the product's input is rounded to bf16 once, after another factor than the norm's kernel.
    const double stream = apart(got->stream, expected->stream), out = apart(got->out, expected->out);
    const double folded = c.layer ? apart(got->folded, expected->folded) : 0.0;
    // It is rounded with its mean, which the product takes away again.
    const double allowed = 0x1p-5 * std::hypot(1.0, c.mean / kSpread);
    worst_ = std::max({worst_, stream / 1e-4, out / allowed, folded / 2e-5});
    if (!(stream <= 1e-4) || !(out <= allowed) || !(folded <= 2e-5))
      fail(name, text("stream off by %.2e, out by %.2e, folded vectors by %.2e", stream, out, folded));
    if (m > 1) check_alone(c, m, padding, values, *got, name);
  }
  void sum_up() {
    report_.check(num_failed_ == 0 && 2 * num_passed_ > num_checked_, "norms passed between products",
                  text("%d checked, %d of them passed, %d failed, error %.2f of what is allowed", num_checked_,
                       num_passed_, num_failed_, worst_));
  }

 private:
  struct Values {
    std::vector<float> from, adds, stream, gains, reads, shifts, reads_bias, adds_bias;
  };
  struct Outcome {
    std::vector<float> stream, out, folded;
    bool passed = false;
  };

  // The first row's bits are its own, whatever the others hold.
  void check_alone(const Case& c, std::int64_t m, std::int64_t padding, Values values, const Outcome& before,
                   const std::string& name) {
    for (std::size_t i = static_cast<std::size_t>(c.k); i < values.from.size(); ++i) values.from[i] *= -2.0f;
    for (std::size_t i = static_cast<std::size_t>(c.d); i < values.stream.size(); ++i) values.stream[i] += 3.0f;
    const auto after = run(cuda_, c, m, padding, values);
    if (!after) return fail(name, after.error().message);
    const auto row = [](const std::vector<float>& rows, std::int64_t count) {
      return std::vector<float>(rows.begin(), rows.begin() + count);
    };
    const std::int64_t num_out = c.gated ? c.n / 2 : c.n;
    if (row(after->stream, c.d) != row(before.stream, c.d) || row(after->out, num_out) != row(before.out, num_out))
      fail(name, "the first row changes with the others");
    if (after->out == before.out) fail(name, "the other rows do not change");
  }

  static double apart(const std::vector<float>& got, const std::vector<float>& expected) {
    if (got.size() != expected.size() || got.empty()) return 1e30;
    double largest = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!std::isfinite(got[i])) return 1e30;
      largest = std::max(largest, std::fabs(static_cast<double>(got[i]) - expected[i]) /
                                      std::max(1.0, static_cast<double>(std::fabs(expected[i]))));
    }
    return largest;
  }

  Result<Outcome> run(Device& device, const Case& c, std::int64_t m, std::int64_t padding, const Values& values) {
    const bool on_cuda = &device == &cuda_;
    const DType in = on_cuda ? DType::bf16 : DType::f32, to = on_cuda ? c.out : DType::f32;
    const auto packed = [&](const std::vector<float>& w, std::int64_t rows, std::int64_t columns) {
      return LinearWeight::pack(
          device, LinearSource{TensorView(const_cast<float*>(w.data()), DType::f32, {rows, columns})}, in);
    };
    MSTAR_TRY_ASSIGN(const LinearWeight adds, packed(values.adds, c.d, c.k));
    MSTAR_TRY_ASSIGN(const LinearWeight reads, packed(values.reads, c.n, c.d));
    MSTAR_TRY_ASSIGN(const ProbeMatrix from, ProbeMatrix::place(device, in, values.from, m, c.k, padding));
    MSTAR_TRY_ASSIGN(const ProbeMatrix stream, ProbeMatrix::place(device, DType::f32, values.stream, m, c.d, padding));
    MSTAR_TRY_ASSIGN(const ProbeMatrix gains, ProbeMatrix::place(device, DType::f32, values.gains, 1, c.d, 0));
    MSTAR_TRY_ASSIGN(const ProbeMatrix normed, ProbeMatrix::place(device, in, {}, m, c.d, padding));
    // Parts that are not there stay as they are.
    const auto placed = [&](const std::vector<float>& floats, std::int64_t rows, std::int64_t columns) {
      return ProbeMatrix::place(device, DType::f32, floats, rows, columns, 0);
    };
    MSTAR_TRY_ASSIGN(const ProbeMatrix squares, placed({}, most_square_parts(c.d), square_columns(m)));
    MSTAR_TRY_ASSIGN(const ProbeMatrix sums, placed({}, most_square_parts(c.d), square_columns(m)));
    MSTAR_TRY_ASSIGN(const ProbeMatrix shifts, placed(values.shifts, 1, c.d));
    MSTAR_TRY_ASSIGN(const ProbeMatrix reads_bias, placed(values.reads_bias, 1, c.n));
    MSTAR_TRY_ASSIGN(const ProbeMatrix adds_bias, placed(values.adds_bias, 1, c.d));
    MSTAR_TRY_ASSIGN(const ProbeMatrix folded, placed({}, 2, c.n));
    MSTAR_TRY_ASSIGN(const ProbeMatrix out, ProbeMatrix::place(device, to, {}, m, c.gated ? c.n / 2 : c.n, padding));
    const auto bytes = static_cast<std::int64_t>(
        std::max(linear_workspace_bytes(adds, m, 4), gated_linear_workspace_bytes(reads, m, 4)));
    MSTAR_TRY_ASSIGN(const Tensor memory, Tensor::allocate(device, DType::u8, {bytes}));
    Arena arena(memory.view().pointer, memory.bytes());
    OpContext context{.device = device,
                      .stream = device.default_stream(),
                      .arena = arena,
                      .pool = on_cuda ? nullptr : &pool_,
                      .activations = in};
    NormChain chain;
    chain.from = from.view();
    chain.adds = &adds;
    chain.stream = stream.view();
    chain.gains = gains.view().at(0);
    chain.gain_offset = c.layer ? 0.0f : 1.0f;
    chain.normed = normed.view();
    chain.squares = squares.view();
    chain.sums = sums.view();
    chain.activation = c.activation;
    chain.reads = &reads;
    chain.gated = c.gated;
    chain.out = out.view();
    Outcome outcome;
    if (c.layer) {
      chain.epsilon = 1e-5f;
      chain.shifts = shifts.view().at(0);
      chain.adds_bias = adds_bias.view().at(0);
      if (c.has_reads_bias()) chain.reads_bias = reads_bias.view().at(0);
      chain.folded = folded.view();
      MSTAR_TRY(fold_norm(context, {.weight = &reads,
                                    .gains = chain.gains,
                                    .shifts = chain.shifts,
                                    .bias = chain.reads_bias,
                                    .weighted_gains = chain.folded.at(0),
                                    .folded_bias = chain.folded.at(1)}));
    }
    MSTAR_TRY_ASSIGN(outcome.passed, run_norm_chain(context, chain, true));
    if (c.layer) outcome.folded = folded.read(device);
    outcome.stream = stream.read(device);
    outcome.out = out.read(device);
    if (normed.read(device).empty()) return internal_error("normed rows went past their ends");
    return outcome;
  }

  void fail(const std::string& name, const std::string& note) {
    ++num_failed_;
    std::printf("FAIL  norm passed, %s: %s\n", name.c_str(), note.c_str());
  }

  Report& report_;
  std::unique_ptr<Device> cpu_;
  Device& cuda_;
  ThreadPool pool_;
  int num_checked_ = 0, num_passed_ = 0, num_failed_ = 0;
  double worst_ = 0;
};

}  // namespace

void check_passed_norms(Report& report, Device& cuda) {
  const Case cases[] = {
      {"0.8b out, gate up", 2048, 1024, 7168, true},
      {"0.8b down, delta in", 3584, 1024, 8224},
      {"0.8b down, qkv", 3584, 1024, 5120},
      {"0.8b down, head", 3584, 1024, 4096 + 8, false, DType::f32},
      {"0.6b out, gate up", 2048, 1024, 6144, true},
      {"0.6b down, qkv", 3072, 1024, 4096},
      {"9b out, gate up, less", 4096, 4096, 1536, true},
      {"9b down, in, less", 2048, 4096, 1544},
      {"odd", 520, 192, 328},
      {"odd, gated", 200, 448, 144, true},
      {"large-v3 out, q", 1280, 1280, 1280, false, DType::bf16, true, Activation::none, 3.0},
      {"large-v3 cross out, fc1", 1280, 1280, 5120, false, DType::bf16, true, Activation::gelu_erf, -8.0},
      {"large-v3 fc2, qkv", 5120, 1280, 3840, false, DType::bf16, true, Activation::none, 3.0},
      {"large-v3 fc2, qkv, a mean of four spreads", 5120, 1280, 3840, false, DType::bf16, true, Activation::none, 32.0},
      {"large-v3 fc2, logits, less", 5120, 1280, 4096 + 2, false, DType::f32, true, Activation::none, 3.0},
      {"tiny out, q", 384, 384, 384, false, DType::bf16, true, Activation::none, 3.0},
      {"tiny fc2, logits, less", 1536, 384, 17000 + 2, false, DType::f32, true, Activation::none, 3.0},
      {"odd, layer norm", 520, 192, 330, false, DType::bf16, true, Activation::gelu_erf, 3.0},
  };
  NormProbe probe(report, cuda);
  for (const Case& c : cases)
    for (const std::int64_t m : {1, 7, 8, 13, 16, 32, 33, 48, 64, 80}) {
      if (m > 33 && c.d > 1024) continue;  // the CPU takes its time
      probe.check(c, m, m % 2 == 0 ? 8 : 0);
    }
  probe.sum_up();
}

}  // namespace mstar::bench
