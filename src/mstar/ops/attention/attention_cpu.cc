#include <algorithm>
#include <cstring>

#include "mstar/ops/attention/attend.h"
#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/kv_layout.h"
#include "mstar/ops/elementwise/elementwise.h"

namespace mstar {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// Pairs of one row's one kv head, query by query: pair p is query p / group, head kv_head * group + p % group. Tiles of
// a row are of nearly equal height.
struct RowTiles {
  RowTiles(std::int64_t num_queries, std::int64_t group)
      : pairs(num_queries * group),
        tiles((pairs + kTilePairs - 1) / kTilePairs),
        height(tiles ? (pairs + tiles - 1) / tiles : 0) {}
  std::int64_t pairs, tiles, height;
};

// Which row a tile belongs to. When all rows have equally many (decode) that is a division; else the rows are walked.
class TileMap {
 public:
  TileMap(const RaggedView& rows, std::int64_t kv_heads, std::int64_t group)
      : rows_(rows), kv_heads_(kv_heads), group_(group) {
    for (int r = 0; r < rows.num_rows; ++r) {
      const std::int64_t tiles = tiles_of(r);
      equal_ = r == 0 || tiles == each_ ? equal_ : false;
      each_ = tiles;
      num_tiles_ += tiles;
    }
  }
  std::int64_t num_tiles() const { return num_tiles_; }
  struct Found {
    int row;
    std::int64_t within;
  };
  Found find(std::int64_t tile) const {
    if (equal_) return {static_cast<int>(tile / each_), tile % each_};
    int row = 0;
    for (std::int64_t tiles; tile >= (tiles = tiles_of(row)); ++row) tile -= tiles;
    return {row, tile};
  }

 private:
  std::int64_t tiles_of(int row) const {
    return kv_heads_ * RowTiles(rows_.offsets[row + 1] - rows_.offsets[row], group_).tiles;
  }
  const RaggedView& rows_;
  std::int64_t kv_heads_, group_, each_ = 0, num_tiles_ = 0;
  bool equal_ = true;
};

// units(row, kv_head) -> KvUnits; keys_of(row, query, num_queries) -> keys that the query sees.
template <class Units, class KeysOf>
void attend_rows(OpContext& context, const TensorView& q, const TensorView& out, const RaggedView& rows,
                 std::int64_t kv_heads, float scale, Units units, KeysOf keys_of) {
  const std::int64_t heads = q.dim(1), d = q.dim(2), group = heads / kv_heads;
  const std::size_t mark = context.arena.mark();
  const std::size_t scratch_floats = attend_scratch_floats(d);
  auto* scratch = static_cast<float*>(
      context.arena.take(scratch_floats * sizeof(float) * static_cast<std::size_t>(context.num_threads())));
  const TileMap map(rows, kv_heads, group);
  context.parallel_for(map.num_tiles(), [&](std::int64_t index, int thread) {
    const auto [row, within] = map.find(index);
    const std::int64_t first = rows.offsets[row], n = rows.offsets[row + 1] - first;
    const RowTiles shape(n, group);
    const std::int64_t kv_head = within / shape.tiles;
    const std::int64_t begin = within % shape.tiles * shape.height;
    AttendTile tile;
    tile.kv = units(row, kv_head);
    tile.head_dim = d;
    tile.scale = scale;
    tile.num_pairs = static_cast<int>(std::min(shape.height, shape.pairs - begin));
    for (int p = 0; p < tile.num_pairs; ++p) {
      const std::int64_t query = (begin + p) / group, head = kv_head * group + (begin + p) % group;
      tile.q[p] = q.data<float>() + (first + query) * q.stride(0) + head * d;
      tile.out[p] = out.data<float>() + (first + query) * out.stride(0) + head * d;
      tile.num_keys[p] = keys_of(row, query, n);
    }
    attend_tile(tile, scratch + static_cast<std::size_t>(thread) * scratch_floats);
  });
  context.arena.rewind(mark);
}

std::size_t tile_workspace_bytes(std::int64_t head_dim, int num_threads) {
  return attend_scratch_floats(head_dim) * sizeof(float) * static_cast<std::size_t>(num_threads) + 256;
}

}  // namespace

// Packs keys and values of each row and kv head as a slot holds them, then attends to those.
Status attention_dense_cpu(OpContext& context, const DenseAttentionArgs& args) {
  const std::int64_t d = args.q.dim(2), kv_heads = args.k.dim(1), width = round_up(d, 16);
  const std::size_t mark = context.arena.mark();
  const std::int64_t capacity = args.rows.num_tokens + 15 * args.rows.num_rows;  // units of a row are its own
  auto* keys =
      static_cast<float*>(context.arena.take(static_cast<std::size_t>(capacity * kv_heads * d) * sizeof(float)));
  auto* values =
      static_cast<float*>(context.arena.take(static_cast<std::size_t>(capacity * kv_heads * width) * sizeof(float)));
  // Row r begins at token first(r); within a row, one kv head follows another.
  const auto first = [&](int row) { return static_cast<std::int64_t>(args.rows.offsets[row]) + 15 * row; };
  const auto padded = [&](int row) { return round_up(args.rows.offsets[row + 1] - args.rows.offsets[row], kKeyUnit); };
  const auto head_token = [&](int row, std::int64_t kv_head) { return first(row) * kv_heads + kv_head * padded(row); };

  context.parallel_for(args.rows.num_rows * kv_heads, [&](std::int64_t tile, int) {
    const int row = static_cast<int>(tile / kv_heads);
    const std::int64_t kv_head = tile % kv_heads, token = args.rows.offsets[row],
                       n = args.rows.offsets[row + 1] - token;
    const float* k = args.k.data<float>() + token * args.k.stride(0) + kv_head * d;
    const float* v = args.v.data<float>() + token * args.v.stride(0) + kv_head * d;
    float* to_keys = keys + head_token(row, kv_head) * d;
    float* to_values = values + head_token(row, kv_head) * width;
    for (std::int64_t t = 0; t < n; t += kKeyUnit)
      pack_key_unit(k + t * args.k.stride(0), args.k.stride(0),
                    static_cast<int>(std::min<std::int64_t>(n - t, kKeyUnit)), d, to_keys + t * d);
    for (std::int64_t t = 0; t < n; ++t) {
      std::memcpy(to_values + t * width, v + t * args.v.stride(0), static_cast<std::size_t>(d) * sizeof(float));
      std::fill(to_values + t * width + d, to_values + (t + 1) * width, 0.0f);
    }
  });
  attend_rows(
      context, args.q, args.out, args.rows, kv_heads, args.scale,
      [&](int row, std::int64_t kv_head) {
        KvUnits units;
        units.keys = keys + head_token(row, kv_head) * d;
        units.values = values + head_token(row, kv_head) * width;
        units.value_width = width;
        return units;
      },
      [&](int, std::int64_t query, std::int64_t n) { return args.causal ? query + 1 : n; });
  context.arena.rewind(mark);
  return {};
}

Status attention_paged_cpu(OpContext& context, const PagedAttentionArgs& args) {
  for (int row = 0; row < args.rows.num_rows; ++row) {
    const std::int64_t n = args.rows.offsets[row + 1] - args.rows.offsets[row], length = args.kv.lengths[row];
    if (length < n || length > static_cast<std::int64_t>(args.kv.max_pages) * args.kv.page_tokens)
      return internal_error("attention: row " + std::to_string(row) + " has " + std::to_string(length) +
                            " tokens, outside of its pages");
  }
  const std::int64_t kv_heads = args.kv.keys.dim(2), d = args.kv.keys.dim(3), head_elements = args.kv.page_tokens * d;
  const auto element = static_cast<std::int64_t>(dtype_bytes(args.kv.keys.dtype));
  attend_rows(
      context, args.q, args.out, args.rows, kv_heads, args.scale,
      [&](int row, std::int64_t kv_head) {
        KvUnits units;
        units.keys = args.kv.keys.data<std::byte>() + kv_head * head_elements * element;
        units.values = args.kv.values.data<std::byte>() + kv_head * head_elements * element;
        units.dtype = args.kv.keys.dtype;
        units.pages = args.kv.page_table + static_cast<std::int64_t>(row) * args.kv.max_pages;
        units.page_tokens = units.key_stride = args.kv.page_tokens;
        units.page_stride = kv_heads * head_elements;
        units.value_width = d;
        return units;
      },
      [&](int row, std::int64_t query, std::int64_t n) { return args.kv.lengths[row] - n + query + 1; });
  if (args.gate.pointer) return sigmoid_mul(context, {.gate = args.gate, .x = args.out, .out = args.out});
  return {};
}

Status attention_slots_cpu(OpContext& context, const SlotAttentionArgs& args) {
  for (int row = 0; row < args.rows.num_rows; ++row) {
    const std::int64_t slot = args.kv.slots[row], length = args.kv.lengths[row];
    if (slot < 0 || slot >= args.kv.keys.dim(0) || length < 0 || length > args.kv.keys.dim(1))
      return internal_error("attention: row " + std::to_string(row) + " has no slot of " + std::to_string(length) +
                            " tokens");
  }
  const std::int64_t kv_heads = args.kv.keys.dim(2), d = args.kv.keys.dim(3), head_elements = args.kv.keys.dim(1) * d;
  const auto element = static_cast<std::int64_t>(dtype_bytes(args.kv.keys.dtype));
  attend_rows(
      context, args.q, args.out, args.rows, kv_heads, args.scale,
      [&](int row, std::int64_t kv_head) {
        KvUnits units;
        const std::int64_t at = (args.kv.slots[row] * kv_heads + kv_head) * head_elements * element;
        units.keys = args.kv.keys.data<std::byte>() + at;
        units.values = args.kv.values.data<std::byte>() + at;
        units.dtype = args.kv.keys.dtype;
        units.value_width = d;
        return units;
      },
      [&](int row, std::int64_t, std::int64_t) { return static_cast<std::int64_t>(args.kv.lengths[row]); });
  return {};
}

std::size_t attention_dense_workspace_bytes(std::int64_t num_tokens, int kv_heads, int head_dim, int num_threads,
                                            std::int64_t num_rows) {
  const std::int64_t capacity = num_tokens + 15 * num_rows;
  return static_cast<std::size_t>(capacity * kv_heads * (head_dim + round_up(head_dim, 16))) * sizeof(float) + 512 +
         tile_workspace_bytes(head_dim, num_threads);
}
std::size_t attention_paged_workspace_bytes(int head_dim, int num_threads) {
  return tile_workspace_bytes(head_dim, num_threads);
}
std::size_t attention_slots_workspace_bytes(int head_dim, int num_threads) {
  return tile_workspace_bytes(head_dim, num_threads);
}

}  // namespace mstar
