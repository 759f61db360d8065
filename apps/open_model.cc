// From a model's name to its declaration.
#include <algorithm>

#include "runtime.h"

namespace mstar::apps {
namespace {

bool is_family_without_weights(const std::string& name) {
  return std::any_of(models::all_models().begin(), models::all_models().end(),
                     [&](const auto& family) { return !family.needs_weights && family.name == name; });
}

Error not_found(const std::string& model) {
  std::string known;
  for (const auto& family : models::all_models())
    if (!family.needs_weights) known += (known.empty() ? "" : ", ") + std::string(family.name);
  return bad_model(
      "no model '" + model +
      "': it is no directory, no checkpoint file and no fetched weights (./dev weights --list names those)" +
      (known.empty() ? "" : ", nor one of the models without weights: " + known));
}

}  // namespace

std::string default_name(const std::string& model) {
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  if (std::filesystem::is_regular_file(path, ignored)) path = std::filesystem::absolute(path, ignored).parent_path();
  if (!path.has_filename()) path = path.parent_path();
  if (path == "." || path == "..") path = std::filesystem::canonical(path, ignored);
  return path.filename().string();
}

Result<OpenedModel> open_model(const ModelConfig& config) {
  OpenedModel out;
  out.config = config;
  if (out.config.name.empty()) out.config.name = default_name(config.model);
  models::ModelSource source{.name = config.model, .directory = config.model, .options = config.options};
  if (!is_family_without_weights(config.model)) {
    std::error_code ignored;
    if (!std::filesystem::exists(source.directory, ignored)) return not_found(config.model);
    MSTAR_TRY_ASSIGN(const std::string format, config.options.get_string("load_format", "auto"));
    if (format == "dummy") {
      MSTAR_TRY_ASSIGN(source.checkpoint, models::dummy_checkpoint(source));
    } else if (format == "auto") {
      MSTAR_TRY_ASSIGN(source.checkpoint, weights::Checkpoint::open(source.directory));
    } else {
      return std::move(invalid_request("load_format must be auto or dummy, not '" + format + "'"))
          .with_field("load_format");
    }
    if (!std::filesystem::is_directory(source.directory, ignored)) source.directory = source.directory.parent_path();
  }
  MSTAR_TRY_ASSIGN(out.family, models::find_family(source));
  source.name = out.config.name;
  MSTAR_TRY_ASSIGN(decl::Decl declared, out.family->declare(source));
  out.decl = std::make_unique<const decl::Decl>(std::move(declared));
  out.checkpoint = std::move(source.checkpoint);
  MSTAR_TRY_ASSIGN(out.groups, resolve_node_groups(*out.decl, out.config.node_groups));
  return out;
}

}  // namespace mstar::apps
