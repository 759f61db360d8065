// What the matrices of Qwen3.5 take, beside the time of their bytes at the copy rate and of their products at the
// tensor cores' rate, and beside what cuBLASLt's first proposal takes.
#include <algorithm>
#include <cmath>

#include "cuda_slice.h"
#include "cuda_slice_timer.h"
#include "linear_probe.h"
#include "mstar/ops/linear/gated_linear.h"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar::bench {
namespace {

constexpr double kCopyBytesPerUs = 4.28e6, kFlopPerUs = 790e6;
constexpr std::size_t kCacheBytes = std::size_t{200} << 20;  // weights in turn, well past the L2 cache
constexpr int kRows[] = {1, 8, 32, 64, 640, 2048};
constexpr std::int64_t kMostRows = 2048;

struct Matrix {
  const char* name;
  std::int64_t n, k;
  int count;  // in a step
  bool gated = false;
  bool adds = false;                   // to the residual stream, f32
  std::int64_t most_rows = kMostRows;  // the head sees one row a request
};
struct Model {
  const char* name;
  std::vector<Matrix> matrices;
};
const Model kModels[] = {
    {"Qwen3.5-0.8B",
     {{"delta in", 8224, 1024, 18},
      {"out", 1024, 2048, 24, false, true},
      {"qkv", 5120, 1024, 6},
      {"gate up", 7168, 1024, 24, true},
      {"down", 1024, 3584, 24, false, true},
      {"head", 248320, 1024, 1, false, false, 64}}},
    {"Qwen3.5-9B",
     {{"delta in", 12352, 4096, 24},
      {"out", 4096, 4096, 32, false, true},
      {"qkv", 10240, 4096, 8},
      {"gate up", 24576, 4096, 32, true},
      {"down", 4096, 12288, 32, false, true}}},
};

class LinearTimes {
 public:
  LinearTimes(Report& report, Device& cuda) : report_(report), cuda_(cuda) {}

  Status model(const Model& model) {
    report_.table.push_back(
        text("products of %s in bf16, us: floor, ours (%% of floor, TB/s of W), cuBLASLt's first", model.name));
    std::vector<double> floors(std::size(kRows)), ours(std::size(kRows)), library(std::size(kRows));
    for (const Matrix& matrix : model.matrices) {
      MSTAR_TRY(place(matrix));
      for (std::size_t i = 0; i < std::size(kRows); ++i) {
        if (kRows[i] > matrix.most_rows) continue;
        const Line line = measure(matrix, kRows[i]);
        floors[i] += line.floor_us * matrix.count;
        ours[i] += line.ours_us * matrix.count;
        library[i] += line.library_us * matrix.count;
        report_.table.push_back(text("%-9s %6lldx%-5lld %5d | %7.1f | %7.1f %3.0f %% %5.2f | %7.1f", matrix.name,
                                     static_cast<long long>(matrix.n), static_cast<long long>(matrix.k), kRows[i],
                                     line.floor_us, line.ours_us, 100 * line.floor_us / line.ours_us,
                                     static_cast<double>(matrix.n * matrix.k * 2) / line.ours_us * 1e-6,
                                     line.library_us));
      }
    }
    for (std::size_t i = 0; i < std::size(kRows); ++i)
      report_.table.push_back(text("a step of %4d rows: floor %8.0f us, ours %8.0f us, cuBLASLt %8.0f us", kRows[i],
                                   floors[i], ours[i], library[i]));
    return ok_status();
  }

 private:
  struct Line {
    double floor_us, ours_us, library_us;
  };

  Status place(const Matrix& matrix) {
    weights_.clear();
    MSTAR_TRY_ASSIGN(weights_, weights_in_turn(cuda_, matrix.n, matrix.k, DType::bf16, kCacheBytes));
    const auto rows = drawn(DType::bf16, 64 * matrix.k, 5);
    std::vector<float> all;
    for (std::int64_t i = 0; i < matrix.most_rows / 64; ++i) all.insert(all.end(), rows.begin(), rows.end());
    MSTAR_TRY_ASSIGN(x_, ProbeMatrix::place(cuda_, DType::bf16, all, matrix.most_rows, matrix.k, 0));
    out_dtype_ = matrix.adds || matrix.most_rows < kMostRows ? DType::f32 : DType::bf16;
    MSTAR_TRY_ASSIGN(out_, Tensor::allocate(cuda_, out_dtype_, {matrix.most_rows * matrix.n}));
    cuda_.fill_zero(out_.view().pointer, out_.bytes(), cuda_.default_stream());
    const std::size_t arena_bytes = gated_linear_workspace_bytes(weights_[0], matrix.most_rows, 1);
    MSTAR_TRY_ASSIGN(arena_, Tensor::allocate(cuda_, DType::u8, {static_cast<std::int64_t>(arena_bytes)}));
    return ok_status();
  }

  Line measure(const Matrix& matrix, int rows) {
    Arena arena(arena_.view().pointer, arena_.bytes());
    OpContext context{.device = cuda_, .stream = cuda_.default_stream(), .arena = arena};
    const std::int64_t outputs = matrix.gated ? matrix.n / 2 : matrix.n;
    const TensorView x = x_.view().slice(0, rows);
    const auto args_of = [&](int call, std::int64_t width) {
      LinearArgs args;
      args.x = x;
      args.weight = &weights_[static_cast<std::size_t>(call) % weights_.size()];
      args.out = TensorView(out_.view().pointer, out_dtype_, {rows, width}, cuda_.id());
      if (matrix.adds) args.residual = args.out;
      return args;
    };
    const int calls = std::max(8, static_cast<int>(weights_.size()));
    Line line;
    line.ours_us = median_call_us(cuda_, calls, [&](int call) -> Status {
      const LinearArgs args = args_of(call, outputs);
      if (!matrix.gated) return linear(context, args);
      return gated_linear(context, {.x = args.x, .weight = args.weight, .out = args.out});
    });
    line.library_us = median_call_us(
        cuda_, calls, [&](int call) -> Status { return linear_cuda_library(context, args_of(call, matrix.n)); });
    const double out_bytes =
        static_cast<double>(rows * outputs) * static_cast<double>(dtype_bytes(out_dtype_)) * (matrix.adds ? 2 : 1);
    const double bytes = static_cast<double>((matrix.n + rows) * matrix.k * 2) + out_bytes;
    const double flop = 2.0 * rows * static_cast<double>(matrix.n * matrix.k);
    line.floor_us = std::max(bytes / kCopyBytesPerUs, flop / kFlopPerUs);
    return line;
  }

  Report& report_;
  Device& cuda_;
  std::vector<LinearWeight> weights_;
  ProbeMatrix x_;
  DType out_dtype_ = DType::f32;
  Tensor out_, arena_;
};

}  // namespace

void time_linear_products(Report& report, Device& cuda) {
  for (const Model& model : kModels) {
    const Status ran = LinearTimes(report, cuda).model(model);
    report.check(ran.ok(), std::string("times of the products of ") + model.name, ran ? "" : ran.error().message);
  }
}

}  // namespace mstar::bench
