#include <algorithm>
#include <unordered_map>
#include <utility>

#include "mstar/base/span_io.h"
#include "mstar/weights/formats.h"
#include "mstar/weights/names.h"

namespace mstar::weights {
namespace {

constexpr std::uint32_t kBinaryVersion = 6;
// The least that one entry takes: length, NUL, rank, dtype, byte count; and a variable's name has a character.
constexpr std::size_t kMinVariableBytes = 2 + 1 + 1 + 1 + 4;
constexpr std::size_t kMinAliasBytes = 2 * (2 + 1);

constexpr DType kDTypes[] = {DType::f32, DType::i8, DType::i16, DType::i32, DType::f16, DType::bf16};

// u16 length that counts the closing NUL, then the characters.
Result<std::string_view> read_string(ByteReader& reader, std::string_view what) {
  MSTAR_TRY_ASSIGN(const auto length, reader.read<std::uint16_t>(what));
  MSTAR_TRY_ASSIGN(const auto bytes, reader.take(length, what));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.empty() || text.find('\0') != text.size() - 1)
    return bad_model(std::string(what) + " at offset " + std::to_string(reader.position() - length) +
                     " is not a string that ends with a NUL");
  return text.substr(0, text.size() - 1);
}

Result<StoredWeight> read_variable(ByteReader& reader, std::string_view file) {
  MSTAR_TRY_ASSIGN(const auto name, read_string(reader, "a variable name"));
  const std::string what = "weight " + show_name(name);
  MSTAR_TRY_ASSIGN(const auto rank, reader.read<std::uint8_t>(what));
  std::vector<std::uint64_t> dims;
  for (int axis = 0; axis < rank; ++axis) {
    MSTAR_TRY_ASSIGN(const auto dim, reader.read<std::uint32_t>(what));
    dims.push_back(dim);
  }
  MSTAR_TRY_ASSIGN(const auto dtype, reader.read<std::uint8_t>(what));
  if (dtype >= std::size(kDTypes)) return bad_model(what + ": dtype number " + std::to_string(dtype) + " is unknown");
  MSTAR_TRY_ASSIGN(const auto num_bytes, reader.read<std::uint32_t>(what));
  MSTAR_TRY_ASSIGN(const auto bytes, reader.take(num_bytes, what));
  return stored_weight(name, kDTypes[dtype], dims, bytes, file);
}

Result<std::uint32_t> read_count(ByteReader& reader, std::size_t least_bytes, std::string_view what) {
  MSTAR_TRY_ASSIGN(const auto count, reader.read<std::uint32_t>(what));
  if (count > reader.remaining() / least_bytes)
    return bad_model(std::string(what) + " of " + std::to_string(count) + " does not fit into the " +
                     std::to_string(reader.remaining()) + " bytes left");
  return count;
}

// X and X_scale: an integer weight and its divisor.
Status pair_scales(std::vector<StoredWeight>& weights) {
  std::unordered_map<std::string_view, StoredWeight*> by_name;
  for (StoredWeight& weight : weights)
    if (!by_name.emplace(weight.name, &weight).second)
      return bad_model("weight " + show_name(weight.name) + " is there twice");
  for (StoredWeight& weight : weights) {
    if (weight.type != DType::i8 && weight.type != DType::i16) continue;
    const auto found = by_name.find(weight.name + "_scale");
    if (found == by_name.end()) {
      if (weight.name.ends_with("weight"))
        return bad_model("weight " + show_name(weight.name) + " is " + std::string(weight.type.name()) +
                         " but has no '_scale' beside it");
      continue;
    }
    StoredWeight& scale = *found->second;
    const bool per_row = weight.shape.rank() >= 1 && scale.shape == Shape{weight.shape[0]};
    if (scale.type != DType::f32 || (!per_row && scale.shape.num_elements() != 1))
      return bad_model("weight " + show_name(scale.name) + ": a scale of " + show_name(weight.name) +
                       " must be f32, one number or one per row");
    weight.divisor = &scale;
    scale.is_divisor = true;
  }
  return ok_status();
}

Result<CTranslate2Model> read_model(ByteReader& reader, std::string_view file) {
  MSTAR_TRY_ASSIGN(const auto version, reader.read<std::uint32_t>("the binary version"));
  if (version != kBinaryVersion)
    return bad_model("CTranslate2 binary version " + std::to_string(version) + "; this program reads version " +
                     std::to_string(kBinaryVersion) + ": convert the model again");
  CTranslate2Model model;
  MSTAR_TRY_ASSIGN(model.spec_name, read_string(reader, "the specification name"));
  MSTAR_TRY(reader.read<std::uint32_t>("the specification revision"));
  MSTAR_TRY_ASSIGN(const auto num_variables, read_count(reader, kMinVariableBytes, "a number of variables"));
  model.weights.reserve(std::min<std::size_t>(num_variables, 4096));
  for (std::uint32_t i = 0; i < num_variables; ++i) {
    MSTAR_TRY_ASSIGN(StoredWeight weight, read_variable(reader, file));
    model.weights.push_back(std::move(weight));
  }
  MSTAR_TRY(pair_scales(model.weights));
  MSTAR_TRY_ASSIGN(const auto num_aliases, read_count(reader, kMinAliasBytes, "a number of aliases"));
  for (std::uint32_t i = 0; i < num_aliases; ++i) {
    MSTAR_TRY_ASSIGN(const auto name, read_string(reader, "an alias"));
    MSTAR_TRY_ASSIGN(const auto target, read_string(reader, "the target of an alias"));
    model.aliases.push_back({std::string(name), std::string(target)});
  }
  if (reader.remaining())
    return bad_model(std::to_string(reader.remaining()) + " bytes follow the last alias, where the file should end");
  return model;
}

}  // namespace

Result<CTranslate2Model> read_ctranslate2(std::span<const std::byte> bytes, std::string_view file) {
  ByteReader reader(bytes);
  auto model = read_model(reader, file);
  if (!model) return std::move(model.error()).in(show_name(file));
  return model;
}

}  // namespace mstar::weights
