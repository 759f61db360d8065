#include "mstar/weights/weight_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "mstar/base/load_progress.h"
#include "mstar/weights/names.h"

namespace mstar::weights {
namespace {

constexpr std::size_t kMaxListed = 20;

std::int64_t row_elements_of(const Shape& shape) {
  std::int64_t n = 1;
  for (int axis = 1; axis < shape.rank(); ++axis) n *= shape[axis];
  return n;
}

bool same_past_axis_0(const Shape& a, const Shape& b) {
  return a.rank() == b.rank() && (a.rank() == 0 || std::ranges::equal(a.dims().subspan(1), b.dims().subspan(1)));
}

std::string described(const StoredWeight& weight) {
  return show_name(weight.name) + " " + std::string(weight.type.name()) + " " + to_string(weight.shape);
}

// Divisors of rows [begin, end) of a weight. A zero or a NaN would turn every product into nonsense.
Result<std::vector<float>> divisors_of(const StoredWeight& weight, std::int64_t begin, std::int64_t end) {
  std::vector<float> out;
  if (!weight.divisor || weight.bytes.empty()) return out;
  const StoredWeight& scale = *weight.divisor;
  const bool per_row = scale.shape.num_elements() != 1;
  for (std::int64_t row = begin; row < end; ++row) {
    float value = 0;
    std::memcpy(&value, scale.bytes.data() + (per_row ? row : 0) * static_cast<std::int64_t>(sizeof(float)),
                sizeof(float));
    if (!std::isfinite(value) || value == 0)
      return bad_model("scale " + show_name(scale.name) + " is " + std::to_string(value) + " in row " +
                       std::to_string(row));
    out.push_back(value);
  }
  return out;
}

bool begins_with_any(const std::string& name, std::span<const std::string> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

struct RuleFault {
  std::string operator()(const decl::Rename& rule) const { return more_stars(rule.from, rule.to); }
  std::string operator()(const decl::Fuse& rule) const {
    if (rule.from.empty()) return "a Fuse into " + show_name(rule.to) + " has no parts";
    for (const std::string& from : rule.from)
      if (num_stars(from) != num_stars(rule.to))
        return show_name(from) + " and " + show_name(rule.to) + " must have the same number of '*'";
    return "";
  }
  std::string operator()(const decl::Split& rule) const {
    if (rule.to.empty()) return "a Split of " + show_name(rule.from) + " has no parts";
    for (const std::string& to : rule.to)
      if (const auto fault = more_stars(rule.from, to); !fault.empty()) return fault;
    return "";
  }
  std::string operator()(const decl::Drop&) const { return ""; }

 private:
  static std::string more_stars(const std::string& from, const std::string& to) {
    if (num_stars(to) <= num_stars(from)) return "";
    return show_name(to) + " has more '*' than " + show_name(from);
  }
};

}  // namespace

bool WeightMap::Home::filled() const {
  const auto present =
      std::count_if(sources.begin(), sources.end(), [](const Source& s) { return s.weight != nullptr; });
  return present > 0 && (zero_fill || present == static_cast<std::ptrdiff_t>(sources.size()));
}

Result<WeightMap> WeightMap::create(std::shared_ptr<const Checkpoint> checkpoint,
                                    std::span<const decl::WeightRule> rules) {
  WeightMap map(std::move(checkpoint));
  map.rules_.assign(rules.begin(), rules.end());
  MSTAR_TRY(map.check_rules());
  if (!map.checkpoint_) return map;  // a model without weights
  for (const StoredWeight& weight : map.checkpoint_->weights())
    if (!weight.is_divisor) MSTAR_TRY(map.place(weight.name, weight, false));
  for (const Alias& alias : map.checkpoint_->aliases()) {
    const StoredWeight* weight = map.checkpoint_->find(alias.name);
    if (weight && !weight->is_divisor) MSTAR_TRY(map.place(alias.name, *weight, true));
  }
  return map;
}

Status WeightMap::check_rules() const {
  for (const decl::WeightRule& rule : rules_)
    if (const std::string fault = std::visit(RuleFault{}, rule); !fault.empty())
      return bad_model("weight rule: " + fault);
  return ok_status();
}

Status WeightMap::place(std::string_view name, const StoredWeight& weight, bool is_alias) {
  for (const decl::WeightRule& rule : rules_) {
    if (const auto* rename = std::get_if<decl::Rename>(&rule)) {
      if (const auto captures = match(rename->from, name))
        return put(fill(rename->to, *captures), {&weight, std::string(name)}, 0, 1, is_alias);
    } else if (const auto* fuse = std::get_if<decl::Fuse>(&rule)) {
      for (std::size_t part = 0; part < fuse->from.size(); ++part) {
        const auto captures = match(fuse->from[part], name);
        if (!captures) continue;
        const std::string home = fill(fuse->to, *captures);
        MSTAR_TRY(put(home, {&weight, std::string(name)}, part, fuse->from.size(), is_alias));
        homes_.at(home).zero_fill = fuse->zero_fill;
        for (std::size_t other = 0; other < fuse->from.size(); ++other)
          homes_.at(home).sources[other].pattern_name = fill(fuse->from[other], *captures);
        return ok_status();
      }
    } else if (const auto* split = std::get_if<decl::Split>(&rule)) {
      const auto captures = match(split->from, name);
      if (!captures) continue;
      const auto num_pieces = static_cast<int>(split->to.size());
      if (weight.shape.rank() < 1 || weight.shape[0] % num_pieces != 0)
        return bad_model("weight " + described(weight) + " does not split into " + std::to_string(num_pieces) +
                         " equal parts");
      for (int piece = 0; piece < num_pieces; ++piece)
        MSTAR_TRY(put(fill(split->to[static_cast<std::size_t>(piece)], *captures),
                      {&weight, std::string(name), piece, num_pieces}, 0, 1, is_alias));
      return ok_status();
    } else if (const auto* drop = std::get_if<decl::Drop>(&rule)) {
      if (!match(drop->from, name)) continue;
      dropped_.emplace_back(name);
      return ok_status();
    }
  }
  return put(std::string(name), {&weight, std::string(name)}, 0, 1, is_alias);
}

Status WeightMap::put(std::string name, Source source, std::size_t part, std::size_t num_parts, bool is_alias) {
  const auto [found, is_new] = homes_.try_emplace(std::move(name));
  Home& home = found->second;
  if (is_new) {
    home.sources.resize(num_parts);
    home.optional = is_alias;
  }
  const StoredWeight* held = part < home.sources.size() ? home.sources[part].weight : nullptr;
  if (home.sources.size() != num_parts || (held && (held != source.weight || home.sources[part].piece != source.piece)))
    return bad_model("weights " + show_name(home.sources[0].pattern_name) + " and " + show_name(source.pattern_name) +
                     " both go to " + show_name(found->first));
  if (!held) home.sources[part] = std::move(source);
  home.optional = home.optional && is_alias;
  return ok_status();
}

bool WeightMap::has(std::string_view home) const {
  const auto found = homes_.find(home);
  return found != homes_.end() && found->second.filled();
}

std::optional<Shape> WeightMap::shape_of(std::string_view name) const {
  const auto found = homes_.find(name);
  if (found == homes_.end()) return std::nullopt;
  std::optional<Shape> out;
  for (const Source& source : found->second.sources) {
    if (!source.weight) return std::nullopt;
    Shape shape = source.weight->shape;
    if (out && (shape.rank() == 0 || !same_past_axis_0(shape, *out))) return std::nullopt;
    if (shape.rank()) shape[0] = source.num_rows() + (out ? (*out)[0] : 0);
    out = shape;
  }
  return out;
}

Error WeightMap::missing(std::string_view home) const {
  const auto found = homes_.find(home);
  std::string message = "no weight for " + show_name(home);
  if (found != homes_.end()) {
    message += ": the checkpoint lacks";
    for (const Source& source : found->second.sources)
      if (!source.weight) message += " " + show_name(source.pattern_name);
    return bad_model(message);
  }
  NearestName nearest(home);
  for (const auto& [known, entry] : homes_) nearest.consider(known);
  if (!nearest.best().empty()) {
    message += "; the nearest is " + show_name(nearest.best());
    const auto& sources = homes_.find(nearest.best())->second.sources;
    if (sources[0].pattern_name != nearest.best()) message += ", from " + show_name(sources[0].pattern_name);
  }
  return bad_model(message);
}

Result<std::vector<WeightPart>> WeightMap::parts_of(const std::string& name, const Home& home,
                                                    const Shape& expected) const {
  std::string stored;
  std::int64_t known_rows = 0;
  std::int64_t num_missing = 0;
  bool fits = true;
  for (const Source& source : home.sources) {
    stored += stored.empty() ? "" : " + ";
    stored += source.weight ? described(*source.weight) : "zeros";
    if (source.num_pieces > 1) stored += " / " + std::to_string(source.num_pieces);
    num_missing += source.weight ? 0 : 1;
    known_rows += source.weight ? source.num_rows() : 0;
    if (source.weight) fits = fits && same_past_axis_0(source.weight->shape, expected);
  }
  const std::int64_t wanted_rows = expected.rank() ? expected[0] : 1;
  const std::int64_t zero_rows = num_missing ? (wanted_rows - known_rows) / num_missing : 0;
  if (!fits || known_rows + zero_rows * num_missing != wanted_rows || (num_missing && zero_rows < 1))
    return bad_model("'" + name + "' must be " + to_string(expected) + ", the checkpoint has " + stored);

  std::vector<WeightPart> parts;
  for (const Source& source : home.sources) {
    WeightPart part{.row_elements = row_elements_of(expected)};
    if (source.weight) {
      if (part.row_elements % source.weight->type.unit_elements() != 0)
        return bad_model("'" + name + "' has rows of " + std::to_string(part.row_elements) +
                         " elements, which the blocks of " + described(*source.weight) + " do not fit");
      part.source = source.weight->name;
      part.type = source.weight->type;
      part.num_rows = source.num_rows();
      part.row_stride_bytes = static_cast<std::int64_t>(part.type.row_bytes(part.row_elements));
      const std::int64_t begin = source.piece * part.num_rows;
      part.rows = source.weight->bytes.data() + begin * part.row_stride_bytes;
      auto divisors = divisors_of(*source.weight, begin, begin + part.num_rows);
      if (!divisors) return std::move(divisors.error()).in("'" + name + "'");
      part.divisors = std::move(*divisors);
    } else {
      part.num_rows = zero_rows;
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

Result<LoadedWeight> WeightMap::fill_home(std::string_view name, const Shape& expected) {
  const auto found = homes_.find(name);
  if (found == homes_.end() || !found->second.filled()) return missing(name);
  found->second.taken = true;
  MSTAR_TRY_ASSIGN(auto parts, parts_of(found->first, found->second, expected));
  return LoadedWeight(found->first, expected, std::move(parts));
}

void WeightMap::release_pages(const LoadedWeight& loaded) const {
  for (const WeightPart& part : loaded.parts())
    if (checkpoint_ && part.rows && part.num_rows > 0)
      checkpoint_->release_pages({part.rows, static_cast<std::size_t>((part.num_rows - 1) * part.row_stride_bytes) +
                                                 part.type.row_bytes(part.row_elements)});
}

Result<LoadedWeight> WeightMap::take(std::string_view home, const Shape& expected, const Cut& cut) {
  auto out = fill_home(home, expected);
  if (out && !cut.is_whole()) {
    auto own = out->cut(cut);
    if (own && cut.axis == 1 && cut.ranges.size() > 1) release_pages(*out);  // it is read from a copy
    out = std::move(own);
  }
  if (!out) failures_.emplace(home, out.error().message);
  note_load_progress();
  return out;
}

Result<std::optional<LoadedWeight>> WeightMap::take_optional(std::string_view home, const Shape& expected) {
  if (!homes_.contains(home)) return std::optional<LoadedWeight>();
  MSTAR_TRY_ASSIGN(LoadedWeight weight, take(home, expected));
  return std::optional(std::move(weight));
}

Status WeightMap::check_prefixes(std::span<const std::string> home_prefixes) const {
  std::vector<std::string> faults;
  for (const auto& [name, home] : homes_)
    if (!home.optional && !begins_with_any(name, home_prefixes)) list_unused(name, home, faults);
  return faults_status(faults);
}

Status WeightMap::finish(std::span<const std::string> home_prefixes) const {
  const auto concerned = [&](const std::string& home) {
    return home_prefixes.empty() || begins_with_any(home, home_prefixes);
  };
  std::vector<std::string> faults;
  for (const auto& [home, message] : failures_)
    if (concerned(home)) faults.push_back(message);
  for (const auto& [name, home] : homes_)
    if (!home.taken && !home.optional && concerned(name) && !failures_.contains(name)) list_unused(name, home, faults);
  return faults_status(faults);
}

void WeightMap::list_unused(const std::string& name, const Home& home, std::vector<std::string>& faults) {
  for (const Source& source : home.sources)
    if (source.weight)
      faults.push_back("weight " + described(*source.weight) + " has no home" +
                       (name == source.weight->name ? "" : ": the model has no " + show_name(name)));
}

Status WeightMap::faults_status(const std::vector<std::string>& faults) const {
  if (faults.empty()) return ok_status();
  std::string message = checkpoint_ ? "'" + checkpoint_->path().string() + "'" : "a model without a checkpoint";
  message += " does not fit the model:";
  for (std::size_t i = 0; i < std::min(faults.size(), kMaxListed); ++i) message += "\n  " + faults[i];
  if (faults.size() > kMaxListed) message += "\n  and " + std::to_string(faults.size() - kMaxListed) + " more";
  return bad_model(message);
}

std::vector<WeightMapping> WeightMap::mappings() const {
  std::vector<WeightMapping> out;
  for (const auto& [name, home] : homes_) {
    WeightMapping mapping{.home = name, .taken = home.taken};
    for (const Source& source : home.sources) {
      WeightMapping::Source shown{.piece = source.piece, .num_pieces = source.num_pieces};
      if (source.weight) {
        shown.name = source.weight->name;
        shown.type = source.weight->type;
        shown.shape = source.weight->shape;
        shown.has_scale = source.weight->divisor != nullptr;
      }
      mapping.sources.push_back(std::move(shown));
    }
    out.push_back(std::move(mapping));
  }
  return out;
}

std::vector<std::string> WeightMap::dropped() const { return dropped_; }

std::string WeightMap::describe() const {
  std::string out;
  for (const WeightMapping& mapping : mappings()) {
    out += mapping.home + " <- ";
    for (std::size_t i = 0; i < mapping.sources.size(); ++i) {
      const auto& source = mapping.sources[i];
      if (i) out += " + ";
      if (source.name.empty()) {
        out += "zeros";
        continue;
      }
      out += source.name + " " + std::string(source.type.name()) + (source.has_scale ? " scaled " : " ") +
             to_string(source.shape);
      if (source.num_pieces > 1)
        out += " part " + std::to_string(source.piece + 1) + "/" + std::to_string(source.num_pieces);
    }
    out += "\n";
  }
  for (const std::string& name : dropped_) out += "(dropped) " + name + "\n";
  return out;
}

}  // namespace mstar::weights
