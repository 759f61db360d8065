#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "mstar/ops/linear/linear.h"

namespace mstar {
namespace {

constexpr int kPanel = LinearWeight::kPanel;

void widen_row(const LinearSource& source, std::int64_t row, std::vector<float>& to) {
  const std::int64_t k = source.weight.dim(1);
  const std::int64_t at = row * source.weight.stride(0);
  switch (source.weight.dtype) {
    case DType::f32:
      std::memcpy(to.data(), source.weight.data<float>() + at, static_cast<std::size_t>(k) * 4);
      break;
    case DType::f16:
      for (std::int64_t i = 0; i < k; ++i)
        to[static_cast<std::size_t>(i)] = to_float(source.weight.data<Half>()[at + i]);
      break;
    case DType::bf16:
      for (std::int64_t i = 0; i < k; ++i)
        to[static_cast<std::size_t>(i)] = to_float(source.weight.data<BFloat16>()[at + i]);
      break;
    default:
      for (std::int64_t i = 0; i < k; ++i)
        to[static_cast<std::size_t>(i)] =
            static_cast<float>(source.weight.data<std::int8_t>()[at + i]) * source.row_scale[row];
  }
}

// Writes column `column` of a float panel.
template <class Element, class Narrow>
void scatter_column(const std::vector<float>& row, void* panel, int column, Narrow narrow) {
  Element* to = static_cast<Element*>(panel) + column;
  for (const float value : row) {
    *to = narrow(value);
    to += kPanel;
  }
}

void scatter_i8_column(const std::int8_t* row, std::int64_t k, void* panel, int column) {
  auto* to = static_cast<std::int8_t*>(panel);
  for (std::int64_t i = 0; i < k; ++i) to[(i / 4 * kPanel + column) * 4 + i % 4] = row[i];
}

// Rounds a row to i8 and returns its multiplier.
float quantise_row(const std::vector<float>& row, std::vector<std::int8_t>& to) {
  float largest = 0;
  for (const float value : row) largest = std::max(largest, std::fabs(value));
  const bool rounds = largest > 1e-30f;  // below, 127 / largest would overflow
  const float inverse = rounds ? 127.0f / largest : 1.0f;
  for (std::size_t i = 0; i < row.size(); ++i) to[i] = static_cast<std::int8_t>(std::nearbyint(row[i] * inverse));
  return rounds ? largest / 127.0f : 1.0f;
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
      if (storage_ == DType::f32) std::memcpy(to, wide.data(), row_bytes);
      for (std::size_t i = 0; storage_ != DType::f32 && i < wide.size(); ++i) {
        const std::uint16_t bits = storage_ == DType::f16 ? to_half(wide[i]).bits : to_bfloat16(wide[i]).bits;
        std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
      }
    }
  }
  const Stream stream = device.default_stream();
  device.copy_to_device(panels_.view().pointer, rows.data(), rows.size(), stream);
  device.synchronize(stream);
  return ok_status();
}

Result<LinearWeight> LinearWeight::pack(Device& device, std::span<const LinearSource> sources, DType storage) {
  MSTAR_TRY(check_sources(sources, storage));
  LinearWeight out;
  out.storage_ = storage;
  out.num_inputs_ = sources[0].weight.dim(1);
  out.padded_inputs_ = storage == DType::i8 ? (out.num_inputs_ + 3) / 4 * 4 : out.num_inputs_;
  for (const LinearSource& source : sources) out.num_outputs_ += source.weight.dim(0);
  if (device.id().backend == Backend::cuda) {
    MSTAR_TRY(out.upload_rows(device, sources));
    return out;
  }
  const std::int64_t padded_outputs = out.num_panels() * kPanel;
  MSTAR_TRY_ASSIGN(out.panels_, Tensor::allocate(device, storage, {out.num_panels(), out.padded_inputs_, kPanel}));
  std::memset(out.panels_.view().pointer, 0, out.panels_.bytes());
  if (storage == DType::i8) {
    MSTAR_TRY_ASSIGN(out.scales_, Tensor::allocate(device, DType::f32, {padded_outputs}));
    MSTAR_TRY_ASSIGN(out.sums_, Tensor::allocate(device, DType::i32, {padded_outputs}));
    std::memset(out.scales_.view().pointer, 0, out.scales_.bytes());
    std::memset(out.sums_.view().pointer, 0, out.sums_.bytes());
  }

  const auto k = static_cast<std::size_t>(out.num_inputs_);
  std::vector<float> wide(k);
  std::vector<std::int8_t> narrow(k);
  std::int64_t output = 0;
  for (const LinearSource& source : sources) {
    for (std::int64_t row = 0; row < source.weight.dim(0); ++row, ++output) {
      void* panel = const_cast<void*>(out.panel(output / kPanel));
      const int column = static_cast<int>(output % kPanel);
      if (storage != DType::i8) {
        widen_row(source, row, wide);
        if (storage == DType::f32) scatter_column<float>(wide, panel, column, [](float v) { return v; });
        if (storage == DType::f16) scatter_column<Half>(wide, panel, column, to_half);
        if (storage == DType::bf16) scatter_column<BFloat16>(wide, panel, column, to_bfloat16);
        continue;
      }
      float scale = 0;
      if (source.weight.dtype == DType::i8) {
        std::memcpy(narrow.data(), source.weight.data<std::int8_t>() + row * source.weight.stride(0), k);
        scale = source.row_scale[row];
      } else {
        widen_row(source, row, wide);
        scale = quantise_row(wide, narrow);
      }
      scatter_i8_column(narrow.data(), out.num_inputs_, panel, column);
      out.scales_.view().data<float>()[output] = scale;
      std::int32_t sum = 0;
      for (const std::int8_t value : narrow) sum += value;
      out.sums_.view().data<std::int32_t>()[output] = sum;
    }
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
