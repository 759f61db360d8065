// What the products and norms of a decoder's layer take one after another, weights past the L2 cache: norms apart and
// passed, and each product's cuts in these surroundings, which tell more than a chain of one product (linear_tune): a
// block that leaves no room for the next kernel's makes that one late.
#include <algorithm>

#include "cuda_slice.h"
#include "cuda_slice_timer.h"
#include "linear_probe.h"
#include "norm_chain.h"

namespace mstar::bench {
namespace {

// [M, inputs] -> adds to the stream -> norm -> [M, outputs], half of them where gated.
struct Link {
  std::int64_t inputs, outputs;
  bool gated = false;
  Activation activation = Activation::none;
  std::int64_t out_columns() const { return gated ? outputs / 2 : outputs; }
};
// Each link reads what the one in front made; states and attention are left out.
struct Layer {
  const char* name;
  std::int64_t dim;
  bool layer_norms;  // and biases
  std::vector<Link> links;
};

class LayerTimes {
 public:
  LayerTimes(Report& report, Device& cuda, const Layer& layer) : report_(report), cuda_(cuda), layer_(layer) {}

  Status run() {
    MSTAR_TRY(place());
    for (const std::int64_t m : {1, 8, 16, 24, 32, 48, 64}) {
      const auto passes = step(0, m, true, {});
      const double apart = time(m, false, {}), together = time(m, true, {}), again = time(m, false, {});
      report_.table.push_back(text("%-22s %3lld rows | %7.2f %7.2f (again %7.2f) | %s", layer_.name,
                                   static_cast<long long>(m), apart, together, again,
                                   passes && *passes ? "all norms pass" : "not all norms pass"));
      for (std::size_t product = 0; product < products_.size(); ++product) try_cuts(m, product, together);
    }
    return ok_status();
  }

 private:
  static constexpr std::int64_t kRows = 64;
  // By product: of each link the one that adds, then the one that reads.
  using Cuts = std::vector<CutOrDefault>;

  struct Product {
    std::int64_t outputs, inputs;
    DType out;
    std::vector<LinearWeight> weights;  // copies, in turn
  };

  Result<ProbeMatrix> matrix(DType dtype, std::int64_t rows, std::int64_t columns) {
    return ProbeMatrix::place(cuda_, dtype, drawn(dtype, rows * columns, 7), rows, columns, 0);
  }

  Status place() {
    constexpr std::size_t kLeastBytes = std::size_t{200} << 20;
    std::size_t bytes = 0, workspace = 0;
    for (const Link& link : layer_.links) {
      products_.push_back({layer_.dim, link.inputs, DType::f32, {}});
      products_.push_back({link.outputs, layer_.dim, DType::bf16, {}});
    }
    for (const Product& p : products_) bytes += static_cast<std::size_t>(2 * p.outputs * p.inputs);
    copies_ = kLeastBytes / bytes + 2;
    for (Product& p : products_) {
      MSTAR_TRY_ASSIGN(p.weights, weights_in_turn(cuda_, p.outputs, p.inputs, DType::bf16,
                                                  copies_ * static_cast<std::size_t>(2 * p.outputs * p.inputs)));
      workspace = std::max(workspace, gated_linear_workspace_bytes(p.weights.front(), kRows, 1));
    }
    MSTAR_TRY_ASSIGN(arena_, Tensor::allocate(cuda_, DType::u8, {static_cast<std::int64_t>(workspace)}));
    MSTAR_TRY_ASSIGN(stream_, matrix(DType::f32, kRows, layer_.dim));
    MSTAR_TRY_ASSIGN(vectors_, matrix(DType::f32, 3, layer_.dim));
    MSTAR_TRY_ASSIGN(normed_, matrix(DType::bf16, kRows, layer_.dim));
    MSTAR_TRY_ASSIGN(parts_, matrix(DType::f32, 2 * kRows, most_square_parts(layer_.dim)));
    MSTAR_TRY_ASSIGN(ProbeMatrix first, matrix(DType::bf16, kRows, layer_.links.front().inputs));
    between_.push_back(std::move(first));
    for (const Link& link : layer_.links) {
      MSTAR_TRY_ASSIGN(ProbeMatrix out, matrix(DType::bf16, kRows, link.out_columns()));
      between_.push_back(std::move(out));
      MSTAR_TRY_ASSIGN(ProbeMatrix folded, matrix(DType::f32, 2, link.outputs));
      folded_.push_back(std::move(folded));
    }
    return ok_status();
  }

  NormChain chain_of(std::size_t link, std::size_t call, std::int64_t m, const Cuts& cuts) const {
    const Product &adds = products_[2 * link], &reads = products_[2 * link + 1];
    const auto parts = [&](std::int64_t index) {
      const TensorView all = parts_.view();
      return TensorView(all.at(index * kRows).pointer, DType::f32, {most_square_parts(layer_.dim), square_columns(m)},
                        all.device);
    };
    NormChain out;
    out.from = between_[link].view().slice(0, m);
    out.adds = &adds.weights[call % adds.weights.size()];
    out.stream = stream_.view().slice(0, m);
    out.gains = vectors_.view().at(0);
    out.normed = normed_.view().slice(0, m);
    out.squares = parts(0);
    out.sums = parts(1);
    out.reads = &reads.weights[call % reads.weights.size()];
    out.activation = layer_.links[link].activation;
    out.gated = layer_.links[link].gated;
    out.out = between_[link + 1].view().slice(0, m);
    if (layer_.layer_norms) {
      out.adds_bias = vectors_.view().at(1);
      out.shifts = vectors_.view().at(2);
      out.folded = folded_[link].view();
      out.reads_bias = out.folded.at(1);
    }
    if (!cuts.empty()) {
      out.adds_cut = cuts[2 * link];
      out.reads_cut = cuts[2 * link + 1];
    }
    return out;
  }
  // Whether all norms were passed.
  Result<bool> step(std::size_t call, std::int64_t m, bool passed, const Cuts& cuts) {
    Arena arena(arena_.view().pointer, arena_.bytes());
    OpContext context{.device = cuda_, .stream = cuda_.default_stream(), .arena = arena, .activations = DType::bf16};
    bool all = true;
    for (std::size_t link = 0; link < layer_.links.size(); ++link) {
      MSTAR_TRY_ASSIGN(const bool one, run_norm_chain(context, chain_of(link, call, m, cuts), passed));
      all &= one;
    }
    return all;
  }
  double time(std::int64_t m, bool passed, const Cuts& cuts) {
    return median_call_us(cuda_, static_cast<int>(2 * copies_), [&](int call) -> Status {
      const auto ran = step(static_cast<std::size_t>(call), m, passed, cuts);
      return ran ? ok_status() : Status(ran.error());
    });
  }

  // The best cut of one product while the others are as the table has them: a line for the table, where it gains.
  void try_cuts(std::int64_t m, std::size_t index, double now) {
    constexpr double kLeastGainUs = 0.05;
    const Product& product = products_[index];
    double best = now - kLeastGainUs;
    StreamCut best_cut{.fragments = 0};
    for (int fragments = 1; fragments <= (m > 16 ? 2 : 1); ++fragments)
      for (int split = 1; split <= 8 && split * 2 <= product.inputs / 64; split *= 2) {
        Cuts cuts(products_.size());
        cuts[index] = StreamCut{.fragments = fragments, .split = split};
        const double us = time(m, true, cuts);
        if (us <= 0 || us >= best) continue;
        best = us;
        best_cut = *cuts[index];
      }
    if (best_cut.fragments == 0) return;
    report_.table.push_back(text("    %.2f with {%lld, %lld, DType::bf16, DType::%s, %lld, %d, %d}, product %zu", best,
                                 static_cast<long long>(product.outputs), static_cast<long long>(product.inputs),
                                 product.out == DType::f32 ? "f32" : "bf16", static_cast<long long>(m), best_cut.split,
                                 best_cut.fragments, index));
  }

  Report& report_;
  Device& cuda_;
  const Layer layer_;
  std::size_t copies_ = 0;
  std::vector<Product> products_;
  ProbeMatrix stream_, vectors_, normed_, parts_;
  std::vector<ProbeMatrix> between_, folded_;
  Tensor arena_;
};

Layer text_layer(const char* name, std::int64_t dim, std::int64_t mixed, std::int64_t ffn, std::int64_t in) {
  return {name, dim, false, {{.inputs = mixed, .outputs = 2 * ffn, .gated = true}, {.inputs = ffn, .outputs = in}}};
}
// Out and cross q, cross out and fc1, fc2 and the next layer's qkv.
Layer whisper_layer(const char* name, std::int64_t dim) {
  return {name,
          dim,
          true,
          {{.inputs = dim, .outputs = dim},
           {.inputs = dim, .outputs = 4 * dim, .activation = Activation::gelu_erf},
           {.inputs = 4 * dim, .outputs = 3 * dim}}};
}

}  // namespace

void time_layers(Report& report, Device& cuda) {
  report.table.push_back(
      "products and norms of a layer (out, gate and up, down, in; Whisper: out, q, out, fc1, fc2, qkv), us: norms "
      "apart, passed; cuts that beat the table's");
  for (const Layer& layer :
       {text_layer("Qwen3.5-0.8B delta", 1024, 2048, 3584, 8224),
        text_layer("Qwen3.5-0.8B attention", 1024, 2048, 3584, 5120), text_layer("Qwen3-0.6B", 1024, 2048, 3072, 4096),
        text_layer("Qwen3.5-9B delta", 4096, 4096, 12288, 12352), whisper_layer("Whisper large-v3", 1280)}) {
    const Status ran = LayerTimes(report, cuda, layer).run();
    report.check(ran.ok(), std::string("times of the products of a layer of ") + layer.name,
                 ran ? "" : ran.error().message);
  }
}

}  // namespace mstar::bench
