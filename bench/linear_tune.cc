// Makes src/mstar/ops/linear/linear_table.inc: for the matrices of the models that we name speeds for, and numbers of
// rows, the fastest of our own kernel's cuts and of the algorithms that cuBLASLt proposes. On an H200:
//   linear_tune [PART OF A NAME [ROWS]] > linear_table.inc
// Some of the committed entries are from cuda_slice 300 layers instead, as the table's head says: keep them
// (merge_linear_table.py puts some lines into a table).
// The table goes to stdout, one line a shape to stderr (with MSTAR_TUNE_ALL set, one a cut too); about two minutes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cuda_slice_timer.h"
#include "linear_probe.h"
#include "mstar/ops/columns.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/linear/linear_library.h"
#include "mstar/ops/linear/linear_stream.h"
#include "mstar/ops/linear/linear_table.h"
#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar::bench {
namespace {

constexpr std::size_t kCacheBytes = std::size_t{160} << 20;  // weights in turn, well past the L2 cache of 50 MB
constexpr int kRows[] = {1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512, 1024, 1536, 2048, 3072};
constexpr int kMostAlgorithms = 32;
// Our own kernel is taken where it is slower by no more than this: the kernels around it start under it, and it does
// not depend on the library's version. In one binary, steps of Qwen3.5-0.8B of 32 rows
// lost 1.3 to 1.9 us with each product that the library made, though this program saw them within 0.8 us
// (cuda_linear.md).
constexpr double kOverlapUs = 2.0;

struct Matrix {
  const char* name;
  std::int64_t n, k;
  bool adds = false;  // y is f32, added to what is there
  int most_rows = 3072;
  bool gated = false;  // silu(gate) * up follows: in our own kernel, or as a pass of its own
  bool bias = false;   // f32, with `adds`
};
constexpr Matrix kMatrices[] = {
    {"qwen3.5-0.8b delta in", 8224, 1024},
    {"qwen3.5-0.8b, qwen3-0.6b out", 1024, 2048, true},
    {"qwen3.5-0.8b qkv", 5120, 1024},
    {"qwen3.5-0.8b gate up", 7168, 1024, false, 3072, true},
    {"qwen3.5-0.8b down", 1024, 3584, true},
    {"qwen3.5-9b delta in", 12352, 4096},
    {"qwen3.5-9b out", 4096, 4096, true},
    {"qwen3.5-9b qkv", 10240, 4096},
    {"qwen3.5-9b gate up", 24576, 4096, false, 3072, true},
    {"qwen3.5-9b down", 4096, 12288, true},
    {"qwen3-0.6b qkv", 4096, 1024},
    {"qwen3-0.6b gate up", 6144, 1024, false, 3072, true},
    {"qwen3-0.6b down", 1024, 3072, true},
    {"whisper large qkv", 3840, 1280},
    {"whisper large q", 1280, 1280},
    {"whisper large kv", 2560, 1280},
    {"whisper large out", 1280, 1280, true, 3072, false, true},
    {"whisper large fc1", 5120, 1280},
    {"whisper large fc2", 1280, 5120, true, 3072, false, true},
    {"qwen3.5-0.8b head", 248320, 1024, false, 64},
};

class Tuner {
 public:
  Tuner(Device& cuda, LinearLibrary& library) : cuda_(cuda), library_(library) {}

  // `only_rows` 0: all numbers of rows.
  Status tune(const Matrix& matrix, int only_rows) {
    const bool is_head = matrix.most_rows <= kStreamRows;
    out_dtype_ = matrix.adds || is_head ? DType::f32 : DType::bf16;
    weights_.clear();
    MSTAR_TRY_ASSIGN(weights_, weights_in_turn(cuda_, matrix.n, matrix.k, DType::bf16, kCacheBytes));
    std::vector<float> rows = drawn(DType::bf16, 64 * matrix.k, 5), all;
    for (int i = 0; i < std::max(1, matrix.most_rows / 64); ++i) all.insert(all.end(), rows.begin(), rows.end());
    MSTAR_TRY_ASSIGN(x_, ProbeMatrix::place(cuda_, DType::bf16, all, matrix.most_rows, matrix.k, 0));
    MSTAR_TRY_ASSIGN(out_, Tensor::allocate(cuda_, out_dtype_, {matrix.most_rows * matrix.n}));
    MSTAR_TRY_ASSIGN(stream_, Tensor::allocate(cuda_, DType::f32, {matrix.most_rows * matrix.k}));
    MSTAR_TRY_ASSIGN(gains_, Tensor::allocate(cuda_, DType::f32, {matrix.k}));
    MSTAR_TRY_ASSIGN(bias_, Tensor::allocate(cuda_, DType::f32, {matrix.n}));
    for (const Tensor* each : {&stream_, &gains_, &bias_})
      cuda_.fill_zero(each->view().pointer, each->bytes(), cuda_.default_stream());
    MSTAR_TRY_ASSIGN(halves_, Tensor::allocate(cuda_, out_dtype_, {matrix.most_rows * matrix.n / 2}));
    cuda_.fill_zero(out_.view().pointer, out_.bytes(), cuda_.default_stream());
    if (!workspace_) {
      MSTAR_TRY_ASSIGN(workspace_, Tensor::allocate(cuda_, DType::u8, {LinearLibrary::kWorkspaceBytes}));
    }
    for (const int m : kRows)
      if (m <= matrix.most_rows && (only_rows == 0 || m == only_rows)) MSTAR_TRY(tune_rows(matrix, m));
    return ok_status();
  }

 private:
  struct Timed {
    LinearChoice choice;
    double us = 1e30;
    std::size_t nodes = 1;  // of a graph: fills and sums of a workspace are nodes
  };

  Status tune_rows(const Matrix& matrix, int m) {
    Timed own, library;
    Timed first;
    if (m <= kStreamRows)
      for (int fragments = 1; fragments <= (m > 16 ? 2 : 1); ++fragments)
        for (int split = 1; split <= 8 && split * 2 <= matrix.k / 64; split *= 2)
          try_cut(matrix, m, {.fragments = fragments, .split = split}, own);
    MSTAR_TRY_ASSIGN(const auto proposed, library_.propose(call_of(matrix, m, 0), kMostAlgorithms));
    for (std::size_t i = 0; i < proposed.size(); ++i) {
      const Timed tried = try_algorithm(matrix, m, proposed[i]);
      if (i == 0) first = tried;
      if (tried.us > 0 && tried.us < library.us) library = tried;
    }
    const bool streams = own.us <= library.us + kOverlapUs;
    const Timed& best = streams ? own : library;
    if (best.us > 1e29) return ok_status();
    write(matrix, m, best.choice);
    std::fprintf(stderr,
                 "%-30s %5d rows: own %8.2f us (split %d, fragments %d), library %8.2f us of %zu in %zu nodes, its "
                 "first %8.2f in %zu\n",
                 matrix.name, m, own.us > 1e29 ? 0.0 : own.us, own.choice.split, own.choice.fragments,
                 library.us > 1e29 ? 0.0 : library.us, proposed.size(), library.nodes, first.us, first.nodes);
    return ok_status();
  }

  LibraryCall call_of(const Matrix& matrix, int m, int call) const {
    LibraryCall out;
    out.shape = {.m = m,
                 .n = matrix.n,
                 .k = matrix.k,
                 .in = DType::bf16,
                 .out = out_dtype_,
                 .bias = matrix.bias,
                 .residual = matrix.adds};
    out.bias = matrix.bias ? bias_.view().data<float>() : nullptr;
    out.x = x_.view().pointer;
    out.x_stride = matrix.k;
    out.weight = weights_[static_cast<std::size_t>(call) % weights_.size()].rows();
    out.residual = matrix.adds ? out_.view().pointer : nullptr;
    out.residual_stride = out.out_stride = matrix.n;
    out.out = out_.view().pointer;
    out.workspace = workspace_.view().pointer;
    return out;
  }
  int num_calls() const { return std::max(4, static_cast<int>(weights_.size())); }

  Timed try_algorithm(const Matrix& matrix, int m, const cublasLtMatmulAlgo_t& algorithm) {
    const Stream stream = cuda_.default_stream();
    const auto product = [&](int call) -> Status {
      return library_.run(call_of(matrix, m, call), algorithm, stream.native);
    };
    Timed out;
    out.us = median_call_us(cuda_, num_calls(), [&](int call) -> Status {
      MSTAR_TRY(normalise(matrix, m));
      MSTAR_TRY(product(call));
      return matrix.gated ? multiply_halves(matrix, m) : ok_status();
    });
    out.nodes = nodes_of_call(cuda_, product);
    std::copy_n(algorithm.data, out.choice.algorithm.size(), out.choice.algorithm.begin());
    if (verbose_)
      std::fprintf(stderr, "    library %.2f us in %zu nodes (split and stages 0x%llx, reduction 0x%llx)\n", out.us,
                   out.nodes, static_cast<unsigned long long>(out.choice.algorithm[1]),
                   static_cast<unsigned long long>(out.choice.algorithm[2]));
    return out;
  }

  // As in a layer: a norm is between two products unless one adds to the stream. Its time counts for both.
  Status normalise(const Matrix& matrix, int m) {
    if (matrix.adds) return ok_status();
    Arena none;
    OpContext context{.device = cuda_, .stream = cuda_.default_stream(), .arena = none};
    return rms_norm(context, {.x = TensorView(stream_.view().pointer, DType::f32, {m, matrix.k}, cuda_.id()),
                              .weight = TensorView(gains_.view().pointer, DType::f32, {matrix.k}, cuda_.id()),
                              .out = x_.view().slice(0, m)});
  }
  Status multiply_halves(const Matrix& matrix, int m) {
    Arena none;
    OpContext context{.device = cuda_, .stream = cuda_.default_stream(), .arena = none};
    const std::int64_t half = matrix.n / 2;
    const TensorView both(out_.view().pointer, out_dtype_, {m, matrix.n}, cuda_.id());
    return silu_mul(context, {.gate = columns(both, 0, half),
                              .up = columns(both, half, half),
                              .out = TensorView(halves_.view().pointer, out_dtype_, {m, half}, cuda_.id())});
  }

  void try_cut(const Matrix& matrix, int m, StreamCut cut, Timed& best) {
    Arena none;
    OpContext context{.device = cuda_, .stream = cuda_.default_stream(), .arena = none};
    const double us = median_call_us(cuda_, num_calls(), [&](int call) -> Status {
      MSTAR_TRY(normalise(matrix, m));
      LinearArgs args;
      args.x = x_.view().slice(0, m);
      args.weight = &weights_[static_cast<std::size_t>(call) % weights_.size()];
      args.out = TensorView(out_.view().pointer, out_dtype_, {m, matrix.n}, cuda_.id());
      if (matrix.adds) args.residual = args.out;
      if (matrix.bias) args.bias = bias_.view();
      if (!matrix.gated) return stream_linear(context, args, cut);
      args.out = TensorView(halves_.view().pointer, out_dtype_, {m, matrix.n / 2}, cuda_.id());
      return stream_gated_linear(context, {.x = args.x, .weight = args.weight, .out = args.out}, cut);
    });
    if (verbose_) std::fprintf(stderr, "    split %d fragments %d: %.2f us\n", cut.split, cut.fragments, us);
    if (us <= 0 || us >= best.us) return;
    best.us = us;
    best.choice.split = cut.split;
    best.choice.fragments = cut.fragments;
  }

  void write(const Matrix& matrix, int m, const LinearChoice& choice) const {
    std::printf("    {%lld, %lld, DType::bf16, DType::%s, %d, %d, %d", static_cast<long long>(matrix.n),
                static_cast<long long>(matrix.k), std::string(dtype_name(out_dtype_)).c_str(), m, choice.split,
                choice.fragments);
    if (!choice.streams()) {
      const char* separator = ", {";
      for (const std::uint64_t word : choice.algorithm) {
        std::printf("%s0x%llx", separator, static_cast<unsigned long long>(word));
        separator = ", ";
      }
      std::printf("}");
    }
    std::printf("},\n");
    std::fflush(stdout);
  }

  const bool verbose_ = std::getenv("MSTAR_TUNE_ALL") != nullptr;
  Device& cuda_;
  LinearLibrary& library_;
  std::vector<LinearWeight> weights_;
  ProbeMatrix x_;
  DType out_dtype_ = DType::bf16;
  Tensor out_, stream_, gains_, bias_, halves_, workspace_;
};

int run(std::string_view wanted, int only_rows) {
  auto cuda = make_cuda_device(0);
  auto library = cuda ? LinearLibrary::of(**cuda) : Result<LinearLibrary*>(cuda.error());
  if (!library) {
    std::fprintf(stderr, "%s\n", library.error().message.c_str());
    return 1;
  }
  std::printf("// Written by bench/linear_tune; do not edit.\n// %s, cuBLASLt %zu.\nkLinearTableVersion = %zu;\n",
              (*cuda)->description().c_str(), (*library)->version(), (*library)->version());
  std::printf("constexpr LinearChoice kLinearTable[] = {\n");
  Tuner tuner(**cuda, **library);
  for (const Matrix& matrix : kMatrices) {
    if (std::string_view(matrix.name).find(wanted) == std::string_view::npos) continue;
    if (const Status tuned = tuner.tune(matrix, only_rows); !tuned) {
      std::fprintf(stderr, "%s: %s\n", matrix.name, tuned.error().message.c_str());
      return 1;
    }
  }
  std::printf("    {},  // the end\n};\n");
  return 0;
}

}  // namespace
}  // namespace mstar::bench

int main(int argc, char** argv) {
  return mstar::bench::run(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 0);
}
