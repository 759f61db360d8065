// The table of model families and what each must provide. A family is one directory or file here and one row in
// all_models.cc.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "mstar/base/params.h"
#include "mstar/base/result.h"
#include "mstar/decl/decl.h"
#include "mstar/weights/checkpoint.h"

namespace mstar::models {

// Where a model comes from. `checkpoint` is null for models without weights (the toys).
struct ModelSource {
  std::string name;  // as served
  std::filesystem::path directory;
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  Params options;  // `options:` of the YAML: each family documents its own
  Backend backend = Backend::cpu;
  std::filesystem::path voice_directory = {};  // of the weights of voice activity, for models that pass over silence
};

struct ModelFamily {
  std::string_view name;
  std::string_view summary;
  bool needs_weights = true;
  // Whether the checkpoint is of this family; called only for families that need weights.
  bool (*recognises)(const ModelSource& source) = nullptr;
  // bad_model when a file is missing or wrong.
  Result<decl::Decl> (*declare)(const ModelSource& source) = nullptr;
  // The weights that the directory's config.json asks for, for option load_format: dummy; bad_model when the directory
  // is of another family or the file is wrong. Null: the family has no such thing.
  Result<std::vector<weights::DummyWeight>> (*dummy_weights)(const ModelSource& source) = nullptr;
  bool on_cuda = false;  // its components run on CUDA devices too
};

std::span<const ModelFamily> all_models();
// By family name for models without weights, else by looking at the checkpoint. bad_model lists what is known.
Result<const ModelFamily*> find_family(const ModelSource& source);
// A checkpoint of seeded numbers for the first family that knows the directory's config.json. bad_model.
Result<std::shared_ptr<const weights::Checkpoint>> dummy_checkpoint(const ModelSource& source);

}  // namespace mstar::models
