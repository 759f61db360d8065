// Checkpoints of every format that we read, as one list of named arrays that stay in the mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mstar/base/block_format.h"
#include "mstar/base/dtype.h"
#include "mstar/base/result.h"
#include "mstar/tensor/tensor.h"
#include "mstar/weights/mapped_file.h"
#include "mstar/weights/metadata.h"

namespace mstar::weights {

// A named array of a checkpoint. `bytes` is row-major, little-endian, exactly shape x type long and NOT aligned (a
// CTranslate2 file packs arrays at odd offsets): copy elements out with memcpy, or use LoadedWeight. Blocks lie along
// the last axis, whose length is a multiple of theirs.
struct StoredWeight {
  std::string name;
  StoredType type = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;
  std::string file = {};  // base name, for messages
  // i8 and i16 weights with a scale: real value = stored / divisor. One f32 per row of axis 0, or one in all.
  const StoredWeight* divisor = nullptr;
  bool is_divisor = false;  // a scale array of another weight: goes where that weight goes
};

struct Alias {
  std::string name;
  std::string target;
};

// An array of Checkpoint::dummy.
struct DummyWeight {
  enum class Fill : std::uint8_t { normal, ones, zeros };
  std::string name;
  Shape shape;
  Fill fill = Fill::normal;  // of standard deviation 0.02
};

enum class Format : std::uint8_t { safetensors, ctranslate2, gguf, onnx };
std::string_view format_name(Format format);

// Immutable after open; any thread may read. Spans are valid while the checkpoint lives.
class Checkpoint {
 public:
  // A directory (model.safetensors; model.safetensors.index.json with its shards; model.bin of CTranslate2; every
  // *.safetensors in it; its one *.gguf; or model.onnx, in that order of preference) or one such file. Of a GGUF file
  // in parts (NAME-00001-of-00003.gguf) the first part stands for all. Cost: reads headers only. Errors: bad_model,
  // naming the file and, for a damaged one, the array.
  static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& directory_or_file);

  // Seeded bf16 numbers under these names, as if `directory` held them: for measuring at real size without weights.
  // Arrays share their memory, so that it costs about that of the largest. bad_model on a name that is there twice.
  static Result<std::unique_ptr<Checkpoint>> dummy(const std::filesystem::path& directory,
                                                   std::span<const DummyWeight> weights, std::uint64_t seed);

  // By name or alias; null when there is none.
  const StoredWeight* find(std::string_view name) const;
  // In file order, aliases not among them.
  std::span<const StoredWeight> weights() const { return weights_; }
  std::span<const Alias> aliases() const { return aliases_; }
  Format format() const { return format_; }
  std::string_view format_name() const { return weights::format_name(format_); }
  // "WhisperSpec" and the like for CTranslate2, else empty.
  const std::string& spec_name() const { return spec_name_; }
  // Of a GGUF file (the first part's); empty for other formats.
  const Metadata& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t total_bytes() const;
  // The value of a one-element integer array (CTranslate2 keeps head counts so); nothing when there is none.
  std::optional<std::int64_t> integer(std::string_view name) const;
  // The stored name that reads most like `name`, for messages; empty when none is near.
  std::string nearest(std::string_view name) const;
  // See MappedFile. The second only of an array's bytes, or a part of them; bytes of elsewhere are left alone.
  void release_pages() const;
  void release_pages(std::span<const std::byte> bytes) const;

 private:
  Checkpoint(std::filesystem::path path, Format format) : path_(std::move(path)), format_(format) {}
  Status read_safetensors_files(const std::vector<std::filesystem::path>& files);
  Status read_index(const std::filesystem::path& index);
  Status read_ctranslate2_file(const std::filesystem::path& file);
  Status read_onnx_file(const std::filesystem::path& file);
  Status read_gguf_files(const std::filesystem::path& first);
  Status add_gguf(const std::filesystem::path& file, bool is_first);
  Status add_names();

  std::filesystem::path path_;
  Format format_;
  std::string spec_name_;
  Metadata metadata_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<std::uint16_t> made_;  // of dummy: bf16
  std::vector<StoredWeight> weights_;
  std::vector<Alias> aliases_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // names and aliases -> index into weights_
};

}  // namespace mstar::weights
