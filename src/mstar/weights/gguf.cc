#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "mstar/base/span_io.h"
#include "mstar/weights/formats.h"
#include "mstar/weights/names.h"

namespace mstar::weights {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kVersion = 3, kSameLayout = 2;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::size_t kMaxKeyBytes = 65535;  // of the format's description
constexpr int kMaxDepth = 8;                 // of arrays in arrays
// The least that one of them takes in the file: an upper bound of every count, before anything is made from it.
constexpr std::size_t kMinPairBytes = 8 + 4 + 1;
constexpr std::size_t kMinWeightBytes = 8 + 4 + 4 + 8;
constexpr std::size_t kMinStringBytes = 8;
constexpr std::size_t kMinArrayBytes = 4 + 8;

struct TypeRow {
  std::uint32_t number;
  std::string_view name;
  std::optional<StoredType> type;  // nothing: known, but not read
};
constexpr TypeRow kTypes[] = {{0, "F32", DType::f32},
                              {1, "F16", DType::f16},
                              {2, "Q4_0", BlockFormat::q4_0},
                              {3, "Q4_1", BlockFormat::q4_1},
                              {6, "Q5_0", BlockFormat::q5_0},
                              {7, "Q5_1", BlockFormat::q5_1},
                              {8, "Q8_0", BlockFormat::q8_0},
                              {9, "Q8_1", {}},
                              {10, "Q2_K", {}},
                              {11, "Q3_K", {}},
                              {12, "Q4_K", BlockFormat::q4_k},
                              {13, "Q5_K", BlockFormat::q5_k},
                              {14, "Q6_K", BlockFormat::q6_k},
                              {15, "Q8_K", {}},
                              {16, "IQ2_XXS", {}},
                              {17, "IQ2_XS", {}},
                              {18, "IQ3_XXS", {}},
                              {19, "IQ1_S", {}},
                              {20, "IQ4_NL", {}},
                              {21, "IQ3_S", {}},
                              {22, "IQ2_S", {}},
                              {23, "IQ4_XS", {}},
                              {24, "I8", DType::i8},
                              {25, "I16", DType::i16},
                              {26, "I32", DType::i32},
                              {27, "I64", DType::i64},
                              {28, "F64", {}},
                              {29, "IQ1_M", {}},
                              {30, "BF16", DType::bf16},
                              {34, "TQ1_0", {}},
                              {35, "TQ2_0", {}},
                              {39, "MXFP4", {}}};

Result<std::string_view> read_string(ByteReader& reader, std::string_view what) {
  MSTAR_TRY_ASSIGN(const auto length, reader.read<std::uint64_t>(what));
  MSTAR_TRY_ASSIGN(const auto bytes, reader.take(length, what));
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Status check_count(const ByteReader& reader, std::uint64_t count, std::size_t least_bytes, const std::string& what) {
  if (count <= reader.remaining() / least_bytes) return ok_status();
  return bad_model(what + " of " + std::to_string(count) + " does not fit into the " +
                   std::to_string(reader.remaining()) + " bytes left");
}

Result<MetadataType> read_type(ByteReader& reader, const std::string& what) {
  MSTAR_TRY_ASSIGN(const auto number, reader.read<std::uint32_t>(what));
  if (number > static_cast<std::uint32_t>(MetadataType::f64))
    return bad_model(what + ": value type " + std::to_string(number) + " is unknown");
  return static_cast<MetadataType>(number);
}

Result<MetadataArray> read_array(ByteReader& reader, const std::string& what, int depth) {
  if (depth > kMaxDepth) return bad_model(what + ": arrays more than " + std::to_string(kMaxDepth) + " deep");
  MetadataArray out;
  MSTAR_TRY_ASSIGN(out.element, read_type(reader, what));
  MSTAR_TRY_ASSIGN(out.count, reader.read<std::uint64_t>(what));
  const std::size_t width = metadata_type_bytes(out.element);
  const bool of_strings = out.element == MetadataType::string;
  MSTAR_TRY(check_count(reader, out.count,
                        width        ? width
                        : of_strings ? kMinStringBytes
                                     : kMinArrayBytes,
                        what + ": a count"));
  if (width) {
    MSTAR_TRY_ASSIGN(out.numbers, reader.take(out.count * width, what));
    return out;
  }
  for (std::uint64_t i = 0; i < out.count; ++i) {
    if (of_strings) {
      MSTAR_TRY_ASSIGN(const auto text, read_string(reader, what));
      out.strings.push_back(text);
    } else {
      MSTAR_TRY_ASSIGN(MetadataArray inner, read_array(reader, what, depth + 1));
      out.arrays.push_back(std::move(inner));
    }
  }
  return out;
}

template <class Wide, class T>
Status read_number(ByteReader& reader, const std::string& what, MetadataValue& to) {
  MSTAR_TRY_ASSIGN(const T value, reader.read<T>(what));
  to.value = static_cast<Wide>(value);
  return ok_status();
}

Status read_value(ByteReader& reader, const std::string& what, MetadataValue& to) {
  MSTAR_TRY_ASSIGN(to.type, read_type(reader, what));
  switch (to.type) {
    case MetadataType::u8:
      return read_number<std::uint64_t, std::uint8_t>(reader, what, to);
    case MetadataType::i8:
      return read_number<std::int64_t, std::int8_t>(reader, what, to);
    case MetadataType::u16:
      return read_number<std::uint64_t, std::uint16_t>(reader, what, to);
    case MetadataType::i16:
      return read_number<std::int64_t, std::int16_t>(reader, what, to);
    case MetadataType::u32:
      return read_number<std::uint64_t, std::uint32_t>(reader, what, to);
    case MetadataType::i32:
      return read_number<std::int64_t, std::int32_t>(reader, what, to);
    case MetadataType::u64:
      return read_number<std::uint64_t, std::uint64_t>(reader, what, to);
    case MetadataType::i64:
      return read_number<std::int64_t, std::int64_t>(reader, what, to);
    case MetadataType::f32:
      return read_number<double, float>(reader, what, to);
    case MetadataType::f64:
      return read_number<double, double>(reader, what, to);
    case MetadataType::boolean: {
      MSTAR_TRY_ASSIGN(const auto value, reader.read<std::uint8_t>(what));
      if (value > 1) return bad_model(what + ": a boolean is " + std::to_string(value));
      to.value = static_cast<std::uint64_t>(value);
      return ok_status();
    }
    case MetadataType::string: {
      MSTAR_TRY_ASSIGN(const auto text, read_string(reader, what));
      to.value = text;
      return ok_status();
    }
    case MetadataType::array: {
      MSTAR_TRY_ASSIGN(MetadataArray array, read_array(reader, what, 1));
      to.value = std::move(array);
      return ok_status();
    }
  }
  return bad_model(what + ": value type is unknown");
}

Status read_pairs(ByteReader& reader, std::uint64_t count, Metadata& to) {
  for (std::uint64_t i = 0; i < count; ++i) {
    MSTAR_TRY_ASSIGN(const auto key, read_string(reader, "a metadata key"));
    if (key.empty() || key.size() > kMaxKeyBytes)
      return bad_model("a metadata key of " + std::to_string(key.size()) + " bytes");
    const std::string what = "metadata " + show_name(key);
    MetadataValue value;
    MSTAR_TRY(read_value(reader, what, value));
    if (!to.add(key, std::move(value))) return bad_model(what + " is there twice");
  }
  return ok_status();
}

Result<StoredType> stored_type(std::uint32_t number, const std::string& what) {
  for (const TypeRow& row : kTypes) {
    if (row.number != number) continue;
    if (row.type) return *row.type;
    return bad_model(what + ": type " + std::string(row.name) + " is not one that this program reads");
  }
  return bad_model(what + ": type number " + std::to_string(number) + " is unknown");
}

// One line of the table of weights; dims as in the file, the innermost first.
struct WeightEntry {
  std::string_view name;
  StoredType type;
  std::vector<std::uint64_t> dims;
  std::uint64_t offset = 0;
};

Result<WeightEntry> read_entry(ByteReader& reader) {
  WeightEntry out;
  MSTAR_TRY_ASSIGN(out.name, read_string(reader, "a weight's name"));
  const std::string what = "weight " + show_name(out.name);
  MSTAR_TRY_ASSIGN(const auto rank, reader.read<std::uint32_t>(what));
  if (rank > static_cast<std::uint32_t>(kMaxRank))
    return bad_model(what + ": " + std::to_string(rank) + " dimensions are more than " + std::to_string(kMaxRank));
  for (std::uint32_t axis = 0; axis < rank; ++axis) {
    MSTAR_TRY_ASSIGN(const auto dim, reader.read<std::uint64_t>(what));
    out.dims.push_back(dim);
  }
  MSTAR_TRY_ASSIGN(const auto number, reader.read<std::uint32_t>(what));
  MSTAR_TRY_ASSIGN(out.type, stored_type(number, what));
  MSTAR_TRY_ASSIGN(out.offset, reader.read<std::uint64_t>(what));
  std::reverse(out.dims.begin(), out.dims.end());
  return out;
}

Result<StoredWeight> place(const WeightEntry& entry, std::span<const std::byte> data, std::uint64_t alignment,
                           std::string_view file) {
  const std::string what = "weight " + show_name(entry.name);
  MSTAR_TRY_ASSIGN(const std::uint64_t size, weight_bytes(entry.name, entry.type, entry.dims));
  if (entry.offset % alignment != 0)
    return bad_model(what + ": its offset " + std::to_string(entry.offset) + " is no multiple of the alignment " +
                     std::to_string(alignment));
  if (entry.offset > data.size() || size > data.size() - entry.offset)
    return bad_model(what + ": " + std::to_string(size) + " bytes at " + std::to_string(entry.offset) +
                     " lie outside of the " + std::to_string(data.size()) + " bytes of data");
  return stored_weight(entry.name, entry.type, entry.dims,
                       data.subspan(static_cast<std::size_t>(entry.offset), static_cast<std::size_t>(size)), file);
}

Status check_overlaps(const std::vector<StoredWeight>& weights) {
  std::vector<const StoredWeight*> sorted;
  for (const StoredWeight& weight : weights)
    if (!weight.bytes.empty()) sorted.push_back(&weight);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->bytes.data() < b->bytes.data(); });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i - 1]->bytes.data() + sorted[i - 1]->bytes.size() > sorted[i]->bytes.data())
      return bad_model("weight " + show_name(sorted[i]->name) + ": its bytes overlap those of " +
                       show_name(sorted[i - 1]->name));
  return ok_status();
}

Result<std::uint64_t> alignment_of(const Metadata& metadata) {
  if (!metadata.find("general.alignment")) return kDefaultAlignment;
  MSTAR_TRY_ASSIGN(const std::int64_t alignment, metadata.integer("general.alignment"));
  if (alignment < 1 || !std::has_single_bit(static_cast<std::uint64_t>(alignment)))
    return bad_model("metadata 'general.alignment' is " + std::to_string(alignment) + ", no power of two");
  return static_cast<std::uint64_t>(alignment);
}

Status check_version(ByteReader& reader) {
  MSTAR_TRY_ASSIGN(const auto magic, reader.take(kMagic.size(), "the magic"));
  if (std::string_view(reinterpret_cast<const char*>(magic.data()), magic.size()) != kMagic)
    return bad_model("it does not begin with 'GGUF'");
  MSTAR_TRY_ASSIGN(const auto version, reader.read<std::uint32_t>("the version"));
  if (version == kVersion || version == kSameLayout) return ok_status();
  if (version == kVersion << 24) return bad_model("a big-endian file; this program reads little-endian ones");
  return bad_model("GGUF version " + std::to_string(version) + "; this program reads versions 2 and 3");
}

Result<GgufModel> read_model(std::span<const std::byte> bytes, std::string_view file) {
  ByteReader reader(bytes);
  MSTAR_TRY(check_version(reader));
  MSTAR_TRY_ASSIGN(const auto num_weights, reader.read<std::uint64_t>("the number of weights"));
  MSTAR_TRY_ASSIGN(const auto num_pairs, reader.read<std::uint64_t>("the number of metadata pairs"));
  MSTAR_TRY(check_count(reader, num_pairs, kMinPairBytes, "a number of metadata pairs"));
  MSTAR_TRY(check_count(reader, num_weights, kMinWeightBytes, "a number of weights"));
  GgufModel model;
  MSTAR_TRY(read_pairs(reader, num_pairs, model.metadata));
  MSTAR_TRY_ASSIGN(const std::uint64_t alignment, alignment_of(model.metadata));
  std::vector<WeightEntry> entries;
  for (std::uint64_t i = 0; i < num_weights; ++i) {
    MSTAR_TRY_ASSIGN(WeightEntry entry, read_entry(reader));
    entries.push_back(std::move(entry));
  }
  // A file without weights may end before the padding.
  const std::uint64_t padding = (alignment - reader.position() % alignment) % alignment;
  const auto data = bytes.subspan(reader.position() + std::min<std::uint64_t>(padding, reader.remaining()));
  for (const WeightEntry& entry : entries) {
    MSTAR_TRY_ASSIGN(StoredWeight weight, place(entry, data, alignment, file));
    model.weights.push_back(std::move(weight));
  }
  MSTAR_TRY(check_overlaps(model.weights));
  return model;
}

}  // namespace

Result<GgufModel> read_gguf(std::span<const std::byte> bytes, std::string_view file) {
  auto model = read_model(bytes, file);
  if (!model) return std::move(model.error()).in(show_name(file));
  return model;
}

}  // namespace mstar::weights
