#include "mstar/weights/metadata.h"

#include <cstring>
#include <string>
#include <utility>

#include "mstar/weights/names.h"

namespace mstar::weights {
namespace {

struct Row {
  std::string_view name;
  std::size_t bytes;
};
constexpr Row kRows[] = {{"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
                         {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8}};

template <class T>
T read_at(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

std::optional<std::int64_t> as_signed(std::uint64_t value) {
  if (value > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

std::optional<std::int64_t> whole_number(const MetadataValue& value) {
  if (value.type == MetadataType::boolean) return std::nullopt;
  if (const auto* is_signed = std::get_if<std::int64_t>(&value.value)) return *is_signed;
  if (const auto* is_unsigned = std::get_if<std::uint64_t>(&value.value)) return as_signed(*is_unsigned);
  return std::nullopt;
}

Error wrong_type(std::string_view key, const MetadataValue& value, const char* wanted) {
  return bad_model("metadata " + show_name(key) + " is " + std::string(metadata_type_name(value.type)) + ", not " +
                   wanted);
}

}  // namespace

std::string_view metadata_type_name(MetadataType type) { return kRows[static_cast<int>(type)].name; }
std::size_t metadata_type_bytes(MetadataType type) { return kRows[static_cast<int>(type)].bytes; }

std::optional<std::int64_t> MetadataArray::integer(std::uint64_t i) const {
  const std::size_t width = metadata_type_bytes(element);
  if (i >= count || width == 0) return std::nullopt;
  const std::byte* at = numbers.data() + i * width;
  switch (element) {
    case MetadataType::u8:
    case MetadataType::boolean:
      return read_at<std::uint8_t>(at);
    case MetadataType::i8:
      return read_at<std::int8_t>(at);
    case MetadataType::u16:
      return read_at<std::uint16_t>(at);
    case MetadataType::i16:
      return read_at<std::int16_t>(at);
    case MetadataType::u32:
      return read_at<std::uint32_t>(at);
    case MetadataType::i32:
      return read_at<std::int32_t>(at);
    case MetadataType::u64:
      return as_signed(read_at<std::uint64_t>(at));
    case MetadataType::i64:
      return read_at<std::int64_t>(at);
    default:
      return std::nullopt;
  }
}

std::optional<double> MetadataArray::number(std::uint64_t i) const {
  if (i >= count) return std::nullopt;
  if (element == MetadataType::f32) return static_cast<double>(read_at<float>(numbers.data() + i * sizeof(float)));
  if (element == MetadataType::f64) return read_at<double>(numbers.data() + i * sizeof(double));
  const auto whole = integer(i);
  if (!whole) return std::nullopt;
  return static_cast<double>(*whole);
}

bool Metadata::add(std::string_view key, MetadataValue value) {
  if (!by_key_.emplace(key, entries_.size()).second) return false;
  entries_.push_back({key, std::move(value)});
  return true;
}

const MetadataValue* Metadata::find(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &entries_[found->second].value;
}

Result<const MetadataValue*> Metadata::expect(std::string_view key) const {
  if (const MetadataValue* value = find(key)) return value;
  return bad_model("metadata " + show_name(key) + " is missing");
}

Result<std::int64_t> Metadata::integer(std::string_view key) const {
  MSTAR_TRY_ASSIGN(const MetadataValue* value, expect(key));
  if (const auto whole = whole_number(*value)) return *whole;
  return wrong_type(key, *value, "a whole number below 2^63");
}

Result<double> Metadata::number(std::string_view key) const {
  MSTAR_TRY_ASSIGN(const MetadataValue* value, expect(key));
  if (const auto* real = std::get_if<double>(&value->value)) return *real;
  if (const auto whole = whole_number(*value)) return static_cast<double>(*whole);
  return wrong_type(key, *value, "a number");
}

Result<bool> Metadata::boolean(std::string_view key) const {
  MSTAR_TRY_ASSIGN(const MetadataValue* value, expect(key));
  if (value->type != MetadataType::boolean) return wrong_type(key, *value, "a boolean");
  return std::get<std::uint64_t>(value->value) != 0;
}

Result<std::string_view> Metadata::string(std::string_view key) const {
  MSTAR_TRY_ASSIGN(const MetadataValue* value, expect(key));
  if (const auto* text = std::get_if<std::string_view>(&value->value)) return *text;
  return wrong_type(key, *value, "a string");
}

Result<const MetadataArray*> Metadata::array(std::string_view key) const {
  MSTAR_TRY_ASSIGN(const MetadataValue* value, expect(key));
  if (const auto* array = std::get_if<MetadataArray>(&value->value)) return array;
  return wrong_type(key, *value, "an array");
}

}  // namespace mstar::weights
