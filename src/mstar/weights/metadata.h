// The key-value metadata of a GGUF file: hyperparameters and the tokenizer of its model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::weights {

// In the order of GGUF's numbers.
enum class MetadataType : std::uint8_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
std::string_view metadata_type_name(MetadataType type);
// Bytes of a number or boolean in the file; 0 for strings and arrays.
std::size_t metadata_type_bytes(MetadataType type);

// Elements of one type. Numbers stay in the file, unaligned; strings and inner arrays have their list here.
struct MetadataArray {
  MetadataType element = MetadataType::u8;
  std::uint64_t count = 0;
  std::span<const std::byte> numbers;  // count x metadata_type_bytes(element)
  std::vector<std::string_view> strings;
  std::vector<MetadataArray> arrays;

  // Element i < count of an array of numbers or booleans; nothing when it is of another kind, or does not fit.
  std::optional<std::int64_t> integer(std::uint64_t i) const;
  std::optional<double> number(std::uint64_t i) const;
};

struct MetadataValue {
  MetadataType type = MetadataType::u8;
  std::variant<std::int64_t, std::uint64_t, double, std::string_view, MetadataArray> value;  // boolean: 0 or 1
};

// Borrows from the file's bytes. Immutable once read; any thread.
class Metadata {
 public:
  struct Entry {
    std::string_view key;
    MetadataValue value;
  };
  // False when the key is there already.
  bool add(std::string_view key, MetadataValue value);
  const MetadataValue* find(std::string_view key) const;
  std::span<const Entry> entries() const { return entries_; }

  // By key. Errors: bad_model that names the key, when it is missing or of another kind. integer() takes whole numbers
  // of any width that fit; number() takes those and floats.
  Result<std::int64_t> integer(std::string_view key) const;
  Result<double> number(std::string_view key) const;
  Result<bool> boolean(std::string_view key) const;
  Result<std::string_view> string(std::string_view key) const;
  Result<const MetadataArray*> array(std::string_view key) const;

 private:
  Result<const MetadataValue*> expect(std::string_view key) const;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_key_;
};

}  // namespace mstar::weights
