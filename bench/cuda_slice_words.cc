// What Whisper's word times call: scores of alignment heads, the way through them, probabilities of given tokens.
#include <algorithm>
#include <cmath>

#include "cuda_slice_timer.h"
#include "mstar/ops/alignment_scores/alignment_scores.h"
#include "mstar/ops/first_frames/first_frames.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/score_tokens/score_tokens.h"
#include "twins.h"

namespace mstar::bench {
namespace {

struct Texts {
  std::vector<int> counts, frames;  // by row
  std::int64_t columns = 0;

  std::vector<std::int32_t> offsets() const {
    std::vector<std::int32_t> out = {0};
    for (const int count : counts) out.push_back(out.back() + count);
    return out;
  }
  std::vector<std::int32_t> frames_of_tokens() const {
    std::vector<std::int32_t> out;
    for (std::size_t row = 0; row < counts.size(); ++row)
      out.insert(out.end(), static_cast<std::size_t>(counts[row]), frames[row]);
    return out;
  }
  int num_rows() const { return static_cast<int>(counts.size()); }
  int num_tokens() const { return offsets().back(); }
  int longest() const { return *std::max_element(counts.begin(), counts.end()); }
};

const Texts kTexts[] = {{{1}, {1}, 16},
                        {{9, 5, 30}, {40, 3, 17}, 40},
                        {{8, 0, 16, 1}, {100, 100, 64, 7}, 100},
                        {{25, 110}, {1500, 234}, 1500},
                        {{229, 40, 8}, {1500, 1500, 1}, 1500}};

TensorView as_heads(TensorView rows, int heads, int d) {
  const std::int64_t stride = rows.stride(0);
  rows.shape = {rows.dim(0), heads, d};
  rows.strides = {stride, d, 1};
  return rows;
}

// ---- scores

struct HeadCase {
  Texts texts;
  int heads, d;
  std::vector<int> picked;
  bool adds;
};

Status score(OpContext& ops, Place& place, const HeadCase& c, DType dtype) {
  const bool on_cpu = ops.backend() == Backend::cpu;
  const std::int64_t capacity = (c.texts.columns + 15) / 16 * 16, width = std::int64_t{c.heads} * c.d;
  const int rows = c.texts.num_rows(), tokens = c.texts.num_tokens();
  std::vector<std::int32_t> slots, lengths(static_cast<std::size_t>(rows), static_cast<std::int32_t>(c.texts.columns)),
      contexts = {0};
  for (int row = 0; row < rows; ++row) {
    slots.push_back(rows - row);
    contexts.push_back(contexts.back() + static_cast<std::int32_t>(c.texts.columns));
  }
  SlotKvView kv;
  kv.keys = place.poisoned(on_cpu ? DType::f32 : dtype, {rows + 1, capacity, c.heads, c.d});
  kv.values = place.poisoned(on_cpu ? DType::f32 : dtype, {rows + 1, capacity, c.heads, c.d});
  kv.slots = place.i32(slots).data<std::int32_t>();
  kv.lengths = place.i32(lengths).data<std::int32_t>();
  const std::int64_t keys = contexts.back();
  const TensorView stored = as_heads(place.activations(dtype, draw(keys * width, 3), {keys, width}), c.heads, c.d);
  MSTAR_TRY(kv_store(ops, {.keys = stored,
                           .values = stored,
                           .rows = {place.i32(contexts).data<std::int32_t>(), rows, static_cast<int>(keys)},
                           .kv = kv}));
  ops.device.synchronize(ops.stream);
  const auto offsets = c.texts.offsets();
  const std::int64_t columns = c.texts.columns;
  return alignment_scores(
      ops, {.q = as_heads(place.activations(dtype, draw(tokens * width, 5), {tokens, width}), c.heads, c.d),
            .rows = {place.i32(offsets).data<std::int32_t>(), rows, tokens},
            .kv = kv,
            .frames = place.i32(c.texts.frames_of_tokens()),
            .heads = c.picked,
            .scale = 1.0f / std::sqrt(static_cast<float>(c.d)),
            .share = 1.0f / static_cast<float>(c.picked.size()),
            .adds = c.adds,
            .weights = place.poisoned(DType::f32, {tokens, columns}),
            .scores = c.adds ? place.state(DType::f32, draw(tokens * columns, 7), {tokens, columns})
                             : place.out(tokens, columns)});
}

void check_scores(Twins& twins) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Difference difference;
    for (const Texts& texts : kTexts)
      for (const bool adds : {false, true}) {
        // One token has no deviation but that of rounding; one frame has weights that are all 1.
        const bool plain = *std::min_element(texts.frames.begin(), texts.frames.end()) > 1 && texts.longest() > 1;
        if (!plain) continue;
        twins.run(
            [&](OpContext& ops, Place& place) {
              return score(ops, place, {texts, 3, 64, {2, 0}, adds}, dtype);
            },
            difference);
        twins.run(
            [&](OpContext& ops, Place& place) {
              return score(ops, place, {texts, 2, 32, {1}, adds}, dtype);
            },
            difference);
      }
    twins.judge("alignment_scores " + std::string(dtype_name(dtype)), difference, 2e-3, 2e-4);
  }
}

// ---- the way

void check_frames(Twins& twins) {
  Difference difference;
  for (const Texts& texts : kTexts)
    for (const int lead : {0, 1, 3})
      for (std::uint32_t seed = 0; seed < 4; ++seed) {
        const int tokens = texts.num_tokens();
        bool fits = true;
        for (const int count : texts.counts) fits &= count > lead + 1;
        if (!fits) continue;
        const auto scores = draw(tokens * texts.columns, seed);
        const auto offsets = texts.offsets();
        twins.run(
            [&](OpContext& ops, Place& place) {
              return first_frames(ops, {.scores = place.f32(scores, {tokens, texts.columns}),
                                        .rows = {place.i32(offsets).data<std::int32_t>(), texts.num_rows(), tokens},
                                        .frames = place.i32(texts.frames_of_tokens()),
                                        .lead = lead,
                                        .longest = texts.longest(),
                                        .trace = place.poisoned(DType::u8, {tokens, texts.columns}),
                                        .out = place.out_i32(tokens - texts.num_rows() * (lead + 1))});
            },
            difference);
      }
  twins.judge("first_frames", difference, 0, 0);
}

void check_probabilities(Twins& twins) {
  Difference difference;
  const Texts texts{{9, 5, 30}, {}, 0};
  const int tokens = texts.num_tokens();
  const auto offsets = texts.offsets();
  for (const std::int32_t vocab : {7, 1000, 51866})
    for (const int lead : {1, 3}) {
      std::vector<std::int32_t> ids;
      for (int i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>((i * 7919) % vocab));
      const auto logits = draw(std::int64_t{tokens} * (vocab + 2), 4, 4.0f);
      twins.run(
          [&](OpContext& ops, Place& place) -> Status {
            const TensorView all = place.f32(logits, {tokens, vocab}, vocab + 2);
            const TensorView out = place.out(1, tokens - texts.num_rows() * (lead + 1)).at(0);
            const TensorView on_device = place.i32(ids);
            const RaggedView rows{place.i32(offsets).data<std::int32_t>(), texts.num_rows(), tokens};
            for (std::int64_t begin = 0; begin < tokens; begin += 16)
              MSTAR_TRY(score_tokens(ops, {.logits = all.slice(begin, std::min<std::int64_t>(tokens, begin + 16)),
                                           .first_token = begin,
                                           .ids = on_device,
                                           .rows = rows,
                                           .lead = lead,
                                           .num_ids = vocab - 1,
                                           .out = out}));
            return ok_status();
          },
          difference);
    }
  twins.judge("score_tokens", difference, 1e-6);
}

// ---- times

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
    MSTAR_CHECK(memory.has_value(), "no memory to time word times");
    owned_.push_back(*memory);
    view.pointer = *memory;
    cuda_.fill_zero(*memory, view.bytes(), cuda_.default_stream());
    return view;
  }

 private:
  Device& cuda_;
  std::vector<void*> owned_;
};

constexpr int kHeads = 20, kHeadDim = 64, kPositions = 1500, kTextTokens = 110, kLead = 3;

}  // namespace

void check_alignment(Report& report, Device& cuda) {
  Twins twins(report, cuda);
  check_scores(twins);
}

void time_alignment(Report& report, Device& cuda) {
  report.table.push_back("Word times of large-v3's windows of 110 tokens: one head's scores");
  for (const int rows : {1, 4, 16}) {
    Memory memory(cuda);
    Place place(cuda);
    const Texts texts{std::vector<int>(static_cast<std::size_t>(rows), kTextTokens),
                      std::vector<int>(static_cast<std::size_t>(rows), kPositions), kPositions};
    const std::int64_t tokens = texts.num_tokens();
    std::vector<std::int32_t> slots;
    for (int row = 0; row < rows; ++row) slots.push_back(row + 1);
    SlotKvView kv;
    kv.keys = kv.values = memory.zeros(DType::bf16, {rows + 1, 1504, kHeads, kHeadDim});
    kv.slots = kv.lengths = place.i32(slots).data<std::int32_t>();
    const TensorView q = memory.zeros(DType::bf16, {tokens, kHeads * kHeadDim});
    const TensorView weights = memory.zeros(DType::f32, {tokens, kPositions}),
                     scores = memory.zeros(DType::f32, {tokens, kPositions});
    Arena arena(nullptr, 0);
    OpContext ops{cuda, cuda.default_stream(), arena};
    const std::int32_t* const offsets = place.i32(texts.offsets()).data<std::int32_t>();
    const TensorView frames = place.i32(texts.frames_of_tokens());
    const std::vector<int> heads = {7};
    const double us = median_call_us(cuda, 8, [&](int) {
      return alignment_scores(ops, {.q = as_heads(q, kHeads, kHeadDim),
                                    .rows = {offsets, rows, static_cast<int>(tokens)},
                                    .kv = kv,
                                    .frames = frames,
                                    .heads = heads,
                                    .scale = 0.125f,
                                    .share = 0.1f,
                                    .weights = weights,
                                    .scores = scores});
    });
    report.table.push_back(text("  %2d windows: scores of a head %8.2f us", rows, us));
  }
}

void check_words(Report& report, Device& cuda) {
  Twins twins(report, cuda);
  check_frames(twins);
  check_probabilities(twins);
}

void time_words(Report& report, Device& cuda) {
  report.table.push_back("Word times of large-v3's windows of 110 tokens: the way, and the probabilities");
  for (const int rows : {1, 4, 16}) {
    constexpr std::int64_t kVocab = 51866, kStride = 51868, kChunk = 128;
    Memory memory(cuda);
    Place place(cuda);
    const Texts texts{std::vector<int>(static_cast<std::size_t>(rows), kTextTokens),
                      std::vector<int>(static_cast<std::size_t>(rows), kPositions), kPositions};
    const std::int64_t tokens = texts.num_tokens();
    const TensorView scores = memory.zeros(DType::f32, {tokens, kPositions});
    const TensorView first = memory.zeros(DType::i32, {tokens}), probabilities = memory.zeros(DType::f32, {tokens});
    const TensorView ids = memory.zeros(DType::i32, {tokens});
    const std::int64_t chunk = std::min(kChunk, tokens);
    TensorView logits = memory.zeros(DType::f32, {chunk, kStride});
    logits.shape[1] = kVocab;
    Arena arena(nullptr, 0);
    OpContext ops{cuda, cuda.default_stream(), arena};
    const RaggedView ragged{place.i32(texts.offsets()).data<std::int32_t>(), rows, static_cast<int>(tokens)};
    const TensorView frames = place.i32(texts.frames_of_tokens());
    const double way_us = median_call_us(cuda, 4, [&](int) {
      return first_frames(ops, {.scores = scores,
                                .rows = ragged,
                                .frames = frames,
                                .lead = kLead,
                                .longest = kTextTokens,
                                .trace = {},
                                .out = first});
    });
    const double score_us = median_call_us(cuda, 4, [&](int) {
      return score_tokens(ops, {.logits = logits,
                                .first_token = 0,
                                .ids = ids,
                                .rows = ragged,
                                .lead = kLead,
                                .num_ids = 50257,
                                .out = probabilities});
    });
    report.table.push_back(text("  %2d windows: the way %8.2f us  probabilities of %lld tokens %7.2f us", rows, way_us,
                                static_cast<long long>(chunk), score_us));
  }
}

}  // namespace mstar::bench
