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

Result<std::vector<fs::path>> safetensors_in(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors" && is_file(it->path())) files.push_back(it->path());
  if (error) return bad_model("cannot list '" + directory.string() + "': " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

template <class T>
std::int64_t read_as(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

std::string_view format_name(Format format) {
  return format == Format::safetensors ? "safetensors" : "CTranslate2 version 6";
}

Result<StoredWeight> stored_weight(std::string_view name, DType dtype, std::span<const std::uint64_t> dims,
                                   std::span<const std::byte> bytes, std::string_view file) {
  const auto fail = [&](const std::string& what) { return bad_model("weight " + show_name(name) + ": " + what); };
  if (name.empty()) return bad_model("a weight has an empty name");
  if (name.size() > kMaxNameBytes)
    return fail("a name of " + std::to_string(name.size()) + " bytes is over " + std::to_string(kMaxNameBytes));
  if (dims.size() > static_cast<std::size_t>(kMaxRank))
    return fail(std::to_string(dims.size()) + " dimensions are more than " + std::to_string(kMaxRank));
  // Zero dims count as one here, so that every partial product of a Shape stays in range.
  std::uint64_t room = dtype_bytes(dtype);
  std::uint64_t wanted = room;
  std::vector<std::int64_t> signed_dims;
  for (const std::uint64_t dim : dims) {
    if (__builtin_mul_overflow(room, std::max<std::uint64_t>(dim, 1), &room) || room > (std::uint64_t{1} << 62))
      return fail("its dimensions multiply to more than any memory holds");
    wanted *= dim;
    signed_dims.push_back(static_cast<std::int64_t>(dim));
  }
  const Shape shape{std::span<const std::int64_t>(signed_dims)};
  if (wanted != bytes.size())
    return fail(to_string(shape) + " of " + std::string(dtype_name(dtype)) + " are " + std::to_string(wanted) +
                " bytes, but it holds " + std::to_string(bytes.size()));
  return StoredWeight{
      .name = std::string(name), .dtype = dtype, .shape = shape, .bytes = bytes, .file = std::string(file)};
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
    } else {
      return bad_model("'" + path.string() + "' is neither .safetensors nor a CTranslate2 model.bin");
    }
  } else if (is_file(path / "model.safetensors")) {
    MSTAR_TRY(out->read_safetensors_files({path / "model.safetensors"}));
  } else if (is_file(path / "model.safetensors.index.json")) {
    MSTAR_TRY(out->read_index(path / "model.safetensors.index.json"));
  } else if (is_file(path / "model.bin")) {
    MSTAR_TRY(out->read_ctranslate2_file(path / "model.bin"));
  } else {
    MSTAR_TRY_ASSIGN(const auto files, safetensors_in(path));
    if (files.empty()) return bad_model("'" + path.string() + "' holds no *.safetensors and no CTranslate2 model.bin");
    MSTAR_TRY(out->read_safetensors_files(files));
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
  switch (weight->dtype) {
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
