// What the products and norms of a decoder's layer take one after another, weights past the L2 cache: norms apart and
// passed, and each product's cuts in these surroundings, which tell more than a chain of one product (linear_tune): a
// block that leaves no room for the next kernel's makes that one late.
#include <algorithm>
#include <array>

#include "cuda_slice.h"
#include "cuda_slice_timer.h"
#include "linear_probe.h"
#include "norm_chain.h"

namespace mstar::bench {
namespace {

// out, norm, gate and up, down, norm, in; the state and the attention are left out.
struct Layer {
  const char* name;
  std::int64_t dim, mixed, ffn, in;
};
enum Product { kOut, kGateUp, kDown, kIn, kNumProducts };
using Cuts = std::array<CutOrDefault, kNumProducts>;

class LayerTimes {
 public:
  LayerTimes(Report& report, Device& cuda, const Layer& layer) : report_(report), cuda_(cuda), layer_(layer) {}

  Status run() {
    MSTAR_TRY(place());
    for (const std::int64_t m : {1, 8, 16, 32, 48, 64}) {
      const auto passes = step(0, m, true, {});
      const double apart = time(m, false, {}), together = time(m, true, {}), again = time(m, false, {});
      report_.table.push_back(text("%-22s %3lld rows | %7.2f %7.2f (again %7.2f) | %s", layer_.name,
                                   static_cast<long long>(m), apart, together, again,
                                   passes && *passes ? "both norms pass" : "not both norms pass"));
      for (int product = 0; product < kNumProducts; ++product) try_cuts(m, static_cast<Product>(product), together);
    }
    return ok_status();
  }

 private:
  static constexpr std::int64_t kRows = 64;

  std::int64_t outputs(Product product) const {
    return product == kGateUp ? 2 * layer_.ffn : product == kIn ? layer_.in : layer_.dim;
  }
  std::int64_t inputs(Product product) const {
    return product == kOut ? layer_.mixed : product == kDown ? layer_.ffn : layer_.dim;
  }

  Status place() {
    constexpr std::size_t kLeastBytes = std::size_t{200} << 20;
    std::size_t bytes = 0;
    for (int p = 0; p < kNumProducts; ++p)
      bytes += static_cast<std::size_t>(2 * outputs(static_cast<Product>(p)) * inputs(static_cast<Product>(p)));
    copies_ = kLeastBytes / bytes + 2;
    for (int p = 0; p < kNumProducts; ++p) {
      const std::int64_t n = outputs(static_cast<Product>(p)), k = inputs(static_cast<Product>(p));
      MSTAR_TRY_ASSIGN(weights_[static_cast<std::size_t>(p)],
                       weights_in_turn(cuda_, n, k, DType::bf16, copies_ * static_cast<std::size_t>(2 * n * k)));
    }
    const auto matrix = [&](DType dtype, std::int64_t columns) {
      return ProbeMatrix::place(cuda_, dtype, drawn(dtype, kRows * columns, 7), kRows, columns, 0);
    };
    MSTAR_TRY_ASSIGN(mixed_, matrix(DType::bf16, layer_.mixed));
    MSTAR_TRY_ASSIGN(stream_, matrix(DType::f32, layer_.dim));
    MSTAR_TRY_ASSIGN(gains_, matrix(DType::f32, layer_.dim));
    MSTAR_TRY_ASSIGN(normed_, matrix(DType::bf16, layer_.dim));
    MSTAR_TRY_ASSIGN(squares_, matrix(DType::f32, most_square_parts(layer_.dim)));
    MSTAR_TRY_ASSIGN(hidden_, matrix(DType::bf16, layer_.ffn));
    MSTAR_TRY_ASSIGN(projected_, matrix(DType::bf16, layer_.in));
    const auto arena_bytes =
        static_cast<std::int64_t>(gated_linear_workspace_bytes(weights_[kGateUp].front(), kRows, 1));
    MSTAR_TRY_ASSIGN(arena_, Tensor::allocate(cuda_, DType::u8, {arena_bytes}));
    return ok_status();
  }

  // Whether both norms were passed.
  Result<bool> step(std::size_t call, std::int64_t m, bool passed, const Cuts& cuts) {
    Arena arena(arena_.view().pointer, arena_.bytes());
    OpContext context{.device = cuda_, .stream = cuda_.default_stream(), .arena = arena, .activations = DType::bf16};
    const auto weight = [&](Product product) { return &weights_[product][call % weights_[product].size()]; };
    NormChain feed;
    feed.stream = stream_.view().slice(0, m);
    feed.gains = gains_.view().at(0);
    feed.normed = normed_.view().slice(0, m);
    feed.squares =
        TensorView(squares_.view().pointer, DType::f32, {most_square_parts(layer_.dim), square_columns(m)}, cuda_.id());
    NormChain next = feed;
    feed.from = mixed_.view().slice(0, m);
    feed.adds = weight(kOut);
    feed.adds_cut = cuts[kOut];
    feed.reads = weight(kGateUp);
    feed.reads_cut = cuts[kGateUp];
    feed.gated = true;
    next.from = feed.out = hidden_.view().slice(0, m);
    next.adds = weight(kDown);
    next.adds_cut = cuts[kDown];
    next.reads = weight(kIn);
    next.reads_cut = cuts[kIn];
    next.out = projected_.view().slice(0, m);
    MSTAR_TRY_ASSIGN(const bool first, run_norm_chain(context, feed, passed));
    MSTAR_TRY_ASSIGN(const bool second, run_norm_chain(context, next, passed));
    return first && second;
  }
  double time(std::int64_t m, bool passed, const Cuts& cuts) {
    return median_call_us(cuda_, static_cast<int>(2 * copies_), [&](int call) -> Status {
      const auto ran = step(static_cast<std::size_t>(call), m, passed, cuts);
      return ran ? ok_status() : Status(ran.error());
    });
  }

  // The best cut of one product while the others are as the table has them: a line for the table, where it gains.
  void try_cuts(std::int64_t m, Product product, double now) {
    constexpr double kLeastGainUs = 0.05;
    const std::int64_t n = outputs(product), k = inputs(product);
    double best = now - kLeastGainUs;
    StreamCut best_cut{.fragments = 0};
    for (int fragments = 1; fragments <= (m > 16 ? 2 : 1); ++fragments)
      for (int split = 1; split <= 8 && split * 2 <= k / 64; split *= 2) {
        Cuts cuts;
        cuts[product] = StreamCut{.fragments = fragments, .split = split};
        const double us = time(m, true, cuts);
        if (us <= 0 || us >= best) continue;
        best = us;
        best_cut = *cuts[product];
      }
    if (best_cut.fragments == 0) return;
    const bool adds = product == kOut || product == kDown;
    report_.table.push_back(text("    %.2f with {%lld, %lld, DType::bf16, DType::%s, %lld, %d, %d},", best,
                                 static_cast<long long>(n), static_cast<long long>(k), adds ? "f32" : "bf16",
                                 static_cast<long long>(m), best_cut.split, best_cut.fragments));
  }

  Report& report_;
  Device& cuda_;
  const Layer layer_;
  std::size_t copies_ = 0;
  std::array<std::vector<LinearWeight>, kNumProducts> weights_;
  ProbeMatrix mixed_, stream_, gains_, normed_, squares_, hidden_, projected_;
  Tensor arena_;
};

}  // namespace

void time_layers(Report& report, Device& cuda) {
  report.table.push_back(
      "products and norms of a layer (out, gate and up, down, in), us: norms apart, passed; cuts that beat the "
      "table's");
  for (const Layer& layer :
       {Layer{"Qwen3.5-0.8B delta", 1024, 2048, 3584, 8224}, Layer{"Qwen3.5-0.8B attention", 1024, 2048, 3584, 5120},
        Layer{"Qwen3-0.6B", 1024, 2048, 3072, 4096}, Layer{"Qwen3.5-9B delta", 4096, 4096, 12288, 12352}}) {
    const Status ran = LayerTimes(report, cuda, layer).run();
    report.check(ran.ok(), std::string("times of the products of a layer of ") + layer.name,
                 ran ? "" : ran.error().message);
  }
}

}  // namespace mstar::bench
