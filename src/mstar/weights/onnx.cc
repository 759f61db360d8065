// ONNX: the initialisers of a model's graph. The graph itself is not read: models are written by hand.
// Source: onnx.proto3 (ONNX 1.x): ModelProto.graph = 7, GraphProto.initializer = 5, TensorProto.dims = 1,
// data_type = 2, float_data = 4, name = 8, raw_data = 9, data_location = 14.
#include <optional>
#include <string_view>

#include "mstar/weights/formats.h"
#include "mstar/weights/names.h"

namespace mstar::weights {
namespace {

// A message of protobuf's wire format, field by field.
class Message {
 public:
  explicit Message(std::span<const std::byte> bytes) : rest_(bytes) {}

  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0;           // of wire type 0
    std::span<const std::byte> bytes;  // of wire type 2
    bool has_bytes = false;
  };
  // False at the end and where the bytes are none; damaged() tells which.
  bool next(Field& out) {
    if (rest_.empty()) return false;
    std::uint64_t key = 0;
    if (!varint(key)) return damage();
    out = {.number = key >> 3, .value = 0, .bytes = {}};
    switch (key & 7) {
      case 0:
        return varint(out.value) || damage();
      case 1:
        return skip(8) || damage();
      case 2: {
        std::uint64_t length = 0;
        if (!varint(length) || length > rest_.size()) return damage();
        out.bytes = rest_.first(static_cast<std::size_t>(length));
        out.has_bytes = true;
        return skip(length);
      }
      case 5:
        return skip(4) || damage();
      default:
        return damage();
    }
  }
  bool damaged() const { return damaged_; }

 private:
  bool varint(std::uint64_t& out) {
    out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<std::uint64_t>(rest_.front());
      rest_ = rest_.subspan(1);
      out |= (byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }
  bool skip(std::uint64_t count) {
    if (count > rest_.size()) return false;
    rest_ = rest_.subspan(static_cast<std::size_t>(count));
    return true;
  }
  bool damage() {
    damaged_ = true;
    return false;
  }

  std::span<const std::byte> rest_;
  bool damaged_ = false;
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Those that weights are kept in; others are passed over.
std::optional<DType> dtype_of(std::uint64_t data_type) {
  switch (data_type) {
    case 1:
      return DType::f32;
    case 3:
      return DType::i8;
    case 6:
      return DType::i32;
    case 10:
      return DType::f16;
    case 16:
      return DType::bf16;
    default:
      return std::nullopt;
  }
}

Result<std::optional<StoredWeight>> read_tensor(std::span<const std::byte> bytes, std::string_view file) {
  const auto bad = [&](const std::string& what) { return bad_model(show_name(file) + ": " + what); };
  std::string name;
  std::span<const std::byte> data;
  std::vector<std::uint64_t> dims;
  std::uint64_t data_type = 0;
  bool is_elsewhere = false;
  Message message(bytes);
  for (Message::Field field; message.next(field);) {
    if (field.number == 1 && field.has_bytes) return bad("an array with packed dimensions");
    if (field.number == 1) dims.push_back(field.value);
    if (field.number == 2) data_type = field.value;
    if ((field.number == 4 || field.number == 9) && field.has_bytes) data = field.bytes;
    if (field.number == 8) name = text_of(field.bytes);
    if (field.number == 14) is_elsewhere = field.value != 0;
  }
  if (message.damaged()) return bad("a damaged array");
  const auto dtype = dtype_of(data_type);
  if (!dtype) return std::optional<StoredWeight>();
  if (is_elsewhere) return bad("array " + show_name(name) + " lies in another file");
  MSTAR_TRY_ASSIGN(StoredWeight out, stored_weight(name, *dtype, dims, data, file));
  return std::optional<StoredWeight>(std::move(out));
}

}  // namespace

Result<std::vector<StoredWeight>> read_onnx(std::span<const std::byte> bytes, std::string_view file) {
  std::vector<StoredWeight> out;
  bool has_graph = false;
  Message model(bytes);
  for (Message::Field part; model.next(part);) {
    if (part.number != 7 || !part.has_bytes) continue;
    has_graph = true;
    Message graph(part.bytes);
    for (Message::Field field; graph.next(field);) {
      if (field.number != 5 || !field.has_bytes) continue;
      MSTAR_TRY_ASSIGN(auto weight, read_tensor(field.bytes, file));
      if (weight) out.push_back(std::move(*weight));
    }
    if (graph.damaged()) return bad_model(show_name(file) + " is damaged");
  }
  if (model.damaged() || !has_graph) return bad_model(show_name(file) + " is no ONNX model, or is damaged");
  return out;
}

}  // namespace mstar::weights
