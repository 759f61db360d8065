#include "mstar/weights/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <system_error>
#include <utility>

#include "mstar/weights/formats.h"
#include "mstar/weights/names.h"

namespace mstar::weights {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string base_name(const fs::path& path) { return path.filename().string(); }

Result<std::vector<fs::path>> files_in(const fs::path& directory, std::string_view extension) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == extension && is_file(it->path())) files.push_back(it->path());
  if (error) return bad_model("cannot list '" + directory.string() + "': " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

constexpr int kMaxParts = 999;  // of a GGUF file
std::string five_digits(int number) {
  const std::string digits = std::to_string(number);
  return std::string(5 - digits.size(), '0') + digits;
}
std::string part_ending(int part, int num_parts) {
  return "-" + five_digits(part) + "-of-" + five_digits(num_parts) + ".gguf";
}

// The one model among the .gguf files of a directory: the only file, or the first of the only set of parts.
Result<fs::path> gguf_among(const fs::path& directory, const std::vector<fs::path>& files) {
  const auto is_later_part = [&](const fs::path& file) {
    const std::string name = base_name(file);
    const auto of = name.rfind("-of-");
    return of != std::string::npos && of >= 6 && name[of - 6] == '-' && name.substr(of - 5, 5) != "00001";
  };
  const fs::path* found = nullptr;
  for (const fs::path& file : files) {
    if (is_later_part(file)) continue;
    if (found)
      return bad_model("'" + directory.string() + "' holds several models: " + show_name(base_name(*found)) + ", " +
                       show_name(base_name(file)) + "; name one of the files");
    found = &file;
  }
  if (!found) return bad_model("'" + directory.string() + "' lacks the first part of its .gguf file");
  return *found;
}

template <class T>
std::int64_t read_as(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

std::string_view format_name(Format format) {
  switch (format) {
    case Format::safetensors:
      return "safetensors";
    case Format::gguf:
      return "GGUF";
    case Format::onnx:
      return "ONNX";
    case Format::ctranslate2:
      break;
  }
  return "CTranslate2 version 6";
}

Result<std::uint64_t> weight_bytes(std::string_view name, StoredType type, std::span<const std::uint64_t> dims) {
  const auto fail = [&](const std::string& what) { return bad_model("weight " + show_name(name) + ": " + what); };
  if (name.empty()) return bad_model("a weight has an empty name");
  if (name.size() > kMaxNameBytes)
    return fail("a name of " + std::to_string(name.size()) + " bytes is over " + std::to_string(kMaxNameBytes));
  if (dims.size() > static_cast<std::size_t>(kMaxRank))
    return fail(std::to_string(dims.size()) + " dimensions are more than " + std::to_string(kMaxRank));
  const auto unit = static_cast<std::uint64_t>(type.unit_elements());
  if (unit > 1 && (dims.empty() || dims.back() % unit != 0))
    return fail("rows of " + std::to_string(dims.empty() ? 1 : dims.back()) + " elements are not whole blocks of " +
                std::string(type.name()) + ", which are " + std::to_string(unit));
  // Zero dims count as one here, so that every partial product of a Shape stays in range.
  std::uint64_t room = type.unit_bytes();
  std::uint64_t wanted = room;
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    const std::uint64_t units = axis + 1 == dims.size() ? dims[axis] / unit : dims[axis];
    if (__builtin_mul_overflow(room, std::max<std::uint64_t>(units, 1), &room) || room > (std::uint64_t{1} << 61))
      return fail("its dimensions multiply to more than any memory holds");
    wanted *= units;
  }
  return wanted;
}

Result<StoredWeight> stored_weight(std::string_view name, StoredType type, std::span<const std::uint64_t> dims,
                                   std::span<const std::byte> bytes, std::string_view file) {
  MSTAR_TRY_ASSIGN(const std::uint64_t wanted, weight_bytes(name, type, dims));
  const std::vector<std::int64_t> signed_dims(dims.begin(), dims.end());
  const Shape shape{std::span<const std::int64_t>(signed_dims)};
  if (wanted != bytes.size())
    return bad_model("weight " + show_name(name) + ": " + to_string(shape) + " of " + std::string(type.name()) +
                     " are " + std::to_string(wanted) + " bytes, but it holds " + std::to_string(bytes.size()));
  return StoredWeight{
      .name = std::string(name), .type = type, .shape = shape, .bytes = bytes, .file = std::string(file)};
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error || !fs::exists(status))
    return bad_model("no checkpoint at '" + path.string() +
                     "': " + (error ? error.message() : "no such file or directory"));
  std::unique_ptr<Checkpoint> out(new Checkpoint(path, Format::safetensors));
  if (!fs::is_directory(status)) {
    if (path.extension() == ".safetensors") {
      MSTAR_TRY(out->read_safetensors_files({path}));
    } else if (base_name(path).ends_with(".safetensors.index.json")) {
      MSTAR_TRY(out->read_index(path));
    } else if (path.extension() == ".bin") {
      MSTAR_TRY(out->read_ctranslate2_file(path));
    } else if (path.extension() == ".gguf") {
      MSTAR_TRY(out->read_gguf_files(path));
    } else if (path.extension() == ".onnx") {
      MSTAR_TRY(out->read_onnx_file(path));
    } else {
      return bad_model("'" + path.string() +
                       "' is neither .safetensors nor .gguf nor .onnx nor a CTranslate2 model.bin");
    }
  } else if (is_file(path / "model.safetensors")) {
    MSTAR_TRY(out->read_safetensors_files({path / "model.safetensors"}));
  } else if (is_file(path / "model.safetensors.index.json")) {
    MSTAR_TRY(out->read_index(path / "model.safetensors.index.json"));
  } else if (is_file(path / "model.bin")) {
    MSTAR_TRY(out->read_ctranslate2_file(path / "model.bin"));
  } else {
    MSTAR_TRY_ASSIGN(const auto files, files_in(path, ".safetensors"));
    if (!files.empty()) {
      MSTAR_TRY(out->read_safetensors_files(files));
      return out;
    }
    MSTAR_TRY_ASSIGN(const auto ggufs, files_in(path, ".gguf"));
    if (ggufs.empty() && is_file(path / "model.onnx")) {
      MSTAR_TRY(out->read_onnx_file(path / "model.onnx"));
      return out;
    }
    if (ggufs.empty())
      return bad_model("'" + path.string() +
                       "' holds no *.safetensors, no *.gguf, no CTranslate2 model.bin and no model.onnx");
    MSTAR_TRY_ASSIGN(const fs::path one, gguf_among(path, ggufs));
    MSTAR_TRY(out->read_gguf_files(one));
  }
  return out;
}

Status Checkpoint::read_safetensors_files(const std::vector<fs::path>& files) {
  for (const fs::path& path : files) {
    MSTAR_TRY_ASSIGN(auto file, MappedFile::open(path));
    MSTAR_TRY_ASSIGN(auto read, read_safetensors(file->bytes(), base_name(path)));
    files_.push_back(std::move(file));
    weights_.insert(weights_.end(), std::make_move_iterator(read.begin()), std::make_move_iterator(read.end()));
  }
  return add_names();
}

Status Checkpoint::read_index(const fs::path& path) {
  MSTAR_TRY_ASSIGN(const auto file, MappedFile::open(path));
  MSTAR_TRY_ASSIGN(const ShardIndex index, read_shard_index(file->bytes(), base_name(path)));
  std::vector<fs::path> files;
  for (const std::string& shard : index.files) files.push_back(path.parent_path() / shard);
  MSTAR_TRY(read_safetensors_files(files));
  for (const auto& [name, shard] : index.weights) {
    const StoredWeight* found = find(name);
    if (!found || found->file != index.files[shard])
      return bad_model(show_name(base_name(path)) + ": weight " + show_name(name) + " should be in " +
                       show_name(index.files[shard]) + " but is " +
                       (!found ? "missing" : "in " + show_name(found->file)));
  }
  return ok_status();
}

Status Checkpoint::read_ctranslate2_file(const fs::path& path) {
  format_ = Format::ctranslate2;
  MSTAR_TRY_ASSIGN(auto file, MappedFile::open(path));
  MSTAR_TRY_ASSIGN(CTranslate2Model model, read_ctranslate2(file->bytes(), base_name(path)));
  files_.push_back(std::move(file));
  weights_ = std::move(model.weights);
  aliases_ = std::move(model.aliases);
  spec_name_ = std::move(model.spec_name);
  return add_names();
}

Status Checkpoint::read_onnx_file(const fs::path& path) {
  format_ = Format::onnx;
  MSTAR_TRY_ASSIGN(auto file, MappedFile::open(path));
  MSTAR_TRY_ASSIGN(weights_, read_onnx(file->bytes(), base_name(path)));
  files_.push_back(std::move(file));
  return add_names();
}

Status Checkpoint::add_gguf(const fs::path& path, bool is_first) {
  MSTAR_TRY_ASSIGN(auto file, MappedFile::open(path));
  MSTAR_TRY_ASSIGN(GgufModel model, read_gguf(file->bytes(), base_name(path)));
  files_.push_back(std::move(file));
  weights_.insert(weights_.end(), std::make_move_iterator(model.weights.begin()),
                  std::make_move_iterator(model.weights.end()));
  if (is_first) metadata_ = std::move(model.metadata);
  return ok_status();
}

Status Checkpoint::read_gguf_files(const fs::path& first) {
  format_ = Format::gguf;
  MSTAR_TRY(add_gguf(first, true));
  if (metadata_.find("split.count")) {
    MSTAR_TRY_ASSIGN(const std::int64_t num_parts, metadata_.integer("split.count"));
    if (num_parts < 0 || num_parts > kMaxParts)
      return bad_model(show_name(base_name(first)) + ": metadata 'split.count' is " + std::to_string(num_parts));
    const std::string name = base_name(first), ending = part_ending(1, static_cast<int>(num_parts));
    if (num_parts > 1 && !name.ends_with(ending))
      return bad_model(show_name(name) + " is one part of " + std::to_string(num_parts) +
                       ": open the first, whose name ends with " + ending);
    for (int part = 2; part <= num_parts; ++part)
      MSTAR_TRY(add_gguf(first.parent_path() / (name.substr(0, name.size() - ending.size()) +
                                                part_ending(part, static_cast<int>(num_parts))),
                         false));
  }
  return add_names();
}

Status Checkpoint::add_names() {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const auto [found, is_new] = by_name_.emplace(weights_[i].name, i);
    if (!is_new)
      return bad_model("weight " + show_name(weights_[i].name) + " is there twice, in " +
                       show_name(weights_[found->second].file) + " and in " + show_name(weights_[i].file));
  }
  for (const Alias& alias : aliases_) {
    const auto target = by_name_.find(alias.target);
    if (target == by_name_.end())
      return bad_model("alias " + show_name(alias.name) + " points to " + show_name(alias.target) +
                       ", which is not there");
    if (alias.name.empty() || alias.name.size() > kMaxNameBytes || !by_name_.emplace(alias.name, target->second).second)
      return bad_model("alias " + show_name(alias.name) + " is empty, too long or there twice");
  }
  return ok_status();
}

const StoredWeight* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &weights_[found->second];
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t total = 0;
  for (const StoredWeight& weight : weights_) total += weight.bytes.size();
  return total;
}

std::optional<std::int64_t> Checkpoint::integer(std::string_view name) const {
  const StoredWeight* weight = find(name);
  if (!weight || weight->shape.num_elements() != 1) return std::nullopt;
  if (weight->type.is_blocks()) return std::nullopt;
  switch (weight->type.dtype()) {
    case DType::i8:
      return read_as<std::int8_t>(weight->bytes);
    case DType::u8:
    case DType::boolean:
      return read_as<std::uint8_t>(weight->bytes);
    case DType::i16:
      return read_as<std::int16_t>(weight->bytes);
    case DType::i32:
      return read_as<std::int32_t>(weight->bytes);
    case DType::i64:
      return read_as<std::int64_t>(weight->bytes);
    default:
      return std::nullopt;
  }
}

std::string Checkpoint::nearest(std::string_view name) const {
  NearestName nearest_name(name);
  for (const auto& [known, index] : by_name_) nearest_name.consider(known);
  return nearest_name.best();
}

void Checkpoint::release_pages() const {
  for (const auto& file : files_) file->release_pages();
}

void Checkpoint::release_pages(std::span<const std::byte> bytes) const {
  const std::less_equal<const std::byte*> not_after;
  for (const auto& file : files_) {
    const auto all = file->bytes();
    if (not_after(all.data(), bytes.data()) && not_after(bytes.data() + bytes.size(), all.data() + all.size()))
      file->release_pages(bytes);
  }
}

}  // namespace mstar::weights
