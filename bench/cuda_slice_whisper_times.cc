// What Whisper's ops take at the sizes of large-v3.
#include "cuda_slice_timer.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/layer_norm/layer_norm.h"
#include "mstar/ops/linear/linear.h"
#include "twins.h"

namespace mstar::bench {
namespace {

std::vector<std::int32_t> offsets_of(int rows, int tokens) {
  std::vector<std::int32_t> out = {0};
  for (int row = 0; row < rows; ++row) out.push_back(out.back() + tokens);
  return out;
}

class Memory {
 public:
  explicit Memory(Device& cuda) : cuda_(cuda) {}
  ~Memory() {
    for (void* pointer : owned_) cuda_.release(pointer);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  TensorView zeros(DType dtype, Shape shape) {
    TensorView view(nullptr, dtype, shape, cuda_.id());
    auto memory = cuda_.allocate(view.bytes());
    MSTAR_CHECK(memory.has_value(), "no memory to time Whisper's ops");
    owned_.push_back(*memory);
    view.pointer = *memory;
    cuda_.fill_zero(*memory, view.bytes(), cuda_.default_stream());
    return view;
  }

 private:
  Device& cuda_;
  std::vector<void*> owned_;
};

constexpr int kHeads = 20, kHeadDim = 64, kDim = 1280, kPositions = 1500;

void time_encoder(Report& report, Device& cuda) {
  for (const int rows : {1, 4, 8}) {
    Memory memory(cuda);
    Place place(cuda);
    const std::int64_t tokens = static_cast<std::int64_t>(rows) * kPositions;
    const TensorView arena_memory = memory.zeros(DType::u8, {std::int64_t{256} << 20});
    Arena arena(arena_memory.pointer, arena_memory.bytes());
    OpContext ops{cuda, cuda.default_stream(), arena};
    const TensorView qkv = memory.zeros(DType::bf16, {tokens, 3 * kDim});
    const TensorView normed = memory.zeros(DType::bf16, {tokens, kDim});
    const TensorView hidden = memory.zeros(DType::bf16, {tokens, 4 * kDim});
    const TensorView x = memory.zeros(DType::f32, {tokens, kDim});
    const TensorView gains = memory.zeros(DType::f32, {kDim}), bias = memory.zeros(DType::f32, {4 * kDim});
    const auto offsets = offsets_of(rows, kPositions);
    const std::int32_t* const on_device = place.i32(offsets).data<std::int32_t>();
    const double attention_us = median_call_us(cuda, 8, [&](int) {
      return attention_dense(ops, {.q = part_of(qkv, 0, kHeads, kHeadDim),
                                   .k = part_of(qkv, kDim, kHeads, kHeadDim),
                                   .v = part_of(qkv, 2 * kDim, kHeads, kHeadDim),
                                   .rows = {on_device, rows, static_cast<int>(tokens)},
                                   .scale = 0.125f,
                                   .out = part_of(normed, 0, kHeads, kHeadDim)});
    });
    const double gelu_us = median_call_us(cuda, 8, [&](int) {
      return activate(ops, {.x = hidden, .activation = Activation::gelu_erf, .out = hidden, .bias = bias});
    });
    const double norm_us = median_call_us(cuda, 8, [&](int) {
      return layer_norm(ops, {x, gains, gains, 1e-5f, normed});
    });
    const double flops = 4.0 * rows * kPositions * kPositions * kDim;
    std::string line = text(
        "  %d windows: attention %7.1f us (%5.0f TFLOP/s)  norm %6.1f us (%4.2f TB/s)  "
        "gelu %6.1f us (%4.2f TB/s)",
        rows, attention_us, flops / attention_us * 1e-6, norm_us,
        static_cast<double>(tokens) * kDim * 6 / norm_us * 1e-6, gelu_us,
        static_cast<double>(tokens) * kDim * 16 / gelu_us * 1e-6);
    const auto product = [&](const char* name, int n, int k, const TensorView& from, const TensorView& to, bool adds) {
      const std::vector<float> zeros(static_cast<std::size_t>(n) * static_cast<std::size_t>(k));
      const auto weight = LinearWeight::pack(
          cuda, LinearSource{TensorView(const_cast<float*>(zeros.data()), DType::f32, {n, k}), nullptr}, DType::bf16);
      if (!weight) return;
      TensorView own = bias;
      own.shape[0] = n;
      const auto run = [&](int) {
        return linear(ops, {.x = from,
                            .weight = &*weight,
                            .bias = adds ? own : TensorView(),
                            .residual = adds ? to : TensorView(),
                            .out = to});
      };
      const double us = median_call_us(cuda, 8, run);
      line += text("  %s %6.1f us (%4.0f, %zu nodes)", name, us, 2.0 * static_cast<double>(tokens) * n * k / us * 1e-6,
                   nodes_of_call(cuda, run));
    };
    product("qkv", 3 * kDim, kDim, normed, qkv, false);
    product("out", kDim, kDim, normed, x, true);
    product("up", 4 * kDim, kDim, normed, hidden, false);
    product("down", kDim, 4 * kDim, hidden, x, true);
    product("cross kv", 2 * kDim, kDim, normed, hidden, false);
    report.table.push_back(line);
  }
}

void time_cross(Report& report, Device& cuda) {
  for (const int rows : {1, 8, 32, 64}) {
    Memory memory(cuda);
    Place place(cuda);
    const std::int64_t capacity = 1504;
    constexpr int kLayers = 4;  // push each other out of the L2 cache
    std::vector<SlotKvView> layers(kLayers);
    std::vector<std::int32_t> slots, lengths(static_cast<std::size_t>(rows), kPositions);
    for (int row = 0; row < rows; ++row) slots.push_back(row + 1);
    for (SlotKvView& kv : layers) {
      kv.keys = memory.zeros(DType::bf16, {rows + 1, capacity, kHeads, kHeadDim});
      kv.values = memory.zeros(DType::bf16, {rows + 1, capacity, kHeads, kHeadDim});
      kv.slots = place.i32(slots).data<std::int32_t>();
      kv.lengths = place.i32(lengths).data<std::int32_t>();
    }
    const auto offsets = offsets_of(rows, 1);
    const TensorView q = memory.zeros(DType::bf16, {rows, kDim}), out = memory.zeros(DType::bf16, {rows, kDim});
    const TensorView scratch = memory.zeros(DType::u8, {4096});
    Arena arena(scratch.pointer, scratch.bytes());
    OpContext ops{cuda, cuda.default_stream(), arena};
    const std::int32_t* const on_device = place.i32(offsets).data<std::int32_t>();
    const double us = median_call_us(cuda, 2 * kLayers, [&](int call) {
      return attention_slots(ops, {.q = part_of(q, 0, kHeads, kHeadDim),
                                   .rows = {on_device, rows, rows},
                                   .kv = layers[static_cast<std::size_t>(call % kLayers)],
                                   .scale = 0.125f,
                                   .out = part_of(out, 0, kHeads, kHeadDim)});
    });
    const double bytes = 4.0 * rows * kPositions * kDim;
    report.table.push_back(text("  cross attention of %2d tokens   %8.2f us  %5.2f TB/s  %5.1f %% of 4.28 TB/s", rows,
                                us, bytes / us * 1e-6, bytes / us * 1e-6 / 4.28 * 100));
  }
}

// A decoder's norm, and its self attention that appends.
void time_self(Report& report, Device& cuda) {
  constexpr int kPageTokens = 16, kMaxPages = 28, kLength = 30;
  for (const int rows : {1, 8, 32, 64}) {
    Memory memory(cuda);
    Place place(cuda);
    std::vector<std::int32_t> table, lengths(static_cast<std::size_t>(rows), kLength);
    for (int page = 0; page < rows * kMaxPages; ++page) table.push_back(page + 1);
    PagedKvView kv;
    kv.keys = memory.zeros(DType::bf16, {1 + rows * kMaxPages, kPageTokens, kHeads, kHeadDim});
    kv.values = memory.zeros(DType::bf16, {1 + rows * kMaxPages, kPageTokens, kHeads, kHeadDim});
    kv.page_table = place.i32(table).data<std::int32_t>();
    kv.lengths = place.i32(lengths).data<std::int32_t>();
    kv.max_pages = kMaxPages;
    kv.page_tokens = kPageTokens;
    const std::int32_t* const offsets = place.i32(offsets_of(rows, 1)).data<std::int32_t>();
    const TensorView qkv = memory.zeros(DType::bf16, {rows, 3 * kDim}), out = memory.zeros(DType::bf16, {rows, kDim});
    const TensorView x = memory.zeros(DType::f32, {rows, kDim}), gains = memory.zeros(DType::f32, {kDim});
    Arena arena(nullptr, 0);
    OpContext ops{cuda, cuda.default_stream(), arena};
    const double self_us = median_call_us(cuda, 16, [&](int) {
      return attention_paged(ops, {.q = part_of(qkv, 0, kHeads, kHeadDim),
                                   .rows = {offsets, rows, rows},
                                   .kv = kv,
                                   .scale = 0.125f,
                                   .out = part_of(out, 0, kHeads, kHeadDim),
                                   .new_keys = part_of(qkv, kDim, kHeads, kHeadDim),
                                   .new_values = part_of(qkv, 2 * kDim, kHeads, kHeadDim)});
    });
    const double norm_us = median_call_us(cuda, 16, [&](int) {
      return layer_norm(ops, {x, gains, gains, 1e-5f, out});
    });
    report.table.push_back(
        text("  %2d tokens: self attention over %d keys %6.2f us  norm %6.2f us", rows, kLength, self_us, norm_us));
  }
}

void time_logits(Report& report, Device& cuda) {
  constexpr std::int64_t kVocab = 51866, kStride = 51868;
  Memory memory(cuda);
  const std::vector<float> zeros(static_cast<std::size_t>(kVocab * kDim));
  const auto weight = LinearWeight::pack(
      cuda, LinearSource{TensorView(const_cast<float*>(zeros.data()), DType::f32, {kVocab, kDim}), nullptr},
      DType::bf16);
  if (!weight) return;
  const TensorView scratch = memory.zeros(DType::u8, {std::int64_t{64} << 20});
  Arena arena(scratch.pointer, scratch.bytes());
  OpContext ops{cuda, cuda.default_stream(), arena};
  for (const int rows : {1, 8, 32, 64}) {
    const TensorView x = memory.zeros(DType::bf16, {rows, kDim});
    TensorView out = memory.zeros(DType::f32, {rows, kStride});
    out.shape[1] = kVocab;
    const double us =
        median_call_us(cuda, 4, [&](int) { return linear(ops, {.x = x, .weight = &*weight, .out = out}); });
    const double bytes = 2.0 * kVocab * kDim;
    report.table.push_back(text("  logits of %2d tokens            %8.2f us  %5.2f TB/s  %5.1f %% of 4.28 TB/s", rows,
                                us, bytes / us * 1e-6, bytes / us * 1e-6 / 4.28 * 100));
  }
}

}  // namespace

void time_whisper_ops(Report& report, Device& cuda) {
  report.table.push_back(
      "Whisper large-v3, a layer of the encoder (products in TFLOP/s), and of the decoder's cross attention");
  time_encoder(report, cuda);
  time_cross(report, cuda);
  time_self(report, cuda);
  time_logits(report, cuda);
}

}  // namespace mstar::bench
