#include <algorithm>
#include <cstring>

#include "mstar/ops/linear/linear_blocks.h"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar {
namespace {

constexpr int kPanel = LinearWeight::kPanel;
constexpr std::int64_t kBlockWords = 256 << 10;  // 1 MB of rows
constexpr std::int64_t kBlockRows = 240;

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// Rows of a block lie an odd number of cache lines apart, or all of them would fall into one set of L1.
std::int64_t padded_words(std::int64_t words) {
  const std::int64_t lines = round_up(words, 16) / 16;
  return (lines | 1) * 16;
}

// How M x N is cut: blocks of rows by chunks of panels; a tile is one of each. Nothing here may change a row's bits.
struct Blocks {
  Blocks(const LinearWeight& weight, std::int64_t words, std::int64_t num_rows, int num_threads) {
    stride = padded_words(words);
    const std::int64_t cached = std::max<std::int64_t>(kBlockWords / stride / kTileRows, 1) * kTileRows;
    rows = std::min({kBlockRows, cached, num_rows});
    num_row_blocks = (num_rows + rows - 1) / rows;
    const std::int64_t chunks =
        std::clamp<std::int64_t>((8 * num_threads + num_row_blocks - 1) / num_row_blocks, 1, weight.num_panels());
    panels = (weight.num_panels() + chunks - 1) / chunks;
    num_chunks = (weight.num_panels() + panels - 1) / panels;
  }
  std::int64_t tiles() const { return num_row_blocks * num_chunks; }
  // Per thread: rows of a, sums, and a widened block of one panel.
  std::size_t a_bytes() const { return static_cast<std::size_t>(rows * stride) * 4; }
  std::size_t sum_bytes() const { return static_cast<std::size_t>(rows) * kPanel * 4; }
  std::size_t thread_bytes() const { return a_bytes() + sum_bytes() + kWideBytes + 256; }

  std::int64_t stride, rows, num_row_blocks, panels, num_chunks;
};

// The rows of x as words, wherever they lie.
struct Words {
  const std::byte* base;
  std::int64_t stride;  // words
  std::int64_t count;   // words of a row
  const void* row(std::int64_t index) const { return base + index * stride * 4; }
};

// finish(first_row, num_rows, panel, sums)
template <class Finish>
class Drive {
 public:
  Drive(OpContext& context, const LinearWeight& weight, const LinearTiles& tiles, const LinearTiles& wide_tiles,
        Words words, std::int64_t num_rows, Finish finish)
      : context_(context),
        weight_(weight),
        tiles_(tiles),
        wide_tiles_(wide_tiles),
        words_(words),
        num_rows_(num_rows),
        finish_(finish) {}

  void run() {
    if (num_rows_ <= kFewRows) {
      run_few();
    } else {
      run_blocks();
    }
  }

 private:
  // Decode: each panel is read once, straight from the rows of x.
  void run_few() {
    constexpr std::int64_t kGroup = 4;  // panels that a kernel may take at once
    const std::int64_t num_panels = weight_.num_panels();
    const std::int64_t groups = (num_panels + kGroup - 1) / kGroup;
    const std::int64_t tiles = std::min<std::int64_t>(groups, 16 * context_.num_threads());
    context_.parallel_for(tiles, [&](std::int64_t tile, int) {
      alignas(64) std::uint32_t sums[kGroup * kFewRows * kPanel];
      for (std::int64_t group = groups * tile / tiles; group < groups * (tile + 1) / tiles; ++group) {
        const std::int64_t first = group * kGroup, count = std::min(kGroup, num_panels - first);
        tiles_.few(words_.row(0), words_.stride, static_cast<int>(num_rows_), weight_.panel(first),
                   weight_.panel_bytes(), static_cast<int>(count), words_.count / tiles_.step_words, sums);
        for (std::int64_t p = 0; p < count; ++p)
          finish_(std::int64_t{0}, static_cast<int>(num_rows_), first + p, sums + p * num_rows_ * kPanel);
      }
    });
  }

  void run_blocks() {
    const Blocks blocks(weight_, words_.count, num_rows_, context_.num_threads());
    const std::size_t mark = context_.arena.mark();
    auto* scratch = static_cast<std::byte*>(
        context_.arena.take(blocks.thread_bytes() * static_cast<std::size_t>(context_.num_threads())));
    context_.parallel_for(blocks.tiles(), [&](std::int64_t tile, int thread) {
      run_tile(blocks, tile, scratch + static_cast<std::size_t>(thread) * blocks.thread_bytes());
    });
    context_.arena.rewind(mark);
  }

  void run_tile(const Blocks& blocks, std::int64_t tile, std::byte* scratch) {
    const std::int64_t first_row = tile / blocks.num_chunks * blocks.rows;
    const std::int64_t num_rows = std::min(blocks.rows, num_rows_ - first_row);
    auto* a = reinterpret_cast<std::uint32_t*>(scratch);
    auto* sums = reinterpret_cast<std::uint32_t*>(scratch + blocks.a_bytes());
    std::byte* const wide = scratch + blocks.a_bytes() + blocks.sum_bytes();
    const std::size_t row_bytes = static_cast<std::size_t>(words_.count) * 4;
    for (std::int64_t row = 0; row < num_rows; ++row)
      std::memcpy(a + row * blocks.stride, words_.row(first_row + row), row_bytes);

    const bool widens = tiles_.widen && num_rows >= tiles_.widen_from_rows;
    const std::int64_t num_steps = words_.count / tiles_.step_words;
    const std::int64_t first_panel = tile % blocks.num_chunks * blocks.panels;
    const std::int64_t last_panel = std::min(first_panel + blocks.panels, weight_.num_panels());
    for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
      for (std::int64_t step = 0; step < num_steps; step += tiles_.block_steps) {
        std::int64_t steps = std::min<std::int64_t>(tiles_.block_steps, num_steps - step);
        const void* b =
            static_cast<const std::byte*>(weight_.panel(panel)) + static_cast<std::size_t>(step) * tiles_.step_bytes;
        if (widens) {
          tiles_.widen(b, steps, wide);
          b = wide;
          steps *= tiles_.wide_steps;
        }
        multiply_block(widens ? wide_tiles_ : tiles_, a + step * tiles_.step_words, blocks.stride, num_rows, b, steps,
                       sums, step == 0);
      }
      finish_(first_row, static_cast<int>(num_rows), panel, sums);
    }
  }

  static void multiply_block(const LinearTiles& tiles, const std::uint32_t* a, std::int64_t stride,
                             std::int64_t num_rows, const void* b, std::int64_t steps, std::uint32_t* sums,
                             bool first) {
    for (std::int64_t row = 0; row < num_rows;) {
      // The last two tiles share what is left: one of 12 rows and one of 1 would leave the second waiting on its
      // chains.
      const std::int64_t left = num_rows - row;
      const std::int64_t rows = left >= 2 * kTileRows ? kTileRows : left > kTileRows ? (left + 1) / 2 : left;
      tiles.tile(a + row * stride, stride, static_cast<int>(rows), b, steps, sums + row * kPanel, first);
      row += rows;
    }
  }

  OpContext& context_;
  const LinearWeight& weight_;
  const LinearTiles& tiles_;
  const LinearTiles& wide_tiles_;
  Words words_;
  std::int64_t num_rows_;
  Finish finish_;
};

std::int64_t words_of(const LinearWeight& weight) {
  if (weight.storage().is_blocks())
    return weight.num_inputs() / kGroupInputs * block_layout(weight.storage().blocks()).group_words();
  return weight.storage() == DType::i8 ? weight.padded_inputs() / 4 : weight.num_inputs();
}

// quantise(first_row, num_rows), for the rows of a tile.
template <class Quantise>
void for_row_tiles(OpContext& context, std::int64_t num_rows, Quantise quantise) {
  constexpr std::int64_t kRowsAtOnce = 16;
  context.parallel_for((num_rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](std::int64_t tile, int) {
    const std::int64_t first = tile * kRowsAtOnce;
    quantise(first, std::min(kRowsAtOnce, num_rows - first));
  });
}

}  // namespace

Status linear_cpu_float(OpContext& context, const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  const auto finish = [&](std::int64_t first_row, int num_rows, std::int64_t panel, const std::uint32_t* sums) {
    finish_float_panel(args, first_row, num_rows, panel, reinterpret_cast<const float*>(sums));
  };
  const Words words{args.x.data<std::byte>(), args.x.stride(0), weight.num_inputs()};
  Drive(context, weight, float_tiles(weight.storage().dtype()), float_tiles(DType::f32), words, args.x.dim(0), finish)
      .run();
  return {};
}

Status linear_cpu_i8(OpContext& context, const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  const std::int64_t num_rows = args.x.dim(0), count = words_of(weight);
  const bool biased = i8_words_are_biased();
  const std::size_t mark = context.arena.mark();
  auto* words = static_cast<std::uint32_t*>(context.arena.take(static_cast<std::size_t>(num_rows * count) * 4));
  auto* scales = static_cast<float*>(context.arena.take(static_cast<std::size_t>(num_rows) * sizeof(float)));
  for_row_tiles(context, num_rows, [&](std::int64_t first, std::int64_t rows) {
    quantise_rows(args.x, first, rows, count, biased, words + first * count, scales + first);
  });
  const auto finish = [&](std::int64_t first_row, int rows, std::int64_t panel, const std::uint32_t* sums) {
    finish_i8_panel(args, first_row, rows, panel, reinterpret_cast<const std::int32_t*>(sums), scales + first_row,
                    biased);
  };
  Drive(context, weight, i8_tiles(), i8_tiles(), Words{reinterpret_cast<const std::byte*>(words), count, count},
        num_rows, finish)
      .run();
  context.arena.rewind(mark);
  return {};
}

Status linear_cpu_blocks(OpContext& context, const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  const BlockFormat format = weight.storage().blocks();
  const std::int64_t num_rows = args.x.dim(0), count = words_of(weight);
  const std::size_t mark = context.arena.mark();
  auto* words = static_cast<std::uint32_t*>(context.arena.take(static_cast<std::size_t>(num_rows * count) * 4));
  for_row_tiles(context, num_rows, [&](std::int64_t first, std::int64_t rows) {
    quantise_groups(args.x, first, rows, format, words + first * count);
  });
  const auto finish = [&](std::int64_t first_row, int rows, std::int64_t panel, const std::uint32_t* sums) {
    finish_float_panel(args, first_row, rows, panel, reinterpret_cast<const float*>(sums));
  };
  Drive(context, weight, block_tiles(format), wide_block_tiles(format),
        Words{reinterpret_cast<const std::byte*>(words), count, count}, num_rows, finish)
      .run();
  context.arena.rewind(mark);
  return {};
}

std::size_t linear_cpu_workspace_bytes(const LinearWeight& weight, std::int64_t num_rows, int num_threads) {
  std::size_t bytes = 0;
  const std::int64_t count = words_of(weight);
  if (weight.storage().is_blocks()) bytes += static_cast<std::size_t>(num_rows * count) * 4 + 256;
  if (weight.storage() == DType::i8) bytes += static_cast<std::size_t>(num_rows * (count + 1)) * 4 + 512;
  if (num_rows > kFewRows)
    bytes += Blocks(weight, count, num_rows, num_threads).thread_bytes() * static_cast<std::size_t>(num_threads) + 256;
  return bytes;
}

}  // namespace mstar
