#include <simdjson.h>

#include <algorithm>
#include <unordered_set>

#include "mstar/base/span_io.h"
#include "mstar/weights/formats.h"
#include "mstar/weights/names.h"

namespace mstar::weights {
namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {{"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16},
                                 {"I8", DType::i8},   {"U8", DType::u8},   {"I16", DType::i16},
                                 {"I32", DType::i32}, {"I64", DType::i64}, {"BOOL", DType::boolean}};

struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t weight = 0;
};

Error damaged(std::string_view file, const std::string& what) { return bad_model(show_name(file) + ": " + what); }
Error damaged(std::string_view file, std::string_view name, const std::string& what) {
  return damaged(file, "weight " + show_name(name) + ": " + what);
}

std::string reason(simdjson::error_code code) { return simdjson::error_message(code); }

// A JSON object; the parser owns the tree, so both live together.
struct Document {
  dom::parser parser;
  dom::object root;
};
Status parse_object(std::span<const std::byte> text, std::string_view file, Document& document) {
  dom::element root;
  if (const auto code = document.parser.parse(reinterpret_cast<const char*>(text.data()), text.size()).get(root))
    return damaged(file, "its JSON header cannot be read: " + reason(code));
  if (root.get_object().get(document.root)) return damaged(file, "its JSON header is not an object");
  return ok_status();
}

Result<std::vector<std::uint64_t>> numbers(dom::element parent, const char* key, std::string_view file,
                                           std::string_view name, std::size_t max_count) {
  dom::array array;
  if (parent.at_key(key).get_array().get(array))
    return damaged(file, name, "'" + std::string(key) + "' is missing or no list");
  std::vector<std::uint64_t> out;
  for (const dom::element element : array) {
    std::uint64_t value = 0;
    if (element.get_uint64().get(value))
      return damaged(file, name, "'" + std::string(key) + "' holds something else than whole numbers from 0 up");
    if (out.size() == max_count)
      return damaged(file, name,
                     "'" + std::string(key) + "' holds more than " + std::to_string(max_count) + " numbers");
    out.push_back(value);
  }
  return out;
}

Result<DType> read_dtype(dom::element element, std::string_view file, std::string_view name) {
  std::string_view text;
  if (element.at_key("dtype").get_string().get(text)) return damaged(file, name, "'dtype' is missing or no string");
  for (const DTypeName& each : kDTypes)
    if (each.name == text) return each.dtype;
  return damaged(file, name, "dtype " + show_name(text) + " is not one that this program reads");
}

// The data must be covered exactly once, in any order.
Status check_extents(std::vector<Extent> extents, const std::vector<StoredWeight>& weights, std::uint64_t data_bytes,
                     std::string_view file) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t at = 0;
  for (const Extent& extent : extents) {
    const std::string& name = weights[extent.weight].name;
    if (extent.begin < at) return damaged(file, name, "its bytes overlap those of another weight");
    if (extent.begin > at)
      return damaged(file, name, "no weight owns the " + std::to_string(extent.begin - at) + " bytes before it");
    at = extent.end;
  }
  if (at != data_bytes) return damaged(file, "no weight owns its last " + std::to_string(data_bytes - at) + " bytes");
  return ok_status();
}

Result<StoredWeight> read_entry(std::string_view name, dom::element element, std::span<const std::byte> data,
                                std::string_view file, Extent& extent) {
  if (!element.is_object()) return damaged(file, name, "its entry is not an object");
  MSTAR_TRY_ASSIGN(const DType dtype, read_dtype(element, file, name));
  MSTAR_TRY_ASSIGN(const auto dims, numbers(element, "shape", file, name, kMaxRank));
  MSTAR_TRY_ASSIGN(const auto offsets, numbers(element, "data_offsets", file, name, 2));
  if (offsets.size() != 2) return damaged(file, name, "'data_offsets' must hold two numbers");
  extent.begin = offsets[0];
  extent.end = offsets[1];
  if (extent.begin > extent.end || extent.end > data.size())
    return damaged(file, name,
                   "bytes " + std::to_string(extent.begin) + " to " + std::to_string(extent.end) +
                       " lie outside of the " + std::to_string(data.size()) + " bytes of data");
  const auto bytes =
      data.subspan(static_cast<std::size_t>(extent.begin), static_cast<std::size_t>(extent.end - extent.begin));
  auto weight = stored_weight(name, dtype, dims, bytes, file);
  if (!weight) return std::move(weight.error()).in(show_name(file));
  return weight;
}

}  // namespace

Result<std::vector<StoredWeight>> read_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  ByteReader reader(bytes);
  auto length = reader.read<std::uint64_t>("the header length");
  if (!length) return std::move(length.error()).in(show_name(file));
  if (*length > kMaxHeaderBytes)
    return damaged(file, "a header of " + std::to_string(*length) + " bytes is over the limit of " +
                             std::to_string(kMaxHeaderBytes) + "; this is no safetensors file, or a damaged one");
  auto header = reader.take(*length, "the header");
  if (!header) return std::move(header.error()).in(show_name(file));
  const auto data = bytes.subspan(reader.position());

  Document document;
  MSTAR_TRY(parse_object(*header, file, document));
  std::vector<StoredWeight> weights;
  std::vector<Extent> extents;
  std::unordered_set<std::string_view> seen;
  for (const dom::key_value_pair entry : document.root) {
    if (!seen.insert(entry.key).second) return damaged(file, entry.key, "it is there twice");
    if (entry.key == "__metadata__") continue;
    Extent extent{.weight = weights.size()};
    MSTAR_TRY_ASSIGN(StoredWeight weight, read_entry(entry.key, entry.value, data, file, extent));
    weights.push_back(std::move(weight));
    extents.push_back(extent);
  }
  MSTAR_TRY(check_extents(std::move(extents), weights, data.size(), file));
  return weights;
}

Result<ShardIndex> read_shard_index(std::span<const std::byte> bytes, std::string_view file) {
  if (bytes.size() > kMaxHeaderBytes) return damaged(file, "an index over 100 MB is not read");
  Document document;
  MSTAR_TRY(parse_object(bytes, file, document));
  dom::object map;
  if (document.root.at_key("weight_map").get_object().get(map))
    return damaged(file, "'weight_map' is missing or no object");
  ShardIndex index;
  std::unordered_map<std::string_view, std::size_t> known;
  for (const dom::key_value_pair entry : map) {
    std::string_view shard;
    if (entry.value.get_string().get(shard)) return damaged(file, entry.key, "its shard is not a string");
    // Outside text: it may name a file of this directory only.
    if (shard.empty() || shard.size() > 255 ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos || shard == "." || shard == "..")
      return damaged(file, entry.key, "its shard " + show_name(shard) + " is not a plain file name");
    const auto [found, is_new] = known.emplace(shard, index.files.size());
    if (is_new) index.files.emplace_back(shard);
    index.weights.emplace_back(std::string(entry.key), found->second);
  }
  if (index.files.empty()) return damaged(file, "'weight_map' names no weights");
  return index;
}

}  // namespace mstar::weights
