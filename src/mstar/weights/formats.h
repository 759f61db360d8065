// The parsers of single checkpoint files. They look at bytes only, so that fuzzers drive them without a file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/weights/checkpoint.h"

namespace mstar::weights {

// Arrays of a .safetensors file: u64 header length, JSON header, data (github.com/huggingface/safetensors). `file` is
// for messages. Errors: bad_model. The spans of the result point into `bytes`.
Result<std::vector<StoredWeight>> read_safetensors(std::span<const std::byte> bytes, std::string_view file);

// The files named by model.safetensors.index.json, each once, and which arrays each must hold.
struct ShardIndex {
  std::vector<std::string> files;                            // base names, in order of first use
  std::vector<std::pair<std::string, std::size_t>> weights;  // array name, index into `files`
};
Result<ShardIndex> read_shard_index(std::span<const std::byte> bytes, std::string_view file);

// A CTranslate2 model.bin of binary version 6 (ctranslate2.specs.model_spec, `_serialize`).
struct CTranslate2Model {
  std::string spec_name;
  std::vector<StoredWeight> weights;
  std::vector<Alias> aliases;
};
Result<CTranslate2Model> read_ctranslate2(std::span<const std::byte> bytes, std::string_view file);

// A GGUF file of version 3 (or 2, which has the same layout): github.com/ggml-org/ggml, docs/gguf.md. The metadata,
// too, borrows from `bytes`.
struct GgufModel {
  Metadata metadata;
  std::vector<StoredWeight> weights;
};
Result<GgufModel> read_gguf(std::span<const std::byte> bytes, std::string_view file);

// The initialisers of an ONNX model's graph that are f32, f16, bf16, i32 or i8 and lie in the file itself. Their bytes
// are not aligned.
Result<std::vector<StoredWeight>> read_onnx(std::span<const std::byte> bytes, std::string_view file);

// Bytes of an array of these dims, checked for overflow, rank and whole blocks; the error says what is wrong and names
// the array.
Result<std::uint64_t> weight_bytes(std::string_view name, StoredType type, std::span<const std::uint64_t> dims);
// The same, and `bytes` is exactly as long.
Result<StoredWeight> stored_weight(std::string_view name, StoredType type, std::span<const std::uint64_t> dims,
                                   std::span<const std::byte> bytes, std::string_view file);

}  // namespace mstar::weights
