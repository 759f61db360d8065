// A checkpoint seen through a model's weight rules: builders ask for homes and get arrays.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/decl/weight_rules.h"
#include "mstar/weights/checkpoint.h"
#include "mstar/weights/loaded_weight.h"

namespace mstar::weights {

// Where one home is filled from, for people.
struct WeightMapping {
  struct Source {
    std::string name;  // in the checkpoint; empty: this part is zeros
    StoredType type = DType::f32;
    Shape shape;
    bool has_scale = false;
    int piece = 0;  // of a Split
    int num_pieces = 1;
  };
  std::string home;
  std::vector<Source> sources;
  bool taken = false;
};

// A home may be taken more than once (tied weights). Owner thread: the one that builds; several builders at once each
// make their own over the shared checkpoint. What it returns borrows from the checkpoint.
class WeightMap {
 public:
  // A null checkpoint is one without weights (models that make their own). Errors: bad_model for a rule that cannot
  // work, two weights for one home, rows that do not split.
  static Result<WeightMap> create(std::shared_ptr<const Checkpoint> checkpoint,
                                  std::span<const decl::WeightRule> rules);

  // Whether a home can be filled; does not count as taking it.
  bool has(std::string_view home) const;
  // The shape that a home will have, parts stacked; nothing when it has no weight or holds parts that are zeros.
  std::optional<Shape> shape_of(std::string_view home) const;

  // Fills a home. Errors (bad_model, remembered for finish): no weight, shape differs, a scale that is zero or not
  // finite. The message names home and checkpoint weights, and the nearest name on a miss.
  // With a cut, that part of it alone; `expected` is the shape of the whole.
  Result<LoadedWeight> take(std::string_view home, const Shape& expected, const Cut& cut = {});
  // Nothing when no weight leads there.
  Result<std::optional<LoadedWeight>> take_optional(std::string_view home, const Shape& expected);

  // To be called once `loaded`, of this map, was copied: lets the system drop its pages of the checkpoint, so that a
  // load needs little more memory than its result. It can still be read.
  void release_pages(const LoadedWeight& loaded) const;

  // One error that lists the weights whose home begins with none of the prefixes: no component of the model would take
  // them.
  Status check_prefixes(std::span<const std::string> home_prefixes) const;
  // After all builders: one error that lists every failed take and every weight that reached no home. With prefixes,
  // looks only at homes that begin with one of them (this worker's components).
  Status finish(std::span<const std::string> home_prefixes = {}) const;

  std::vector<WeightMapping> mappings() const;
  std::vector<std::string> dropped() const;
  // One line a home: "home <- weight dtype [shape] + ...", then what is dropped.
  std::string describe() const;
  const Checkpoint* checkpoint() const { return checkpoint_.get(); }

 private:
  struct Source {
    const StoredWeight* weight = nullptr;  // null: missing from the checkpoint
    std::string pattern_name;              // the name that was looked for
    int piece = 0;
    int num_pieces = 1;
    std::int64_t num_rows() const { return weight->shape.rank() ? weight->shape[0] / num_pieces : 1; }
  };
  struct Home {
    std::vector<Source> sources;
    bool zero_fill = false;
    bool optional = false;  // reached by an alias only: need not be taken
    bool taken = false;
    bool filled() const;
  };
  explicit WeightMap(std::shared_ptr<const Checkpoint> checkpoint) : checkpoint_(std::move(checkpoint)) {}
  Status check_rules() const;
  Status place(std::string_view name, const StoredWeight& weight, bool is_alias);
  Status put(std::string home, Source source, std::size_t part, std::size_t num_parts, bool is_alias);
  Result<std::vector<WeightPart>> parts_of(const std::string& name, const Home& home, const Shape& expected) const;
  Result<LoadedWeight> fill_home(std::string_view home, const Shape& expected);
  Error missing(std::string_view home) const;
  static void list_unused(const std::string& name, const Home& home, std::vector<std::string>& faults);
  Status faults_status(const std::vector<std::string>& faults) const;

  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<decl::WeightRule> rules_;
  std::map<std::string, Home, std::less<>> homes_;
  std::vector<std::string> dropped_;
  std::map<std::string, std::string, std::less<>> failures_;  // home -> message
};

}  // namespace mstar::weights
