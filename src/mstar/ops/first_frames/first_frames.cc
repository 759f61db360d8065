#include "mstar/ops/first_frames/first_frames.h"

#include <algorithm>
#include <limits>

#include "mstar/ops/first_frames/first_frames_kernels.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<FirstFramesArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, first_frames_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, first_frames_cuda_fits, first_frames_cuda},
#endif
};

// From which cell the cheapest way comes.
enum Step : std::uint8_t { kBoth, kToken, kFrame };

// One row's placed tokens.
struct Way {
  const float* scores;  // [count, columns]
  std::uint8_t* trace;  // likewise
  std::int64_t columns, count, frames;
  std::int32_t* first;
};

// `costs` holds `frames` floats: of the token before, and from its left on of this one.
void trace_token(const Way& w, std::int64_t token, float* costs) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  const float* const scores = w.scores + token * w.columns;
  std::uint8_t* const trace = w.trace + token * w.columns;
  float corner = token == 0 ? 0.0f : kNone, left = kNone;
  for (std::int64_t f = 0; f < w.frames; ++f) {
    const float above = token == 0 ? kNone : costs[f];
    float cost = left;
    trace[f] = kFrame;
    if (corner < above && corner < left) {
      cost = corner;
      trace[f] = kBoth;
    } else if (above < corner && above < left) {
      cost = above;
      trace[f] = kToken;
    }
    corner = above;
    costs[f] = left = cost - scores[f];
  }
}

void walk_back(const Way& w) {
  std::int64_t token = w.count - 1, frame = w.frames - 1;
  for (;;) {
    w.first[token] = static_cast<std::int32_t>(frame);
    if (token == 0 && frame == 0) return;
    const auto step = token == 0 ? kFrame : frame == 0 ? kToken : static_cast<Step>(w.trace[token * w.columns + frame]);
    token -= step != kFrame;
    frame -= step != kToken;
  }
}

}  // namespace

Status first_frames(OpContext& context, const FirstFramesArgs& args) {
  constexpr const char* kOp = "first_frames";
  const std::int64_t tokens = args.rows.num_tokens;
  MSTAR_OP_EXPECT(kOp, args.lead >= 0 && args.rows.offsets && args.scores.dim(1) > 0);
  MSTAR_OP_EXPECT(kOp, is_rows_of(args.scores, DType::f32, tokens, args.scores.dim(1)) && args.scores.contiguous());
  MSTAR_OP_EXPECT(kOp, is_vector_of(args.frames, DType::i32, tokens));
  MSTAR_OP_EXPECT(kOp, args.longest <= tokens);
  MSTAR_OP_EXPECT(kOp, is_vector_of(args.out, DType::i32, args.out.dim(0)));
  MSTAR_OP_EXPECT(kOp, args.out.dim(0) >= tokens - args.rows.num_rows * (args.lead + 1));
  if (tokens == 0) return {};
  return run_first_fit(context, args, kKernels, kOp);
}

Status first_frames_cpu(OpContext& context, const FirstFramesArgs& args) {
  const std::int64_t columns = args.scores.dim(1);
  MSTAR_OP_EXPECT("first_frames",
                  is_rows_of(args.trace, DType::u8, args.rows.num_tokens, columns) && args.trace.contiguous());
  context.parallel_for(args.rows.num_rows, [&](std::int64_t row, int) {
    const std::int64_t begin = args.rows.offsets[row];
    const std::int64_t count = args.rows.offsets[row + 1] - begin - args.lead - 1;
    if (count <= 0) return;
    const std::int64_t first = begin + args.lead;
    const Way way{.scores = args.scores.data<float>() + first * columns,
                  .trace = args.trace.data<std::uint8_t>() + first * columns,
                  .columns = columns,
                  .count = count,
                  .frames = std::clamp<std::int64_t>(args.frames.data<std::int32_t>()[begin], 1, columns),
                  .first = args.out.data<std::int32_t>() + begin - row * (args.lead + 1)};
    // The scores of the row's last token are nobody's: its place holds the running costs.
    auto* const costs = args.scores.data<float>() + (first + count) * columns;
    for (std::int64_t token = 0; token < count; ++token) trace_token(way, token, costs);
    walk_back(way);
  });
  return {};
}

}  // namespace mstar
