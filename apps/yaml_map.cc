#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "yaml_tree.h"

namespace mstar::apps {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& each : names) out += (out.empty() ? "" : ", ") + each;
  return out;
}

std::string kind_of(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "nothing";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      return "a map";
    case YamlNode::Kind::scalar:
      break;
  }
  return "'" + node.text.substr(0, 60) + "'";
}

std::optional<std::int64_t> as_integer(const YamlNode& node) {
  std::int64_t value = 0;
  const char* const end = node.text.data() + node.text.size();
  const auto [at, error] = std::from_chars(node.text.data(), end, value);
  if (node.quoted || node.text.empty() || error != std::errc() || at != end) return std::nullopt;
  return value;
}

std::optional<double> as_number(const YamlNode& node) {
  const std::string& text = node.text;
  if (node.quoted || text.empty() || text.find_first_not_of("+-.0123456789eE") != std::string::npos)
    return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<bool> as_boolean(const YamlNode& node) {
  if (node.quoted) return std::nullopt;
  if (node.text == "true" || node.text == "True" || node.text == "TRUE") return true;
  if (node.text == "false" || node.text == "False" || node.text == "FALSE") return false;
  return std::nullopt;
}

// Levenshtein's distance.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

void YamlFaults::add(int line, int column, const std::string& message) { lines_.push_back({line, column, message}); }

Status YamlFaults::status() const {
  if (lines_.empty()) return ok_status();
  std::vector<Line> sorted = lines_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Line& a, const Line& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  std::string out;
  for (const Line& each : sorted) {
    if (!out.empty()) out += "\n";
    out += file_ + ":" + std::to_string(each.line) + ":" + std::to_string(each.column) + ": " + each.message;
  }
  return invalid_request(out);
}

YamlMap::YamlMap(const YamlNode& node, std::string where, YamlFaults& faults)
    : node_(node), where_(std::move(where)), faults_(faults) {
  if (node.kind != YamlNode::Kind::map && node.kind != YamlNode::Kind::null)
    faults.add(node,
               (where_.empty() ? "the file" : "'" + where_ + "'") + " must be a map of keys, not " + kind_of(node));
}

std::string YamlMap::name_of(std::string_view key) const {
  return "'" + (where_.empty() ? std::string(key) : where_ + "." + std::string(key)) + "'";
}

bool YamlMap::has(std::string_view key) const {
  return std::any_of(node_.members.begin(), node_.members.end(), [&](const YamlMember& m) { return m.key == key; });
}

const YamlNode* YamlMap::find(std::string_view key) {
  known_.emplace_back(key);
  for (const YamlMember& each : node_.members)
    if (each.key == key) return &each.value;
  return nullptr;
}

const YamlNode* YamlMap::scalar(std::string_view key, const char* wanted) {
  const YamlNode* const node = find(key);
  if (!node || node->kind == YamlNode::Kind::scalar) return node;
  faults_.add(*node, name_of(key) + " must be " + wanted + ", not " + kind_of(*node));
  return nullptr;
}

bool YamlMap::text(std::string_view key, std::string& out) {
  const YamlNode* const node = scalar(key, "text");
  if (node) out = node->text;
  return node != nullptr;
}

bool YamlMap::integer(std::string_view key, std::int64_t least, std::int64_t most, std::int64_t& out) {
  const YamlNode* const node = scalar(key, "a whole number");
  if (!node) return false;
  const auto value = as_integer(*node);
  if (!value || *value < least || *value > most) {
    faults_.add(*node, name_of(key) + " must be a whole number from " + std::to_string(least) + " to " +
                           std::to_string(most) + ", not " + kind_of(*node));
    return false;
  }
  out = *value;
  return true;
}

bool YamlMap::integer(std::string_view key, std::int64_t least, std::int64_t most, int& out) {
  std::int64_t wide = out;
  if (!integer(key, least, most, wide)) return false;
  out = static_cast<int>(wide);
  return true;
}

bool YamlMap::number(std::string_view key, double least, double most, double& out) {
  const YamlNode* const node = scalar(key, "a number");
  if (!node) return false;
  const auto value = as_number(*node);
  if (!value || *value < least || *value > most) {
    char range[80];
    std::snprintf(range, sizeof range, "%g to %g", least, most);
    faults_.add(*node, name_of(key) + " must be a number from " + range + ", not " + kind_of(*node));
    return false;
  }
  out = *value;
  return true;
}

bool YamlMap::boolean(std::string_view key, bool& out) {
  const YamlNode* const node = scalar(key, "true or false");
  if (!node) return false;
  const auto value = as_boolean(*node);
  if (!value) {
    faults_.add(*node, name_of(key) + " must be true or false, not " + kind_of(*node));
    return false;
  }
  out = *value;
  return true;
}

bool YamlMap::size_bytes(std::string_view key, std::size_t& out) {
  const YamlNode* const node = scalar(key, "a size such as 512M or 4G");
  if (!node) return false;
  const auto value = parse_bytes(node->text);
  if (!value) {
    faults_.add(*node, name_of(key) + " must be a size such as 512M or 4G, not " + kind_of(*node));
    return false;
  }
  out = *value;
  return true;
}

bool YamlMap::texts(std::string_view key, std::vector<std::string>& out) {
  const YamlNode* const node = find(key);
  if (!node) return false;
  if (node->kind != YamlNode::Kind::list) {
    faults_.add(*node, name_of(key) + " must be a list, such as [a, b], not " + kind_of(*node));
    return false;
  }
  out.clear();
  for (const YamlNode& each : node->items) {
    if (each.kind == YamlNode::Kind::scalar) {
      out.push_back(each.text);
    } else {
      faults_.add(each, name_of(key) + " must be a list of words, one of them is " + kind_of(each));
    }
  }
  return true;
}

bool YamlMap::integers(std::string_view key, std::int64_t least, std::int64_t most, std::vector<int>& out) {
  const YamlNode* const node = find(key);
  if (!node) return false;
  if (node->kind != YamlNode::Kind::list) {
    faults_.add(*node, name_of(key) + " must be a list of whole numbers, such as [0, 1], not " + kind_of(*node));
    return false;
  }
  out.clear();
  for (const YamlNode& each : node->items) {
    const auto value = each.kind == YamlNode::Kind::scalar ? as_integer(each) : std::nullopt;
    if (value && *value >= least && *value <= most) {
      out.push_back(static_cast<int>(*value));
    } else {
      faults_.add(each, name_of(key) + " must hold whole numbers from " + std::to_string(least) + " to " +
                            std::to_string(most) + ", not " + kind_of(each));
    }
  }
  return true;
}

bool YamlMap::choice(std::string_view key, const std::vector<std::string_view>& choices, std::size_t& out) {
  const std::vector<std::string> names(choices.begin(), choices.end());
  const YamlNode* const node = scalar(key, ("one of " + joined(names)).c_str());
  if (!node) return false;
  const auto found = std::find(names.begin(), names.end(), node->text);
  if (found == names.end()) {
    faults_.add(*node, name_of(key) + " must be one of " + joined(names) + ", not " + kind_of(*node));
    return false;
  }
  out = static_cast<std::size_t>(found - names.begin());
  return true;
}

bool YamlMap::params(std::string_view key, Params& out) {
  const YamlNode* const node = find(key);
  if (!node || node->kind == YamlNode::Kind::null) return false;
  if (node->kind != YamlNode::Kind::map) {
    faults_.add(*node, name_of(key) + " must be a map of names and values, not " + kind_of(*node));
    return false;
  }
  for (const YamlMember& each : node->members) {
    if (each.value.kind == YamlNode::Kind::scalar) {
      out.set(each.key, yaml_scalar(each.value));
      continue;
    }
    std::vector<std::string> texts;
    std::vector<double> numbers;
    bool scalars = each.value.kind == YamlNode::Kind::list;
    for (const YamlNode& item : each.value.items) {
      scalars = scalars && item.kind == YamlNode::Kind::scalar;
      texts.push_back(item.text);
      if (const auto number = as_number(item)) numbers.push_back(*number);
    }
    if (!scalars) {
      faults_.add(each.value, "'" + each.key + "' in " + name_of(key) + " must be a value or a list of values, not " +
                                  kind_of(each.value));
    } else if (!texts.empty() && numbers.size() == texts.size()) {
      out.set(each.key, numbers);
    } else {
      out.set(each.key, texts);
    }
  }
  return true;
}

void YamlMap::finish() {
  for (const YamlMember& each : node_.members) {
    if (std::find(known_.begin(), known_.end(), each.key) != known_.end()) continue;
    const std::string near = nearest_name(each.key, known_);
    faults_.add(each.line, each.column,
                "unknown key '" + each.key + "'" + (where_.empty() ? "" : " in '" + where_ + "'") +
                    (near.empty() ? "" : "; did you mean '" + near + "'?") + " Allowed: " + joined(known_));
  }
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& names) {
  std::string best;
  int least = static_cast<int>(name.size()) / 3 + 2;
  for (const std::string& each : names) {
    const int distance = edit_distance(name.substr(0, 64), each);
    if (distance < least) {
      least = distance;
      best = each;
    }
  }
  return best;
}

ParamValue yaml_scalar(const YamlNode& node) {
  if (const auto value = as_boolean(node)) return *value;
  if (const auto value = as_integer(node)) return *value;
  if (const auto value = as_number(node)) return *value;
  return node.text;
}

Result<std::size_t> parse_bytes(const std::string& text) {
  std::size_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  std::string unit(end, static_cast<std::size_t>(last - end));
  if (unit.ends_with("iB")) unit.resize(unit.size() - 2);
  constexpr std::string_view kUnits = "kmgtKMGT";
  const std::size_t place = unit.size() == 1 ? kUnits.find(unit[0]) : std::string_view::npos;
  const bool known = unit.empty() ? end == last : place != std::string_view::npos;
  const int shift = unit.empty() ? 0 : 10 * (static_cast<int>(place % 4) + 1);
  if (error != std::errc() || !known || value > (~std::size_t{0} >> shift))
    return invalid_request("'" + text + "' is no size; write 4G, 512M or a number of bytes");
  return value << shift;
}

}  // namespace mstar::apps
