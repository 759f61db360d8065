// What the ops between products take at the shapes of Qwen3.5, beside the time that their bytes take at the copy rate.
#include <algorithm>
#include <functional>

#include "cuda_slice.h"
#include "mstar/ops/causal_conv1d/causal_conv1d.h"
#include "mstar/ops/delta_mix/delta_mix.h"
#include "mstar/ops/delta_rule/delta_rule.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/qkv_prepare/qkv_prepare.h"
#include "mstar/ops/rms_norm/rms_norm.h"
#include "mstar/ops/rope/rope.h"

namespace mstar::bench {
namespace {

constexpr double kCopyBytesPerUs = 4.27e6;

struct Model {
  const char* name;
  std::int64_t dim, ffn, heads, kv_heads, key_heads, value_heads;
  std::int64_t conv_width() const { return (2 * key_heads + value_heads) * 128; }
  std::int64_t in_width() const { return conv_width() + value_heads * 130; }
  std::int64_t qkv_width() const { return (2 * heads + 2 * kv_heads) * 256; }
};
constexpr Model kModels[] = {{"0.8B", 1024, 3584, 8, 2, 16, 16}, {"9B", 4096, 12288, 16, 4, 16, 32}};
struct Step {
  int rows, tokens_a_row;
  int single_rows = 0;  // behind those, of one token each
  int all_rows() const { return rows + single_rows; }
  std::int64_t tokens() const { return static_cast<std::int64_t>(rows) * tokens_a_row + single_rows; }
};
constexpr Step kSteps[] = {{1, 1}, {8, 1}, {32, 1}, {64, 1}, {1, 640}, {4, 512}, {1, 2048}};
// Prompts beside requests that are being answered, as a server has them; only what a delta net does.
constexpr Step kMixedSteps[] = {{3, 640, 22}, {1, 640, 31}};

// Memory of zeros on the device for one table.
class Pool {
 public:
  explicit Pool(Device& device) : device_(device) {}
  ~Pool() {
    for (void* each : owned_) device_.release(each);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  TensorView zeros(DType dtype, Shape shape) {
    const std::size_t bytes = static_cast<std::size_t>(shape.num_elements()) * dtype_bytes(dtype);
    auto memory = device_.allocate(bytes);
    MSTAR_CHECK(memory.has_value(), "no memory for a timing");
    owned_.push_back(*memory);
    device_.fill_zero(*memory, bytes, device_.default_stream());
    return TensorView(*memory, dtype, shape, device_.id());
  }
  const std::int32_t* ints(const std::vector<std::int32_t>& values) {
    const TensorView view = zeros(DType::i32, {static_cast<std::int64_t>(values.size())});
    device_.copy_to_device(view.pointer, values.data(), values.size() * 4, device_.default_stream());
    device_.synchronize(device_.default_stream());
    return view.data<std::int32_t>();
  }

 private:
  Device& device_;
  std::vector<void*> owned_;
};

TensorView part(TensorView rows, std::int64_t begin, std::int64_t width) {
  rows.pointer = rows.data<std::byte>() + static_cast<std::size_t>(begin) * dtype_bytes(rows.dtype);
  rows.shape = {rows.dim(0), width};
  return rows;
}
TensorView heads(TensorView rows, std::int64_t begin, std::int64_t count, std::int64_t width, std::int64_t apart) {
  TensorView view = part(rows, begin, width);
  view.shape = {rows.dim(0), count, width};
  view.strides = {rows.stride(0), apart, 1};
  return view;
}

class OpTimes {
 public:
  OpTimes(Report& report, Device& cuda) : report_(report), cuda_(cuda), pool_(cuda) {
    constexpr std::size_t kArenaBytes = std::size_t{128} << 20;
    arena_ = Arena(pool_.zeros(DType::u8, {kArenaBytes}).pointer, kArenaBytes);
  }
  // One line: calls of `call(ops, i)` one after another in a graph, so that the host's launches are not in it; i counts
  // up, for calls that take other memory than the last. `bytes`: what a call must move.
  void line(const char* op, const Model& model, const Step& step, double bytes,
            const std::function<Status(OpContext&, int)>& call) {
    constexpr int kCalls = 24, kReplays = 9;
    const Stream stream = cuda_.default_stream();
    OpContext ops{cuda_, stream, arena_};
    std::string what = text("%-14s %-5s %2d x %-4d", op, model.name, step.rows, step.tokens_a_row);
    if (step.single_rows) what += text(" + %d x 1", step.single_rows);
    Status ran = call(ops, 0);
    if (ran) ran = cuda_.begin_capture(stream);
    if (!ran) {
      report_.check(false, what, ran.error().message);
      return;
    }
    for (int i = 0; i < kCalls && ran; ++i) ran = call(ops, i);
    auto graph = cuda_.end_capture(stream);
    auto begin = cuda_.make_event(true), end = cuda_.make_event(true);
    if (!ran || !graph || !begin || !end) {
      report_.check(false, what + " in a graph", !ran ? ran.error().message : "no graph or no events");
      return;
    }
    std::vector<double> times;
    for (int i = 0; i < kReplays; ++i) {
      (*begin)->record(stream);
      if (!(*graph)->launch(stream)) return;
      (*end)->record(stream);
      cuda_.synchronize(stream);
      times.push_back((*end)->us_since(**begin) / kCalls);
    }
    std::sort(times.begin(), times.end());
    const double us = times[kReplays / 2], floor_us = bytes / kCopyBytesPerUs;
    report_.table.push_back(text("%s %9.2f us  %7.0f GB/s  floor %8.2f us  %5.1f %%", what.c_str(), us,
                                 bytes / us * 1e-3, floor_us, 100 * floor_us / us));
  }
  // The prompts' states are kept in passing.
  void mixed_step(const Model& m, const Step& s) {
    std::vector<std::int32_t> offsets = {0}, positions(static_cast<std::size_t>(s.tokens()), 1), slots, kept,
                              kept_slots;
    for (int r = 0; r < s.all_rows(); ++r) {
      const bool prompt = r >= s.single_rows;
      offsets.push_back(offsets.back() + (prompt ? s.tokens_a_row : 1));
      slots.push_back(r + 1);
      kept.push_back(prompt ? s.tokens_a_row - 128 : 0);
      kept_slots.push_back(s.all_rows() + r + 1);
    }
    Pool pool(cuda_);
    const RaggedView rows{pool.ints(offsets), s.all_rows(), static_cast<int>(s.tokens())};
    delta_parts(pool, m, s, rows, pool.ints(positions), pool.ints(slots), {pool.ints(kept), pool.ints(kept_slots)});
  }
  void step(const Model& m, const Step& s) {
    const std::int64_t tokens = s.tokens();
    std::vector<std::int32_t> offsets, positions, slots, lengths, pages;
    for (int r = 0; r <= s.rows; ++r) offsets.push_back(r * s.tokens_a_row);
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<std::int32_t>(1 + t % s.tokens_a_row));
    const int pages_a_row = s.tokens_a_row / 64 + 1;
    for (int r = 0; r < s.rows; ++r) {
      slots.push_back(r + 1);
      lengths.push_back(s.tokens_a_row);
      for (int i = 0; i < pages_a_row; ++i) pages.push_back(1 + r * pages_a_row + i);
    }
    Pool pool(cuda_);
    const RaggedView rows{pool.ints(offsets), s.rows, static_cast<int>(tokens)};
    const std::int32_t *at = pool.ints(positions), *slot = pool.ints(slots);
    const TensorView where(const_cast<std::int32_t*>(at), DType::i32, {tokens});
    pointwise(pool, m, s, tokens);
    attention_parts(pool, m, s, rows, where, pool.ints(lengths), pool.ints(pages), pages_a_row);
    delta_parts(pool, m, s, rows, at, slot);
  }

 private:
  void pointwise(Pool& pool, const Model& m, const Step& s, std::int64_t tokens) {
    const auto t = static_cast<double>(tokens);
    const TensorView x = pool.zeros(DType::f32, {tokens, m.dim}), normed = pool.zeros(DType::bf16, {tokens, m.dim});
    const TensorView weight = pool.zeros(DType::f32, {m.dim});
    line("rms_norm", m, s, t * static_cast<double>(m.dim) * 6, [&](OpContext& ops, int) {
      return rms_norm(ops, {x, weight, 1e-6f, 1.0f, normed});
    });
    const TensorView both = pool.zeros(DType::bf16, {tokens, 2 * m.ffn});
    line("silu_mul", m, s, t * static_cast<double>(m.ffn) * 6, [&](OpContext& ops, int) {
      return silu_mul(ops, {part(both, 0, m.ffn), part(both, m.ffn, m.ffn), part(both, 0, m.ffn)});
    });
  }
  void attention_parts(Pool& pool, const Model& m, const Step& s, const RaggedView& rows, const TensorView& positions,
                       const std::int32_t* lengths, const std::int32_t* pages, int pages_a_row) {
    const std::int64_t tokens = rows.num_tokens;
    const auto t = static_cast<double>(tokens), q_width = static_cast<double>(m.heads * 256),
               kv_width = static_cast<double>(m.kv_heads * 256);
    const TensorView in = pool.zeros(DType::bf16, {tokens, m.qkv_width()});
    const TensorView q = pool.zeros(DType::bf16, {tokens, m.heads, 256});
    const TensorView weight = pool.zeros(DType::f32, {256}), frequencies = pool.zeros(DType::f32, {32});
    const TensorView k = heads(in, 2 * m.heads * 256, m.kv_heads, 256, 256);
    const TensorView v = heads(in, (2 * m.heads + m.kv_heads) * 256, m.kv_heads, 256, 256);
    line("q norm", m, s, t * q_width * 4, [&](OpContext& ops, int) {
      return rms_norm(ops, {heads(in, 0, m.heads, 256, 512), weight, 1e-6f, 1.0f, q});
    });
    line("rope of q", m, s, t * q_width, [&](OpContext& ops, int) {
      return rope(ops, {q, positions, frequencies, false, 1.0f});
    });
    PagedKvView kv;
    kv.keys = pool.zeros(DType::bf16, {1 + s.rows * pages_a_row, 64, m.kv_heads, 256});
    kv.values = pool.zeros(DType::bf16, {1 + s.rows * pages_a_row, 64, m.kv_heads, 256});
    kv.page_table = pages;
    kv.lengths = lengths;
    kv.max_pages = pages_a_row;
    kv.page_tokens = 64;
    line("kv_append", m, s, t * kv_width * 8, [&](OpContext& ops, int) { return kv_append(ops, {k, v, rows, kv}); });
    line("qkv_prepare", m, s, t * (q_width * 4 + kv_width * 8), [&](OpContext& ops, int) {
      return qkv_prepare(ops, {.q = heads(in, 0, m.heads, 256, 512),
                               .k = k,
                               .v = v,
                               .q_weight = weight,
                               .k_weight = weight,
                               .positions = positions,
                               .inverse_frequencies = frequencies,
                               .rows = rows,
                               .kv = kv,
                               .q_out = q});
    });
    line("sigmoid_mul", m, s, t * q_width * 6, [&](OpContext& ops, int) {
      return sigmoid_mul(ops, {heads(in, 256, m.heads, 256, 512), q, q});
    });
  }
  // States of several layers in turn, so that none is still in the cache.
  void delta_parts(Pool& pool, const Model& m, const Step& s, const RaggedView& rows, const std::int32_t* positions,
                   const std::int32_t* slots, const KeptStates& kept = {}) {
    constexpr int kLayers = 6;
    const std::int64_t tokens = rows.num_tokens, width = m.conv_width(), values = m.value_heads * 128;
    const auto t = static_cast<double>(tokens), r = static_cast<double>(s.all_rows());
    const TensorView in = pool.zeros(DType::bf16, {tokens, m.in_width()});
    const TensorView conv = pool.zeros(DType::bf16, {tokens, width}), weight = pool.zeros(DType::f32, {4, width});
    const TensorView past = pool.zeros(DType::f32, {kLayers, 2 * s.all_rows() + 1, 3, width});
    line("causal_conv1d", m, s, (t * 4 + r * 24 + 16) * static_cast<double>(width), [&](OpContext& ops, int i) {
      return causal_conv1d(ops, {.x = part(in, 0, width),
                                 .rows = rows,
                                 .positions = positions,
                                 .weight = weight,
                                 .activation = Activation::silu,
                                 .state = past.at(i % kLayers),
                                 .slots = slots,
                                 .kept = kept,
                                 .out = conv});
    });
    const TensorView rate = pool.zeros(DType::f32, {m.value_heads});
    const TensorView decay = pool.zeros(DType::f32, {tokens, m.value_heads}),
                     beta = pool.zeros(DType::f32, decay.shape);
    line("delta_gates", m, s, t * static_cast<double>(m.value_heads) * 12, [&](OpContext& ops, int) {
      return delta_gates(ops, {part(in, width + values + m.value_heads, m.value_heads),
                               part(in, width + values, m.value_heads), rate, rate, decay, beta});
    });
    const TensorView mixed = pool.zeros(DType::bf16, {tokens, m.value_heads, 128});
    const double token_bytes = t * static_cast<double>(width + values) * 2;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const TensorView state = pool.zeros(dtype, {kLayers, 2 * s.all_rows() + 1, m.value_heads, 128, 128});
      const double state_bytes = r * static_cast<double>(values) * 128 * 2 * static_cast<double>(dtype_bytes(dtype));
      line(dtype == DType::f32 ? "delta_rule" : "  bf16 state", m, s, token_bytes + state_bytes,
           [&](OpContext& ops, int i) {
             return delta_rule(ops, {.q = heads(conv, 0, m.key_heads, 128, 128),
                                     .k = heads(conv, m.key_heads * 128, m.key_heads, 128, 128),
                                     .v = heads(conv, 2 * m.key_heads * 128, m.value_heads, 128, 128),
                                     .decay = decay,
                                     .beta = beta,
                                     .rows = rows,
                                     .positions = positions,
                                     .scale = 0.088f,
                                     .state = state.at(i % kLayers),
                                     .slots = slots,
                                     .kept = kept,
                                     .out = mixed});
           });
    }
    line("norm and gate", m, s, t * static_cast<double>(values) * 6, [&](OpContext& ops, int) {
      return rms_norm(
          ops, {mixed, weight.at(0).slice(0, 128), 1e-6f, 0.0f, mixed, heads(in, width, m.value_heads, 128, 128)});
    });
    if (s.tokens_a_row == 1 || s.single_rows) delta_mix_part(pool, m, s, rows, positions, slots, kept);
  }
  // The four above: as one kernel in a step of single tokens, else in turn.
  void delta_mix_part(Pool& pool, const Model& m, const Step& s, const RaggedView& rows, const std::int32_t* positions,
                      const std::int32_t* slots, const KeptStates& kept) {
    constexpr int kLayers = 6;
    const std::int64_t tokens = rows.num_tokens, width = m.conv_width(), values = m.value_heads * 128;
    const auto r = static_cast<double>(s.all_rows());
    const TensorView in = pool.zeros(DType::bf16, {tokens, m.in_width()});
    const TensorView out = pool.zeros(DType::bf16, {tokens, m.value_heads, 128});
    const TensorView weight = pool.zeros(DType::f32, {4, width}), gains = pool.zeros(DType::f32, {128});
    const TensorView past = pool.zeros(DType::f32, {kLayers, 2 * s.all_rows() + 1, 3, width});
    const TensorView rate = pool.zeros(DType::f32, {m.value_heads});
    const double small_bytes = static_cast<double>(tokens) * static_cast<double>(2 * m.in_width() + 2 * values) +
                               (r * 24 + 16) * static_cast<double>(width);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const TensorView state = pool.zeros(dtype, {kLayers, 2 * s.all_rows() + 1, m.value_heads, 128, 128});
      const double state_bytes = r * static_cast<double>(values) * 128 * 2 * static_cast<double>(dtype_bytes(dtype));
      line(dtype == DType::f32 ? "delta_mix" : "  bf16 state", m, s, small_bytes + state_bytes,
           [&](OpContext& ops, int i) {
             return delta_mix(ops, {.in = in,
                                    .rows = rows,
                                    .positions = positions,
                                    .conv_weight = weight,
                                    .rate = rate,
                                    .dt_bias = rate,
                                    .norm_weight = gains,
                                    .key_heads = m.key_heads,
                                    .conv_state = past.at(i % kLayers),
                                    .rule_state = state.at(i % kLayers),
                                    .slots = slots,
                                    .kept = kept,
                                    .out = out});
           });
    }
  }

  Report& report_;
  Device& cuda_;
  Pool pool_;
  Arena arena_;
};

}  // namespace

void measure_ops(Report& report, Device& cuda) {
  report.table.push_back(
      "ops between products: median of a call, rows x tokens a row; bytes at the copy rate of 4.27 TB/s");
  OpTimes times(report, cuda);
  for (const Model& model : kModels) {
    for (const Step& step : kSteps) times.step(model, step);
    for (const Step& step : kMixedSteps) times.mixed_step(model, step);
  }
}

}  // namespace mstar::bench
