// How long paged attention of real shapes takes.
#include <algorithm>
#include <random>

#include "cuda_slice.h"
#include "cuda_slice_timer.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/qkv_prepare/qkv_prepare.h"
#include "twin.h"

namespace mstar::bench {
namespace {

struct Shapes {
  const char* model;
  int heads, kv_heads, d;
};

// As many layers' pages as push each other out of the L2 cache.
class Timing {
 public:
  Timing(Device& cuda, const Shapes& shapes, std::vector<std::int32_t> counts, std::vector<std::int32_t> lengths)
      : cuda_(cuda), place_(cuda), shapes_(shapes) {
    constexpr int kPageTokens = 16;
    const int rows = static_cast<int>(counts.size());
    std::vector<std::int32_t> offsets = {0}, table;
    for (const std::int32_t count : counts) offsets.push_back(offsets.back() + count);
    const int max_pages = (*std::max_element(lengths.begin(), lengths.end()) + kPageTokens - 1) / kPageTokens + 16;
    const int num_pages = 1 + rows * max_pages;
    for (int page = 1; page < num_pages; ++page) table.push_back(page);
    std::shuffle(table.begin(), table.end(), std::mt19937(3));
    const Shape pages{num_pages, kPageTokens, shapes.kv_heads, shapes.d};
    const std::size_t bytes = static_cast<std::size_t>(pages.num_elements()) * 2;
    num_layers_ = static_cast<int>(std::clamp<std::size_t>((std::size_t{160} << 20) / (2 * bytes), 2, 48));
    const Shape q{offsets.back(), shapes.heads, shapes.d};
    args_.q = zeros(DType::bf16, q);
    args_.out = zeros(DType::bf16, q);
    in_ = zeros(DType::bf16, {q[0], (2 * shapes.heads + 2 * shapes.kv_heads) * shapes.d});
    weight_ = zeros(DType::f32, {shapes.d});
    frequencies_ = zeros(DType::f32, {shapes.d / 8});
    std::vector<std::int32_t> positions;
    for (int row = 0; row < rows; ++row)
      for (std::int32_t i = 0; i < counts[static_cast<std::size_t>(row)]; ++i)
        positions.push_back(lengths[static_cast<std::size_t>(row)] - counts[static_cast<std::size_t>(row)] + i);
    positions_ = place_.i32(positions);
    args_.rows = {place_.i32(offsets).data<std::int32_t>(), rows, offsets.back()};
    args_.scale = 0.0625f;
    for (int layer = 0; layer < num_layers_; ++layer) {
      keys_.push_back(zeros(DType::bf16, pages));
      values_.push_back(zeros(DType::bf16, pages));
    }
    args_.kv.page_table = place_.i32(table).data<std::int32_t>();
    args_.kv.lengths = place_.i32(lengths).data<std::int32_t>();
    args_.kv.max_pages = max_pages;
    args_.kv.page_tokens = kPageTokens;
  }
  ~Timing() {
    for (void* pointer : owned_) cuda_.release(pointer);
  }
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;

  double us() {
    return call_us([&](OpContext& ops) { return attention_paged(ops, args_); });
  }
  // All between a gated attention's two products: prepare, attend, gate.
  double layer_us() {
    const TensorView q = heads_of(0, shapes_.heads, 2 * shapes_.d);
    args_.gate = heads_of(shapes_.d, shapes_.heads, 2 * shapes_.d);
    const std::int64_t q_width = std::int64_t{2} * shapes_.heads * shapes_.d;
    const TensorView k = heads_of(q_width, shapes_.kv_heads, shapes_.d);
    const TensorView v =
        heads_of(q_width + static_cast<std::int64_t>(shapes_.kv_heads) * shapes_.d, shapes_.kv_heads, shapes_.d);
    return call_us([&](OpContext& ops) -> Status {
      MSTAR_TRY(qkv_prepare(ops, {.q = q,
                                  .k = k,
                                  .v = v,
                                  .q_weight = weight_,
                                  .k_weight = weight_,
                                  .positions = positions_,
                                  .inverse_frequencies = frequencies_,
                                  .rows = args_.rows,
                                  .kv = args_.kv,
                                  .q_out = args_.q}));
      return attention_paged(ops, args_);
    });
  }

 private:
  template <class Run>
  double call_us(Run run) {
    Arena arena(nullptr, 0);
    OpContext ops{cuda_, cuda_.default_stream(), arena};
    return median_call_us(cuda_, 2 * num_layers_, [&](int call) {
      const auto layer = static_cast<std::size_t>(call % num_layers_);
      args_.kv.keys = keys_[layer];
      args_.kv.values = values_[layer];
      return run(ops);
    });
  }
  TensorView heads_of(std::int64_t begin, std::int64_t heads, std::int64_t apart) const {
    TensorView view = in_;
    view.pointer = static_cast<std::byte*>(in_.pointer) + begin * 2;
    view.shape = {in_.dim(0), heads, shapes_.d};
    view.strides = {in_.dim(1), apart, 1};
    return view;
  }
  TensorView zeros(DType dtype, Shape shape) {
    TensorView view(nullptr, dtype, shape, cuda_.id());
    auto memory = cuda_.allocate(view.bytes());
    MSTAR_CHECK(memory.has_value(), "no memory to time attention");
    owned_.push_back(*memory);
    view.pointer = *memory;
    cuda_.fill_zero(*memory, view.bytes(), cuda_.default_stream());
    return view;
  }
  Device& cuda_;
  Place place_;
  Shapes shapes_;
  std::vector<void*> owned_;
  std::vector<TensorView> keys_, values_;
  PagedAttentionArgs args_;
  TensorView in_, weight_, frequencies_, positions_;
  int num_layers_ = 0;
};

constexpr Shapes kShapes[] = {{"Qwen3.5-0.8B", 8, 2, 256}, {"Qwen3.5-9B", 16, 4, 256}, {"Qwen3-0.6B", 16, 8, 128}};

void time_decode(Report& report, Device& cuda) {
  report.table.push_back("attention of one token a row, 900 tokens each, bf16: us a layer, TB/s, % of 4.28 TB/s");
  for (const Shapes& shapes : kShapes)
    for (const int rows : {1, 8, 32, 64}) {
      Timing timing(cuda, shapes, std::vector<std::int32_t>(static_cast<std::size_t>(rows), 1),
                    std::vector<std::int32_t>(static_cast<std::size_t>(rows), 900));
      const double us = timing.us(), bytes = 2.0 * 2 * rows * 900 * shapes.kv_heads * shapes.d;
      report.table.push_back(text("  %-13s %3d rows  %8.2f  %6.2f  %5.1f", shapes.model, rows, us, bytes / us * 1e-6,
                                  bytes / us * 1e-6 / 4.28 * 100));
    }
}

void time_prefill(Report& report, Device& cuda) {
  report.table.push_back("attention of prompts, bf16: us a layer, TFLOP/s of the causal half");
  for (const Shapes& shapes : kShapes)
    for (const auto& [rows, tokens] : {std::pair{1, 640}, {1, 2048}, {4, 640}, {1, 8192}}) {
      const std::vector<std::int32_t> counts(static_cast<std::size_t>(rows), tokens);
      const double us = Timing(cuda, shapes, counts, counts).us();
      const double flops = 2.0 * rows * tokens * tokens * shapes.heads * shapes.d;
      report.table.push_back(
          text("  %-13s %d x %5d    %8.2f  %6.1f", shapes.model, rows, tokens, us, flops / us * 1e-6));
    }
  std::vector<std::int32_t> counts(32, 1), lengths(32, 900);
  counts[5] = lengths[5] = 512;
  report.table.push_back(
      text("  %-13s 31 x 1 of 900 + 512  %8.2f", kShapes[0].model, Timing(cuda, kShapes[0], counts, lengths).us()));
}

// Requests of 640 tokens at any of the 256 that they draw.
void time_attention_layers(Report& report, Device& cuda) {
  report.table.push_back(
      "Qwen3.5-0.8B: preparation, attention and gate, contexts of 640 to 896: us a layer, and bytes'");
  for (const auto& [prompts, rows] : {std::pair{0, 1}, {0, 8}, {0, 32}, {0, 64}, {3, 22}, {3, 0}}) {
    std::vector<std::int32_t> counts(static_cast<std::size_t>(rows), 1), lengths;
    double tokens = 0;
    for (int row = 0; row < rows; ++row) lengths.push_back(640 + (row * 97 + 128) % 256);
    for (const std::int32_t length : lengths) tokens += length;
    for (int prompt = 0; prompt < prompts; ++prompt) counts.push_back(640), lengths.push_back(640), tokens += 640;
    const Shapes& shapes = kShapes[0];
    const double bytes = tokens * 4 * shapes.kv_heads * shapes.d;
    report.table.push_back(text("  %d prompts of 640, %2d rows  %8.2f  %6.2f", prompts, rows,
                                Timing(cuda, shapes, counts, lengths).layer_us(), bytes / 4.28e6));
  }
}

}  // namespace

void time_attention(Report& report, Device& cuda) {
  time_attention_layers(report, cuda);
  time_decode(report, cuda);
  time_prefill(report, cuda);
}

}  // namespace mstar::bench
