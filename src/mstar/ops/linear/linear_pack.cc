#include <algorithm>
#include <cstring>
#include <vector>

#include "mstar/ops/linear/linear.h"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar {
namespace {

constexpr int kPanel = LinearWeight::kPanel;

void widen_row(const LinearSource& source, std::int64_t row, std::vector<float>& to) {
  const TensorView& w = source.weight;
  const std::byte* from = w.data<std::byte>() + static_cast<std::size_t>(row * w.stride(0)) * dtype_bytes(w.dtype);
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
    const std::byte* from = w.data<std::byte>() + static_cast<std::size_t>(row * w.stride(0)) * dtype_bytes(w.dtype);
    const bool as_it_is = w.dtype == storage_ && k_ == padded_;
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
    if (source.weight.dtype == storage_) {  // an i8 row whose length is no multiple of 4
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

Status check_sources(std::span<const LinearSource> sources, DType storage) {
  if (sources.empty()) return bad_model("a linear weight needs at least one source");
  if (storage != DType::f32 && storage != DType::f16 && storage != DType::bf16 && storage != DType::i8)
    return bad_model("a linear weight is stored as f32, f16, bf16 or i8, not " + std::string(dtype_name(storage)));
  for (const LinearSource& source : sources) {
    const TensorView& w = source.weight;
    if (w.shape.rank() != 2 || w.dim(0) < 1 || w.dim(1) < 1 || (w.dim(1) > 1 && w.stride(1) != 1))
      return bad_model("a linear weight must be a row-major [N, K] matrix, not " + to_string(w.shape));
    if (w.dim(1) != sources[0].weight.dim(1))
      return bad_model("stacked linear weights disagree on K: " + to_string(sources[0].weight.shape) + " and " +
                       to_string(w.shape));
    if (w.dtype != DType::f32 && w.dtype != DType::f16 && w.dtype != DType::bf16 && w.dtype != DType::i8)
      return bad_model("a linear weight cannot be read from " + std::string(dtype_name(w.dtype)));
    if ((w.dtype == DType::i8) != (source.row_scale != nullptr))
      return bad_model("an i8 linear weight needs a scale per row, and no other may have one");
  }
  return {};
}

}  // namespace

Status LinearWeight::upload_rows(Device& device, std::span<const LinearSource> sources) {
  if (storage_ == DType::i8) return bad_model("i8 weights do not run on CUDA yet; ask for bf16");
  MSTAR_TRY_ASSIGN(panels_, Tensor::allocate(device, storage_, {num_outputs_, num_inputs_}));
  const std::size_t row_bytes = static_cast<std::size_t>(num_inputs_) * dtype_bytes(storage_);
  std::vector<std::byte> rows(panels_.bytes());
  std::vector<float> wide(static_cast<std::size_t>(num_inputs_));
  std::byte* to = rows.data();
  for (const LinearSource& source : sources) {
    for (std::int64_t row = 0; row < source.weight.dim(0); ++row, to += row_bytes) {
      widen_row(source, row, wide);
      narrow_elements(storage_, wide.data(), num_inputs_, to);
    }
  }
  const Stream stream = device.default_stream();
  device.copy_to_device(panels_.view().pointer, rows.data(), rows.size(), stream);
  device.synchronize(stream);
  return ok_status();
}

Result<LinearWeight> LinearWeight::pack(Device& device, std::span<const LinearSource> sources, DType storage,
                                        ThreadPool* pool) {
  MSTAR_TRY(check_sources(sources, storage));
  LinearWeight out;
  out.storage_ = storage;
  out.num_inputs_ = sources[0].weight.dim(1);
  out.padded_inputs_ = storage == DType::i8 ? (out.num_inputs_ + 3) / 4 * 4 : out.num_inputs_;
  std::vector<std::int64_t> first_output;  // of each source
  for (const LinearSource& source : sources) {
    first_output.push_back(out.num_outputs_);
    out.num_outputs_ += source.weight.dim(0);
  }
  if (device.id().backend == Backend::cuda) {
    MSTAR_TRY(out.upload_rows(device, sources));
    return out;
  }
  MSTAR_TRY_ASSIGN(out.panels_, Tensor::allocate(device, storage, {out.num_panels(), out.padded_inputs_, kPanel}));
  if (storage == DType::i8) {
    MSTAR_TRY_ASSIGN(out.scales_, Tensor::allocate(device, DType::f32, {out.num_panels() * kPanel}));
    MSTAR_TRY_ASSIGN(out.sums_, Tensor::allocate(device, DType::i32, {out.num_panels() * kPanel}));
    std::memset(out.scales_.view().pointer, 0, out.scales_.bytes());
    std::memset(out.sums_.view().pointer, 0, out.sums_.bytes());
  }

  const auto pack_panel = [&](std::int64_t panel, PanelRows& rows) {
    const std::int64_t first = panel * kPanel;
    const int count = static_cast<int>(std::min<std::int64_t>(kPanel, out.num_outputs_ - first));
    for (int column = 0; column < count; ++column) {
      const std::int64_t output = first + column;
      const auto source = static_cast<std::size_t>(std::upper_bound(first_output.begin(), first_output.end(), output) -
                                                   first_output.begin()) -
                          1;
      const auto quantised = rows.add(column, sources[source], output - first_output[source]);
      if (storage != DType::i8) continue;
      out.scales_.view().data<float>()[output] = quantised.scale;
      out.sums_.view().data<std::int32_t>()[output] = quantised.sum;
    }
    void* to = const_cast<void*>(out.panel(panel));
    if (storage == DType::f16 || storage == DType::bf16) {
      transpose<std::uint16_t>(rows.rows(), count, out.num_inputs_, to);
    } else {
      transpose<std::uint32_t>(rows.rows(), count, out.padded_inputs_ / (storage == DType::i8 ? 4 : 1), to);
    }
  };
  // A tile has its own buffers: a run of panels.
  constexpr std::int64_t kPanelsAtOnce = 4;
  const std::int64_t num_tiles = (out.num_panels() + kPanelsAtOnce - 1) / kPanelsAtOnce;
  const auto pack_tile = [&](std::int64_t tile, int) {
    PanelRows rows(out.num_inputs_, out.padded_inputs_, storage);
    for (std::int64_t panel = tile * kPanelsAtOnce; panel < std::min(out.num_panels(), (tile + 1) * kPanelsAtOnce);
         ++panel)
      pack_panel(panel, rows);
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
  for (std::int64_t i = 0; i < num_inputs_; ++i) {
    const std::int64_t at = i * kPanel + column;
    switch (storage_) {
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
