// Paged attention with bf16 pages: the tensor-core kernels against the CPU's, and what a query's bits depend on.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "cuda_slice.h"
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

// Every token's key and value of every row, and every query of the call's tokens, so that any part of a row can be
// attended by itself.
struct Rows {
  int heads, kv_heads, d;
  std::vector<int> totals;                         // tokens of each row
  std::vector<int> firsts;                         // the first token of each row that has a query
  std::vector<std::vector<float>> q, k, v, gates;  // of each row; gates as queries
  Rows(const AttentionCase& c) : heads(c.heads), kv_heads(c.kv_heads), d(c.d) {
    for (std::size_t r = 0; r < c.counts.size(); ++r) {
      totals.push_back(c.before[r] + c.counts[r]);
      const auto seed = static_cast<std::uint32_t>(100 * r);
      firsts.push_back(c.before[r]);
      q.push_back(draw(static_cast<std::int64_t>(c.counts[r]) * heads * d, seed + 1));
      k.push_back(draw(static_cast<std::int64_t>(totals.back()) * kv_heads * d, seed + 2));
      v.push_back(draw(static_cast<std::int64_t>(totals.back()) * kv_heads * d, seed + 3));
      gates.push_back(draw(static_cast<std::int64_t>(c.counts[r]) * heads * d, seed + 4));
    }
  }
};

struct Part {
  int row, begin, end;  // tokens of the row that attend; the others before `end` are in the pages
};

struct Call {
  DType activations = DType::f32;
  int page_tokens = 16;
  int spare_pages = 0;
  bool gated = false;
  int padding = 0;  // rows of one token each, all in the sink page; their outputs are left out
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
  Result<std::vector<float>> run(const Rows& rows, const std::vector<Part>& parts, const Call& call) {
    Place place(device_);
    OpContext ops{device_, device_.default_stream(), arena_, pool_};
    PagedKvView kv = empty_pages(place, rows, parts, call);
    std::vector<std::int32_t> ends, offsets = {0};
    std::vector<float> k, v, q, gates;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from, std::int64_t begin,
                           std::int64_t end) { to.insert(to.end(), from.begin() + begin, from.begin() + end); };
    for (const Part& part : parts) {
      const auto r = static_cast<std::size_t>(part.row);
      ends.push_back(part.end);
      offsets.push_back(offsets.back() + part.end);
      append(k, rows.k[r], 0, static_cast<std::int64_t>(part.end) * rows.kv_heads * rows.d);
      append(v, rows.v[r], 0, static_cast<std::int64_t>(part.end) * rows.kv_heads * rows.d);
      const std::int64_t width = static_cast<std::int64_t>(rows.heads) * rows.d;
      const std::int64_t begin = (part.begin - rows.firsts[r]) * width, end = (part.end - rows.firsts[r]) * width;
      append(q, rows.q[r], begin, end);
      append(gates, rows.gates[r], begin, end);
    }
    for (int i = 0; i < call.padding; ++i) {
      ends.push_back(1);
      offsets.push_back(offsets.back() + 1);
      k.insert(k.end(), static_cast<std::size_t>(rows.kv_heads * rows.d), 1.0f);
      v.insert(v.end(), static_cast<std::size_t>(rows.kv_heads * rows.d), 1.0f);
    }
    kv.lengths = place.i32(ends).data<std::int32_t>();
    const auto ragged = [&](const std::vector<std::int32_t>& at) {
      return RaggedView{place.i32(at).data<std::int32_t>(), static_cast<int>(at.size()) - 1, at.back()};
    };
    MSTAR_TRY(kv_append(ops, {.keys = place.f32(k, {offsets.back(), rows.kv_heads, rows.d}),
                              .values = place.f32(v, {offsets.back(), rows.kv_heads, rows.d}),
                              .rows = ragged(offsets),
                              .kv = kv}));
    std::vector<std::int32_t> query_offsets = {0};
    for (const Part& part : parts) query_offsets.push_back(query_offsets.back() + part.end - part.begin);
    const auto real = static_cast<std::size_t>(query_offsets.back());
    for (int i = 0; i < call.padding; ++i) query_offsets.push_back(query_offsets.back() + 1);
    const Shape shape{query_offsets.back(), rows.heads, rows.d};
    q.resize(static_cast<std::size_t>(shape.num_elements()));
    gates.resize(q.size());
    PagedAttentionArgs args;
    args.q = place.as(call.activations, q, shape);
    args.rows = ragged(query_offsets);
    args.kv = kv;
    args.scale = 1.0f / std::sqrt(static_cast<float>(rows.d));
    args.out = place.poisoned(call.activations, shape);
    if (call.gated) args.gate = beside_others(place, call.activations, gates, shape);
    MSTAR_TRY(attention_paged(ops, args));
    std::vector<float> out = floats_of(args.out);
    out.resize(real * static_cast<std::size_t>(rows.heads * rows.d));
    return out;
  }

 private:
  static constexpr std::size_t kArenaBytes = std::size_t{192} << 20;

  // Each head's values follow as many that nobody reads, as in a projection of queries and gates.
  static TensorView beside_others(Place& place, DType dtype, const std::vector<float>& values, Shape shape) {
    const auto d = static_cast<std::size_t>(shape[2]);
    std::vector<float> both(2 * values.size(), std::numeric_limits<float>::quiet_NaN());
    for (std::size_t at = 0; at < values.size(); ++at) both[(at / d * 2 + 1) * d + at % d] = values[at];
    TensorView view = place.as(dtype, both, {shape[0], shape[1], 2 * shape[2]});
    view.pointer = static_cast<std::byte*>(view.pointer) + d * dtype_bytes(dtype);
    view.shape = shape;
    view.strides = {2 * shape[1] * shape[2], 2 * shape[2], 1};
    return view;
  }
  static PagedKvView empty_pages(Place& place, const Rows& rows, const std::vector<Part>& parts, const Call& call) {
    const int page_tokens = call.page_tokens;
    PagedKvView kv;
    kv.page_tokens = page_tokens;
    for (const Part& part : parts) kv.max_pages = std::max(kv.max_pages, (part.end + page_tokens - 1) / page_tokens);
    kv.max_pages = std::max(kv.max_pages, 1) + call.spare_pages;
    const int num_pages = 1 + kv.max_pages * static_cast<int>(parts.size());
    std::vector<std::int32_t> table;
    for (int page = 1; page < num_pages; ++page) table.push_back(page);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    table.resize(table.size() + static_cast<std::size_t>(call.padding * kv.max_pages));
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

// Numbers of keys and values that its rows see.
std::int64_t work_of(const AttentionCase& c) {
  std::int64_t tokens = 0;
  for (const Part& part : parts_of(c)) tokens += part.end;
  return 2 * tokens * c.kv_heads * c.d;
}

// Rows of one token around the units of 16 keys and the eight blocks, and beyond what lanes remember of the units.
const std::vector<AttentionCase> kDecodeCases = {
    {8, 2, 256, {1, 1, 1, 1, 1}, {899, 0, 62, 63, 64}},  // Qwen3.5-0.8B
    {8, 2, 256, std::vector<std::int32_t>(33, 1), {14,  15,  16, 17, 126, 127, 128, 129, 383, 384, 640,
                                                   700, 896, 3,  7,  511, 255, 256, 257, 143, 144, 145,
                                                   31,  32,  33, 95, 96,  97,  768, 767, 5,   10,  0}},
    {8, 2, 256, std::vector<std::int32_t>(64, 1), std::vector<std::int32_t>(64, 150)},
    {8, 1, 256, {1, 1}, {200, 4100}},          // eight heads share keys
    {16, 4, 256, {1, 1}, {15, 300}},           // Qwen3.5-9B
    {16, 8, 128, {1, 1, 1}, {127, 128, 640}},  // Qwen3-0.6B
    {14, 2, 64, {1, 1}, {1000, 5}},            // Qwen2.5-0.5B: seven heads
    {1, 1, 64, {1}, {4200}},                   // whose head shares its keys with no other
    {12, 1, 128, {1, 1}, {77, 9000}},          // more heads than a block takes
    {4, 2, 64, {0, 2, 1, 1}, {3, 70, 5, 0}},   // as many tokens as rows, yet not one each
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
  void against_cpu(const char* name, const std::vector<AttentionCase>& cases, DType activations, double tolerance,
                   bool gated = false) {
    Error error;
    int num_cases = 0;
    for (const AttentionCase& c : cases)
      for (const int page_tokens : {16, 48}) {
        if (!report_.takes(work_of(c))) continue;
        const Rows rows(c);
        const auto expected = on_cpu_.run(rows, parts_of(c), {.page_tokens = page_tokens, .gated = gated});
        const auto got = on_cuda_.run(
            rows, parts_of(c),
            {.activations = activations, .page_tokens = page_tokens, .spare_pages = 3, .gated = gated, .padding = 2});
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
      if (!report_.takes(work_of(c))) continue;
      const Rows rows(c);
      const auto parts = parts_of(c);
      const auto together = on_cuda_.run(rows, parts, {.activations = activations});
      if (!together) return void(report_.check(false, name, together.error().message));
      std::size_t at = 0;
      const int spare_pages = parts.size() > 8 ? 9 : 500;
      for (const Part& part : parts) {
        const auto count = static_cast<std::size_t>((part.end - part.begin) * c.heads * c.d);
        if (count == 0) continue;
        const auto alone =
            on_cuda_.run(rows, {part}, {.activations = activations, .page_tokens = 32, .spare_pages = spare_pages});
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
    const auto whole = on_cuda_.run(rows, {{0, 0, 300}}, {.activations = activations});
    bool same = static_cast<bool>(whole);
    std::size_t at = 0;
    for (const auto& [begin, end] : {std::pair{0, 7}, {7, 71}, {71, 200}, {200, 300}}) {
      const auto part = on_cuda_.run(rows, {{0, begin, end}}, {.activations = activations});
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

}  // namespace

void check_attention_tiles(Report& report, Device& cuda) {
  Check check(report, cuda);
  check.against_cpu("attention_paged, single tokens, f32 queries", kDecodeCases, DType::f32, 2e-5);
  check.against_cpu("attention_paged, single tokens, bf16 queries", kDecodeCases, DType::bf16, 3e-3);
  check.against_cpu("attention_paged, prompts, f32 queries", kPrefillCases, DType::f32, 2e-5);
  check.against_cpu("attention_paged, prompts, bf16 queries", kPrefillCases, DType::bf16, 5e-3);
  check.against_cpu("attention_paged with a gate, single tokens, f32", kDecodeCases, DType::f32, 2e-5, true);
  check.against_cpu("attention_paged with a gate, single tokens, bf16", kDecodeCases, DType::bf16, 4e-3, true);
  check.against_cpu("attention_paged with a gate, prompts, f32", kPrefillCases, DType::f32, 2e-5, true);
  check.against_cpu("attention_paged with a gate, prompts, bf16", kPrefillCases, DType::bf16, 6e-3, true);
  check.in_any_batch("attention_paged: a single token's bits in any batch", kDecodeCases, DType::bf16);
  check.in_any_batch("attention_paged: a prompt's bits in any batch", kPrefillCases, DType::bf16);
  check.in_parts(DType::bf16);
}

}  // namespace mstar::bench
