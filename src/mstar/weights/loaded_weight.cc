#include "mstar/weights/loaded_weight.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "mstar/base/check.h"

namespace mstar::weights {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{16} << 20;

float widen(Half v) { return to_float(v); }
float widen(BFloat16 v) { return to_float(v); }
template <class T>
requires std::is_integral_v<T>
float widen(T v) { return static_cast<float>(v); }

// `from` may be unaligned.
template <class T>
void widen_elements(const std::byte* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    to[i] = widen(value);
  }
}

void widen_row(const WeightPart& part, std::int64_t row, float* to) {
  const std::int64_t n = part.row_elements;
  if (!part.rows) {
    std::fill(to, to + n, 0.0f);
    return;
  }
  const std::byte* from = part.rows + row * part.row_stride_bytes;
  if (part.type.is_blocks()) return dequantise(part.type.blocks(), from, n, to);
  switch (part.type.dtype()) {
    case DType::f32:
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
      break;
    case DType::f16:
      widen_elements<Half>(from, n, to);
      break;
    case DType::bf16:
      widen_elements<BFloat16>(from, n, to);
      break;
    case DType::i8:
      widen_elements<std::int8_t>(from, n, to);
      break;
    case DType::i16:
      widen_elements<std::int16_t>(from, n, to);
      break;
    case DType::i32:
      widen_elements<std::int32_t>(from, n, to);
      break;
    case DType::i64:
      widen_elements<std::int64_t>(from, n, to);
      break;
    default:
      widen_elements<std::uint8_t>(from, n, to);
      break;  // u8, boolean: no reader makes others
  }
  if (!part.divisors.empty()) {
    const float divisor = part.divisors[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < n; ++i) to[i] /= divisor;
  }
}

void narrow_row(const std::vector<float>& row, DType dtype, std::byte* to) {
  if (dtype == DType::f32) {
    std::memcpy(to, row.data(), row.size() * sizeof(float));
  } else if (dtype == DType::f16) {
    auto* out = reinterpret_cast<Half*>(to);
    for (std::size_t i = 0; i < row.size(); ++i) out[i] = to_half(row[i]);
  } else {
    auto* out = reinterpret_cast<BFloat16*>(to);
    for (std::size_t i = 0; i < row.size(); ++i) out[i] = to_bfloat16(row[i]);
  }
}

// One row in `dtype` at `to`, which is aligned for it; `scratch` is one row wide.
void write_row(const WeightPart& part, std::int64_t row, DType dtype, std::byte* to, std::vector<float>& scratch) {
  if (part.rows && part.type == dtype && part.divisors.empty()) {
    std::memcpy(to, part.rows + row * part.row_stride_bytes,
                static_cast<std::size_t>(part.row_elements) * dtype_bytes(dtype));
  } else if (!part.rows) {
    std::memset(to, 0, static_cast<std::size_t>(part.row_elements) * dtype_bytes(dtype));
  } else {
    widen_row(part, row, scratch.data());
    narrow_row(scratch, dtype, to);
  }
}

// Writes rows one after the other into device memory: straight on the CPU, through a block of ordinary memory
// elsewhere. To pin one for each of a model's thousand small tensors would take longer than all that is copied.
class RowWriter {
 public:
  RowWriter(Device& device, std::byte* to, std::size_t row_bytes, std::int64_t num_rows)
      : device_(device), to_(to), row_bytes_(row_bytes), direct_(device.id().backend == Backend::cpu) {
    if (direct_) return;
    const std::size_t most = std::max(kStagingBytes / std::max<std::size_t>(row_bytes_, 1), std::size_t{1});
    capacity_ = std::min(most, static_cast<std::size_t>(num_rows)) * row_bytes_;
    staging_ = std::make_unique_for_overwrite<std::byte[]>(capacity_);
  }
  std::byte* next_row() {
    if (direct_) return std::exchange(to_, to_ + row_bytes_);
    if (used_ + row_bytes_ > capacity_) flush();
    return staging_.get() + std::exchange(used_, used_ + row_bytes_);
  }
  void flush() {
    if (direct_ || used_ == 0) return;
    device_.copy_to_device(to_, staging_.get(), used_, device_.default_stream());
    device_.synchronize(device_.default_stream());
    to_ += std::exchange(used_, 0);
  }

 private:
  Device& device_;
  std::byte* to_;
  std::size_t row_bytes_;
  bool direct_;
  std::unique_ptr<std::byte[]> staging_;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
};

bool is_aligned(const WeightPart& part) {
  const std::size_t element = part.type.is_blocks() ? 1 : part.type.unit_bytes();  // blocks are read at any address
  return part.rows && reinterpret_cast<std::uintptr_t>(part.rows) % element == 0 &&
         static_cast<std::size_t>(part.row_stride_bytes) % element == 0;
}

}  // namespace

std::int64_t Cut::length() const {
  std::int64_t out = 0;
  for (const AxisRange& range : ranges) out += range.count();
  return out;
}

StoredType LoadedWeight::stored_type() const {
  const WeightPart* first = nullptr;
  for (const WeightPart& part : parts_) {
    if (!part.rows) continue;
    if (first && first->type != part.type) return DType::f32;
    first = &part;
  }
  return first ? first->type : StoredType(DType::f32);
}

LoadedWeight LoadedWeight::rows(std::int64_t begin, std::int64_t end) const {
  MSTAR_CHECK(shape_.rank() >= 1 && 0 <= begin && begin <= end && end <= shape_[0]);
  std::vector<WeightPart> kept;
  std::int64_t at = 0;
  for (const WeightPart& part : parts_) {
    const std::int64_t from = std::clamp(begin - at, std::int64_t{0}, part.num_rows);
    const std::int64_t to = std::clamp(end - at, std::int64_t{0}, part.num_rows);
    at += part.num_rows;
    if (from == to) continue;
    WeightPart cut = part;
    cut.num_rows = to - from;
    if (cut.rows) cut.rows += from * part.row_stride_bytes;
    if (!part.divisors.empty()) cut.divisors.assign(part.divisors.begin() + from, part.divisors.begin() + to);
    kept.push_back(std::move(cut));
  }
  Shape shape = shape_;
  shape[0] = end - begin;
  LoadedWeight out(home_, shape, std::move(kept));
  out.copies_ = copies_;
  return out;
}

Result<WeightPart> LoadedWeight::columns_of(const WeightPart& part, const Cut& cut,
                                            std::vector<std::shared_ptr<const std::byte[]>>& copies) const {
  const std::int64_t unit = part.row_elements / shape_[1];  // elements of a column
  const std::int64_t block = part.type.unit_elements();
  WeightPart out = part;
  out.row_elements = cut.length() * unit;
  for (const AxisRange& range : cut.ranges)
    if (part.rows && (range.begin * unit % block != 0 || range.end * unit % block != 0))
      return bad_model("'" + home_ + "' cannot be cut at columns " + std::to_string(range.begin) + " and " +
                       std::to_string(range.end) + ": '" + part.source + "' is in blocks of " + std::to_string(block));
  if (!part.rows) return out;
  if (cut.ranges.size() == 1) {
    out.rows += part.type.row_bytes(cut.ranges[0].begin * unit);
    return out;
  }
  const std::size_t row_bytes = part.type.row_bytes(out.row_elements);
  auto copy = std::make_shared<std::byte[]>(row_bytes * static_cast<std::size_t>(part.num_rows));
  std::byte* to = copy.get();
  for (std::int64_t row = 0; row < part.num_rows; ++row)
    for (const AxisRange& range : cut.ranges) {
      const std::size_t bytes = part.type.row_bytes(range.count() * unit);
      std::memcpy(to, part.rows + row * part.row_stride_bytes + part.type.row_bytes(range.begin * unit), bytes);
      to += bytes;
    }
  out.rows = copy.get();
  out.row_stride_bytes = static_cast<std::int64_t>(row_bytes);
  copies.push_back(std::move(copy));
  return out;
}

Result<LoadedWeight> LoadedWeight::cut(const Cut& cut) const {
  if (cut.is_whole()) return *this;
  const bool has_axis = (cut.axis == 0 || cut.axis == 1) && cut.axis < shape_.rank();
  for (const AxisRange& range : cut.ranges)
    if (!has_axis || range.begin < 0 || range.begin >= range.end || range.end > shape_[cut.axis])
      return bad_model("'" + home_ + "' " + to_string(shape_) + " has no part [" + std::to_string(range.begin) + ", " +
                       std::to_string(range.end) + ") of axis " + std::to_string(cut.axis));
  Shape shape = shape_;
  shape[cut.axis] = cut.length();
  LoadedWeight out(home_, shape, {});
  out.copies_ = copies_;
  if (cut.axis == 0) {
    for (const AxisRange& range : cut.ranges) {
      LoadedWeight own = rows(range.begin, range.end);
      std::move(own.parts_.begin(), own.parts_.end(), std::back_inserter(out.parts_));
    }
    return out;
  }
  for (const WeightPart& part : parts_) {
    MSTAR_TRY_ASSIGN(WeightPart own, columns_of(part, cut, out.copies_));
    out.parts_.push_back(std::move(own));
  }
  return out;
}

void LoadedWeight::to_f32(std::span<float> to) const {
  MSTAR_CHECK(static_cast<std::int64_t>(to.size()) == shape_.num_elements());
  if (to.empty()) return;  // there may be any number of rows without elements
  float* at = to.data();
  for (const WeightPart& part : parts_)
    for (std::int64_t row = 0; row < part.num_rows; ++row, at += part.row_elements) widen_row(part, row, at);
}

void LoadedWeight::rows_to_f32(std::int64_t begin, std::int64_t end, std::span<float> to) const {
  rows(begin, end).to_f32(to);
}

std::vector<float> LoadedWeight::to_f32() const {
  std::vector<float> out(static_cast<std::size_t>(shape_.num_elements()));
  to_f32(out);
  return out;
}

Result<Tensor> LoadedWeight::to_tensor(Device& device, DType dtype) const {
  const bool is_float = dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
  for (const WeightPart& part : parts_)
    if (!is_float && (part.type != dtype || !part.divisors.empty()))
      return bad_model("'" + home_ + "' is stored as " + std::string(part.type.name()) +
                       (part.divisors.empty() ? "" : " with a scale") + " and cannot become " +
                       std::string(dtype_name(dtype)));
  MSTAR_TRY_ASSIGN(Tensor out, Tensor::allocate(device, dtype, shape_));
  if (shape_.num_elements() == 0) return out;
  const std::int64_t row_elements = parts_.front().row_elements;
  std::vector<float> scratch(static_cast<std::size_t>(row_elements));
  RowWriter writer(device, out.view().data<std::byte>(), static_cast<std::size_t>(row_elements) * dtype_bytes(dtype),
                   shape_.num_elements() / row_elements);
  for (const WeightPart& part : parts_)
    for (std::int64_t row = 0; row < part.num_rows; ++row) write_row(part, row, dtype, writer.next_row(), scratch);
  writer.flush();
  return out;
}

AlignedParts LoadedWeight::aligned() const {
  AlignedParts out;
  for (const WeightPart& part : parts_) {
    const std::size_t row_bytes = part.type.row_bytes(part.row_elements);
    const std::byte* data = part.rows;
    std::int64_t stride_bytes = part.row_stride_bytes;
    if (!is_aligned(part)) {
      auto copy =
          std::make_unique<std::byte[]>(std::max<std::size_t>(row_bytes * static_cast<std::size_t>(part.num_rows), 1));
      for (std::int64_t row = 0; part.rows && row_bytes && row < part.num_rows; ++row)
        std::memcpy(copy.get() + static_cast<std::size_t>(row) * row_bytes, part.rows + row * part.row_stride_bytes,
                    row_bytes);
      data = copy.get();
      stride_bytes = static_cast<std::int64_t>(row_bytes);
      out.copies_.push_back(std::move(copy));
    }
    // TensorView has no read-only form; the contract above forbids writing.
    AlignedParts::Part aligned;
    void* const pointer = const_cast<std::byte*>(data);
    if (part.type.is_blocks()) {
      aligned.blocks = part.type.blocks();
      aligned.weight = TensorView(pointer, DType::u8, {part.num_rows, static_cast<std::int64_t>(row_bytes)});
    } else {
      aligned.weight = TensorView(pointer, part.type.dtype(), {part.num_rows, part.row_elements});
    }
    aligned.weight.strides[0] = stride_bytes / static_cast<std::int64_t>(dtype_bytes(aligned.weight.dtype));
    if (!part.divisors.empty()) {
      std::vector<float> multipliers(part.divisors.size());
      std::transform(part.divisors.begin(), part.divisors.end(), multipliers.begin(), [](float d) { return 1.0f / d; });
      out.scales_.push_back(std::move(multipliers));
      aligned.row_scale = out.scales_.back().data();
    }
    out.parts_.push_back(aligned);
  }
  return out;
}

}  // namespace mstar::weights
