// Paged attention with bf16 pages: the tensor-core kernels against the CPU's, what a query's bits depend on, and how
// long calls of real shapes take.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "cuda_slice.h"
#include "cuda_slice_timer.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/attention/attention_cases.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "twin.h"

namespace mstar::bench {
namespace {

using op_test::AttentionCase;

std::vector<float> draw(std::int64_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& value : out) value = to_float(to_bfloat16(normal(generator)));
  return out;
}

// Every token's query, key and value of every row, so that any part of a row can be attended by itself.
struct Rows {
  int heads, kv_heads, d;
  std::vector<int> totals;                  // tokens of each row
  std::vector<std::vector<float>> q, k, v;  // of each row
  Rows(const AttentionCase& c) : heads(c.heads), kv_heads(c.kv_heads), d(c.d) {
    for (std::size_t r = 0; r < c.counts.size(); ++r) {
      totals.push_back(c.before[r] + c.counts[r]);
      const auto seed = static_cast<std::uint32_t>(100 * r);
      q.push_back(draw(static_cast<std::int64_t>(totals.back()) * heads * d, seed + 1));
      k.push_back(draw(static_cast<std::int64_t>(totals.back()) * kv_heads * d, seed + 2));
      v.push_back(draw(static_cast<std::int64_t>(totals.back()) * kv_heads * d, seed + 3));
    }
  }
};

struct Part {
  int row, begin, end;  // tokens of the row that attend; the others before `end` are in the pages
};

class Attention {
 public:
  explicit Attention(Device& device, ThreadPool* pool = nullptr) : device_(device), pool_(pool) {
    auto memory = device.allocate(kArenaBytes);
    MSTAR_CHECK(memory.has_value(), "no memory for the arena");
    memory_ = *memory;
    arena_ = Arena(memory_, kArenaBytes);
  }
  ~Attention() { device_.release(memory_); }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // What the parts' queries see: [tokens, heads, d] as floats.
  Result<std::vector<float>> run(const Rows& rows, const std::vector<Part>& parts, DType activations, int page_tokens,
                                 int spare_pages) {
    Place place(device_);
    OpContext ops{device_, device_.default_stream(), arena_, pool_};
    PagedKvView kv = empty_pages(place, rows, parts, page_tokens, spare_pages);
    std::vector<std::int32_t> ends, offsets = {0};
    std::vector<float> k, v, q;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from, std::int64_t begin,
                           std::int64_t end) { to.insert(to.end(), from.begin() + begin, from.begin() + end); };
    for (const Part& part : parts) {
      const auto r = static_cast<std::size_t>(part.row);
      ends.push_back(part.end);
      offsets.push_back(offsets.back() + part.end);
      append(k, rows.k[r], 0, static_cast<std::int64_t>(part.end) * rows.kv_heads * rows.d);
      append(v, rows.v[r], 0, static_cast<std::int64_t>(part.end) * rows.kv_heads * rows.d);
      append(q, rows.q[r], static_cast<std::int64_t>(part.begin) * rows.heads * rows.d,
             static_cast<std::int64_t>(part.end) * rows.heads * rows.d);
    }
    kv.lengths = place.i32(ends).data<std::int32_t>();
    const auto ragged = [&](const std::vector<std::int32_t>& at) {
      return RaggedView{place.i32(at).data<std::int32_t>(), static_cast<int>(parts.size()), at.back()};
    };
    MSTAR_TRY(kv_append(ops, {.keys = place.f32(k, {offsets.back(), rows.kv_heads, rows.d}),
                              .values = place.f32(v, {offsets.back(), rows.kv_heads, rows.d}),
                              .rows = ragged(offsets),
                              .kv = kv}));
    std::vector<std::int32_t> query_offsets = {0};
    for (const Part& part : parts) query_offsets.push_back(query_offsets.back() + part.end - part.begin);
    const Shape shape{query_offsets.back(), rows.heads, rows.d};
    PagedAttentionArgs args;
    args.q = place.as(activations, q, shape);
    args.rows = ragged(query_offsets);
    args.kv = kv;
    args.scale = 1.0f / std::sqrt(static_cast<float>(rows.d));
    args.out = place.poisoned(activations, shape);
    MSTAR_TRY(attention_paged(ops, args));
    return floats_of(args.out);
  }

 private:
  static constexpr std::size_t kArenaBytes = std::size_t{192} << 20;

  static PagedKvView empty_pages(Place& place, const Rows& rows, const std::vector<Part>& parts, int page_tokens,
                                 int spare_pages) {
    PagedKvView kv;
    kv.page_tokens = page_tokens;
    for (const Part& part : parts) kv.max_pages = std::max(kv.max_pages, (part.end + page_tokens - 1) / page_tokens);
    kv.max_pages += spare_pages;
    const int num_pages = 1 + kv.max_pages * static_cast<int>(parts.size());
    std::vector<std::int32_t> table;
    for (int page = 1; page < num_pages; ++page) table.push_back(page);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    kv.keys = place.poisoned(DType::bf16, {num_pages, page_tokens, rows.kv_heads, rows.d});
    kv.values = place.poisoned(DType::bf16, {num_pages, page_tokens, rows.kv_heads, rows.d});
    kv.page_table = place.i32(table).data<std::int32_t>();
    return kv;
  }
  std::vector<float> floats_of(const TensorView& view) {
    std::vector<std::byte> bytes(view.bytes());
    const Stream stream = device_.default_stream();
    device_.copy_to_host(bytes.data(), view.pointer, bytes.size(), stream);
    device_.synchronize(stream);
    std::vector<float> out(static_cast<std::size_t>(view.shape.num_elements()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (view.dtype == DType::f32) {
        std::memcpy(&out[i], &bytes[i * 4], 4);
      } else {
        BFloat16 value;
        std::memcpy(&value, &bytes[i * 2], 2);
        out[i] = to_float(value);
      }
    }
    return out;
  }
  Device& device_;
  ThreadPool* pool_;
  void* memory_ = nullptr;
  Arena arena_;
};

std::vector<Part> parts_of(const AttentionCase& c) {
  std::vector<Part> out;
  for (int r = 0; r < static_cast<int>(c.counts.size()); ++r) {
    const auto at = static_cast<std::size_t>(r);
    out.push_back({r, c.before[at], c.before[at] + c.counts[at]});
  }
  return out;
}

// Rows of one token around the splits of 64 keys, and beyond 64 splits.
const std::vector<AttentionCase> kDecodeCases = {
    {8, 2, 256, {1, 1, 1, 1, 1}, {899, 0, 62, 63, 64}},  // Qwen3.5-0.8B
    {16, 4, 256, {1, 1}, {15, 300}},                     // Qwen3.5-9B
    {16, 8, 128, {1, 1, 1}, {127, 128, 640}},            // Qwen3-0.6B
    {14, 2, 64, {1, 1}, {1000, 5}},                      // Qwen2.5-0.5B: seven heads
    {1, 1, 64, {1}, {4200}},                             // 66 chunks: two a split
    {12, 1, 128, {1, 1}, {77, 9000}},                    // more heads than a block takes
    {4, 2, 64, {0, 2, 1, 1}, {3, 70, 5, 0}},             // as many tokens as rows, yet not one each
};
// Rows of many tokens, alone and among rows of one and of none.
const std::vector<AttentionCase> kPrefillCases = {
    {8, 2, 256, {130}, {0}},
    {8, 2, 256, {1, 5, 0, 64, 1, 65}, {400, 0, 9, 63, 0, 100}},
    {16, 8, 128, {33, 1, 200}, {0, 1000, 31}},
    {14, 2, 64, {19, 2, 1, 77}, {0, 500, 64, 3}},
    {3, 3, 64, {64, 2}, {64, 0}},
};

struct Error {
  double largest = 0, relative = 0;  // relative: ||a - b|| / ||b||, the largest of any case
  bool finite = true;
  void add(const std::vector<float>& a, const std::vector<float>& b) {
    double squares = 0, norm = 0;
    finite &= a.size() == b.size();
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      finite &= std::isfinite(a[i]);
      const double apart = std::fabs(static_cast<double>(a[i]) - b[i]);
      largest = std::max(largest, apart);
      squares += apart * apart;
      norm += static_cast<double>(b[i]) * b[i];
    }
    if (norm > 0) relative = std::max(relative, std::sqrt(squares / norm));
  }
};

class Check {
 public:
  Check(Report& report, Device& cuda)
      : report_(report), cpu_(make_cpu_device()), pool_(2), on_cpu_(*cpu_, &pool_), on_cuda_(cuda) {}

  // `tolerance` is of the relative error; a single value may be further off, since few keys average nothing.
  void against_cpu(const char* name, const std::vector<AttentionCase>& cases, DType activations, double tolerance) {
    Error error;
    int num_cases = 0;
    for (const AttentionCase& c : cases)
      for (const int page_tokens : {16, 48}) {
        const Rows rows(c);
        const auto expected = on_cpu_.run(rows, parts_of(c), DType::f32, page_tokens, 0);
        const auto got = on_cuda_.run(rows, parts_of(c), activations, page_tokens, 3);
        if (!expected || !got) {
          report_.check(false, name, expected ? got.error().message : expected.error().message);
          return;
        }
        error.add(*got, *expected);
        ++num_cases;
      }
    report_.check(error.finite && error.relative <= tolerance && error.largest <= 8 * tolerance, name,
                  text("%d cases, relative error %.2e, largest %.2e%s", num_cases, error.relative, error.largest,
                       error.finite ? "" : ", not finite"));
  }

  // Each row alone, with another page table, gives the bits that it gives among others.
  void in_any_batch(const char* name, const std::vector<AttentionCase>& cases, DType activations) {
    bool same = true;
    for (const AttentionCase& c : cases) {
      const Rows rows(c);
      const auto parts = parts_of(c);
      const auto together = on_cuda_.run(rows, parts, activations, 16, 0);
      if (!together) return void(report_.check(false, name, together.error().message));
      std::size_t at = 0;
      for (const Part& part : parts) {
        const auto count = static_cast<std::size_t>((part.end - part.begin) * c.heads * c.d);
        if (count == 0) continue;
        const auto alone = on_cuda_.run(rows, {part}, activations, 32, 500);
        // A row of two tokens beside an empty one goes through the kernel of single tokens; alone it does not.
        const bool comparable = part.end - part.begin == 1 || &cases != &kDecodeCases;
        if (!alone) return void(report_.check(false, name, alone.error().message));
        if (comparable) same &= std::memcmp(alone->data(), together->data() + at, count * sizeof(float)) == 0;
        at += count;
      }
    }
    report_.check(same, name);
  }

  // A prompt in parts gives the bits that it gives whole.
  void in_parts(DType activations) {
    const AttentionCase c{8, 2, 128, {300}, {0}};
    const Rows rows(c);
    const auto whole = on_cuda_.run(rows, {{0, 0, 300}}, activations, 16, 0);
    bool same = static_cast<bool>(whole);
    std::size_t at = 0;
    for (const auto& [begin, end] : {std::pair{0, 7}, {7, 71}, {71, 200}, {200, 300}}) {
      const auto part = on_cuda_.run(rows, {{0, begin, end}}, activations, 16, 0);
      same = same && part && std::memcmp(part->data(), whole->data() + at, part->size() * sizeof(float)) == 0;
      at += static_cast<std::size_t>((end - begin) * c.heads * c.d);
    }
    report_.check(same, "attention_paged: a prompt in parts = whole, bitwise");
  }

 private:
  Report& report_;
  std::unique_ptr<Device> cpu_;
  ThreadPool pool_;
  Attention on_cpu_, on_cuda_;
};

// ---- times
// -------------------------------------------------------------------------------------------------------------

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
    arena_bytes_ = attention_paged_split_bytes(rows, shapes.heads, shapes.d, max_pages * kPageTokens) + 4096;
    auto memory = cuda.allocate(arena_bytes_);
    MSTAR_CHECK(memory.has_value(), "no memory to time attention");
    arena_memory_ = *memory;
  }
  ~Timing() {
    cuda_.release(arena_memory_);
    for (void* pointer : owned_) cuda_.release(pointer);
  }
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;

  double us() {
    Arena arena(arena_memory_, arena_bytes_);
    OpContext ops{cuda_, cuda_.default_stream(), arena};
    return median_call_us(cuda_, 2 * num_layers_, [&](int call) {
      const auto layer = static_cast<std::size_t>(call % num_layers_);
      args_.kv.keys = keys_[layer];
      args_.kv.values = values_[layer];
      return attention_paged(ops, args_);
    });
  }

 private:
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
  int num_layers_ = 0;
  std::size_t arena_bytes_ = 0;
  void* arena_memory_ = nullptr;
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

}  // namespace

void check_attention_tiles(Report& report, Device& cuda) {
  Check check(report, cuda);
  check.against_cpu("attention_paged, single tokens, f32 queries", kDecodeCases, DType::f32, 2e-5);
  check.against_cpu("attention_paged, single tokens, bf16 queries", kDecodeCases, DType::bf16, 3e-3);
  check.against_cpu("attention_paged, prompts, f32 queries", kPrefillCases, DType::f32, 2e-5);
  check.against_cpu("attention_paged, prompts, bf16 queries", kPrefillCases, DType::bf16, 5e-3);
  check.in_any_batch("attention_paged: a single token's bits in any batch", kDecodeCases, DType::bf16);
  check.in_any_batch("attention_paged: a prompt's bits in any batch", kPrefillCases, DType::bf16);
  check.in_parts(DType::bf16);
}

void time_attention(Report& report, Device& cuda) {
  time_decode(report, cuda);
  time_prefill(report, cuda);
}

}  // namespace mstar::bench
