#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "mstar/ops/linear/linear.h"
#include "mstar/ops/linear/linear_blocks.h"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar {
namespace {

constexpr int kPanel = LinearWeight::kPanel;
constexpr std::size_t kUploadBytes = std::size_t{16} << 20;  // of rows that are converted on the way to a device

const std::byte* row_of(const LinearSource& source, std::int64_t row) {
  const TensorView& w = source.weight;
  return w.data<std::byte>() + static_cast<std::size_t>(row * w.stride(0)) * dtype_bytes(w.dtype);
}

void widen_row(const LinearSource& source, std::int64_t row, std::vector<float>& to) {
  const TensorView& w = source.weight;
  const std::byte* from = row_of(source, row);
  if (source.blocks) return dequantise(*source.blocks, from, source.num_inputs(), to.data());
  widen_elements(w.dtype, from, w.dim(1), to.data());
  if (source.row_scale)
    for (float& value : to) value *= source.row_scale[row];
}

// Rows of one panel in the storage dtype: where they lie in the source, or in buffers when they must be converted.
class PanelRows {
 public:
  PanelRows(std::int64_t num_inputs, std::int64_t padded_inputs, DType storage)
      : k_(num_inputs), padded_(padded_inputs), storage_(storage), element_(dtype_bytes(storage)) {}

  // Row `column` of the panel is row `row` of `source`. Returns the scale and sum of an i8 row.
  struct Quantised {
    float scale = 0;
    std::int32_t sum = 0;
  };
  Quantised add(int column, const LinearSource& source, std::int64_t row) {
    const TensorView& w = source.weight;
    const std::byte* from = row_of(source, row);
    const bool as_it_is = !source.blocks && w.dtype == storage_ && k_ == padded_;
    rows_[column] = from;
    if (!as_it_is) rows_[column] = convert(column, source, from, row);
    if (storage_ != DType::i8) return {};
    Quantised out{w.dtype == DType::i8 ? source.row_scale[row] : scale_, 0};
    const auto* codes = static_cast<const std::int8_t*>(rows_[column]);
    for (std::int64_t i = 0; i < k_; ++i) out.sum += codes[i];
    return out;
  }
  const void* const* rows() const { return rows_; }

 private:
  const void* convert(int column, const LinearSource& source, const std::byte* from, std::int64_t row) {
    if (narrow_.empty()) narrow_.resize(static_cast<std::size_t>(kPanel * padded_) * element_);
    std::byte* to = narrow_.data() + static_cast<std::size_t>(column * padded_) * element_;
    if (!source.blocks && source.weight.dtype == storage_) {  // an i8 row whose length is no multiple of 4
      std::memset(to, 0, static_cast<std::size_t>(padded_) * element_);
      std::memcpy(to, from, static_cast<std::size_t>(k_) * element_);
      return to;
    }
    wide_.resize(static_cast<std::size_t>(k_));
    widen_row(source, row, wide_);
    if (storage_ == DType::i8) {
      const TensorView matrix(wide_.data(), DType::f32, {1, k_});
      quantise_rows(matrix, 0, 1, padded_ / 4, false, reinterpret_cast<std::uint32_t*>(to), &scale_);
    } else {
      narrow_elements(storage_, wide_.data(), k_, to);
    }
    return to;
  }

  std::int64_t k_, padded_;
  DType storage_;
  std::size_t element_;
  const void* rows_[kPanel] = {};
  std::vector<std::byte> narrow_;
  std::vector<float> wide_;
  float scale_ = 0;
};

// [kPanel rows][count] to [count][kPanel]; rows past `num_rows` are zero.
template <class Word>
void transpose(const void* const* rows, int num_rows, std::int64_t count, void* panel) {
  auto* to = static_cast<Word*>(panel);
  for (std::int64_t i = 0; i < count; ++i, to += kPanel) {
    for (int r = 0; r < num_rows; ++r) std::memcpy(to + r, static_cast<const Word*>(rows[r]) + i, sizeof(Word));
    std::fill(to + num_rows, to + kPanel, Word{});
  }
}

Status check_block_source(const LinearSource& source) {
  const TensorView& w = source.weight;
  const std::string name(block_format_name(*source.blocks));
  if (w.dtype != DType::u8 || w.dim(1) % static_cast<std::int64_t>(block_bytes(*source.blocks)) != 0)
    return bad_model("a linear weight in blocks of " + name + " must be whole blocks as u8, not " + to_string(w.shape) +
                     " of " + std::string(dtype_name(w.dtype)));
  if (source.row_scale) return bad_model("a linear weight in blocks of " + name + " may have no scale per row");
  return {};
}

Status check_sources(std::span<const LinearSource> sources, StoredType storage) {
  if (sources.empty()) return bad_model("a linear weight needs at least one source");
  if (!storage.is_blocks() && storage != DType::f32 && storage != DType::f16 && storage != DType::bf16 &&
      storage != DType::i8)
    return bad_model("a linear weight is stored as f32, f16, bf16, i8 or in blocks, not " +
                     std::string(storage.name()));
  for (const LinearSource& source : sources) {
    const TensorView& w = source.weight;
    if (w.shape.rank() != 2 || w.dim(0) < 1 || w.dim(1) < 1 || (w.dim(1) > 1 && w.stride(1) != 1))
      return bad_model("a linear weight must be a row-major [N, K] matrix, not " + to_string(w.shape));
    if (storage.is_blocks() && source.blocks != storage.blocks())
      return bad_model("a linear weight of " +
                       std::string(source.blocks ? block_format_name(*source.blocks) : dtype_name(w.dtype)) +
                       " cannot be stored as " + std::string(storage.name()));
    if (source.blocks) MSTAR_TRY(check_block_source(source));
    if (source.num_inputs() != sources[0].num_inputs())
      return bad_model("stacked linear weights disagree on K: " + to_string(sources[0].weight.shape) + " and " +
                       to_string(w.shape));
    if (source.blocks) continue;
    if (w.dtype != DType::f32 && w.dtype != DType::f16 && w.dtype != DType::bf16 && w.dtype != DType::i8)
      return bad_model("a linear weight cannot be read from " + std::string(dtype_name(w.dtype)));
    if ((w.dtype == DType::i8) != (source.row_scale != nullptr))
      return bad_model("an i8 linear weight needs a scale per row, and no other may have one");
  }
  return {};
}

}  // namespace

// Which source an output's row is in.
class LinearWeight::StackedRows {
 public:
  explicit StackedRows(std::span<const LinearSource> sources) : sources_(sources) {
    for (const LinearSource& source : sources) {
      first_.push_back(count_);
      count_ += source.weight.dim(0);
    }
  }
  std::int64_t count() const { return count_; }
  std::pair<const LinearSource*, std::int64_t> find(std::int64_t output) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), output);
    const auto index = static_cast<std::size_t>(after - first_.begin()) - 1;
    return {&sources_[index], output - first_[index]};
  }

 private:
  std::span<const LinearSource> sources_;
  std::vector<std::int64_t> first_;
  std::int64_t count_ = 0;
};

Status LinearWeight::upload_rows(Device& device, std::span<const LinearSource> sources) {
  if (storage_.is_blocks() || storage_ == DType::i8)
    return bad_model(std::string(storage_.name()) + " weights do not run on CUDA yet; ask for bf16");
  const DType dtype = storage_.dtype();
  MSTAR_TRY_ASSIGN(panels_, Tensor::allocate(device, dtype, {num_outputs_, num_inputs_}));
  const std::size_t row_bytes = static_cast<std::size_t>(num_inputs_) * dtype_bytes(dtype);
  const Stream stream = device.default_stream();
  auto* to = static_cast<std::byte*>(panels_.view().pointer);
  std::vector<std::byte> converted;
  std::vector<float> wide(static_cast<std::size_t>(num_inputs_));
  for (const LinearSource& source : sources) {
    const std::int64_t num_rows = source.weight.dim(0);
    if (!source.blocks && source.weight.dtype == dtype && source.weight.contiguous()) {
      const std::size_t bytes = static_cast<std::size_t>(num_rows) * row_bytes;
      device.copy_to_device(std::exchange(to, to + bytes), row_of(source, 0), bytes, stream);
      continue;
    }
    const auto at_once = static_cast<std::int64_t>(std::max(kUploadBytes / row_bytes, std::size_t{1}));
    for (std::int64_t begin = 0; begin < num_rows; begin += at_once) {
      const std::int64_t count = std::min(at_once, num_rows - begin);
      converted.resize(static_cast<std::size_t>(count) * row_bytes);
      for (std::int64_t row = 0; row < count; ++row) {
        widen_row(source, begin + row, wide);
        narrow_elements(dtype, wide.data(), num_inputs_, converted.data() + static_cast<std::size_t>(row) * row_bytes);
      }
      device.copy_to_device(std::exchange(to, to + converted.size()), converted.data(), converted.size(), stream);
      device.synchronize(stream);
    }
  }
  device.synchronize(stream);
  return ok_status();
}

Status LinearWeight::allocate_panels(Device& device) {
  if (storage_.is_blocks()) {
    const auto num_blocks = static_cast<std::size_t>(num_inputs_ / storage_.unit_elements());
    panel_bytes_ = num_blocks * block_layout(storage_.blocks()).step_bytes();
    MSTAR_TRY_ASSIGN(
        panels_, Tensor::allocate_weights(device, DType::u8, {num_panels(), static_cast<std::int64_t>(panel_bytes_)}));
    return ok_status();
  }
  const DType dtype = storage_.dtype();
  panel_bytes_ = static_cast<std::size_t>(padded_inputs_) * kPanel * dtype_bytes(dtype);
  MSTAR_TRY_ASSIGN(panels_, Tensor::allocate_weights(device, dtype, {num_panels(), padded_inputs_, kPanel}));
  if (dtype != DType::i8) return ok_status();
  MSTAR_TRY_ASSIGN(scales_, Tensor::allocate(device, DType::f32, {num_panels() * kPanel}));
  MSTAR_TRY_ASSIGN(sums_, Tensor::allocate(device, DType::i32, {num_panels() * kPanel}));
  std::memset(scales_.view().pointer, 0, scales_.bytes());
  std::memset(sums_.view().pointer, 0, sums_.bytes());
  return ok_status();
}

void LinearWeight::pack_panels(std::int64_t begin, std::int64_t end, const StackedRows& stacked) {
  if (storage_.is_blocks()) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      auto* to = static_cast<std::byte*>(const_cast<void*>(this->panel(panel)));
      std::memset(to, 0, panel_bytes_);
      for (int column = 0; column < kPanel && panel * kPanel + column < num_outputs_; ++column) {
        const auto [source, row] = stacked.find(panel * kPanel + column);
        put_block_row(storage_.blocks(), row_of(*source, row), num_inputs_, column, to);
      }
    }
    return;
  }
  const DType dtype = storage_.dtype();
  PanelRows rows(num_inputs_, padded_inputs_, dtype);
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first = panel * kPanel;
    const int count = static_cast<int>(std::min<std::int64_t>(kPanel, num_outputs_ - first));
    for (int column = 0; column < count; ++column) {
      const auto [source, row] = stacked.find(first + column);
      const auto quantised = rows.add(column, *source, row);
      if (dtype != DType::i8) continue;
      scales_.view().data<float>()[first + column] = quantised.scale;
      sums_.view().data<std::int32_t>()[first + column] = quantised.sum;
    }
    void* to = const_cast<void*>(this->panel(panel));
    if (dtype == DType::f16 || dtype == DType::bf16) {
      transpose<std::uint16_t>(rows.rows(), count, num_inputs_, to);
    } else {
      transpose<std::uint32_t>(rows.rows(), count, padded_inputs_ / (dtype == DType::i8 ? 4 : 1), to);
    }
  }
}

Result<LinearWeight> LinearWeight::pack(Device& device, std::span<const LinearSource> sources, StoredType storage,
                                        ThreadPool* pool) {
  MSTAR_TRY(check_sources(sources, storage));
  const StackedRows stacked(sources);
  LinearWeight out;
  out.storage_ = storage;
  out.num_outputs_ = stacked.count();
  out.num_inputs_ = sources[0].num_inputs();
  out.padded_inputs_ = storage == DType::i8 ? (out.num_inputs_ + 3) / 4 * 4 : out.num_inputs_;
  if (device.id().backend == Backend::cuda) {
    MSTAR_TRY(out.upload_rows(device, sources));
    return out;
  }
  MSTAR_TRY(out.allocate_panels(device));
  // A tile has its own buffers: a run of panels.
  constexpr std::int64_t kPanelsAtOnce = 4;
  const std::int64_t num_tiles = (out.num_panels() + kPanelsAtOnce - 1) / kPanelsAtOnce;
  const auto pack_tile = [&](std::int64_t tile, int) {
    out.pack_panels(tile * kPanelsAtOnce, std::min(out.num_panels(), (tile + 1) * kPanelsAtOnce), stacked);
  };
  if (pool) {
    pool->parallel_for(num_tiles, pack_tile);
  } else {
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) pack_tile(tile, 0);
  }
  return out;
}

void LinearWeight::read_row(std::int64_t output, float* to) const {
  const void* from = panel(output / kPanel);
  const std::int64_t column = output % kPanel;
  if (storage_.is_blocks())
    return get_block_row(storage_.blocks(), static_cast<const std::byte*>(from), num_inputs_, static_cast<int>(column),
                         to);
  for (std::int64_t i = 0; i < num_inputs_; ++i) {
    const std::int64_t at = i * kPanel + column;
    switch (storage_.dtype()) {
      case DType::f32:
        to[i] = static_cast<const float*>(from)[at];
        break;
      case DType::f16:
        to[i] = to_float(static_cast<const Half*>(from)[at]);
        break;
      case DType::bf16:
        to[i] = to_float(static_cast<const BFloat16*>(from)[at]);
        break;
      default:
        to[i] = static_cast<float>(static_cast<const std::int8_t*>(from)[(i / 4 * kPanel + column) * 4 + i % 4]) *
                column_scales()[output];
    }
  }
}

}  // namespace mstar
