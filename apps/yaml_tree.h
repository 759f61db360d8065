// YAML text as a plain tree with places, and a strict reader over it. yaml_tree.cc alone meets yaml-cpp and its
// exceptions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/base/result.h"

namespace mstar::apps {

struct YamlMember;
struct YamlNode {
  enum class Kind : std::uint8_t { null, scalar, list, map };
  Kind kind = Kind::null;
  int line = 1, column = 1;
  std::string text;     // of a scalar
  bool quoted = false;  // then it is text, whatever it looks like
  std::vector<YamlNode> items;
  std::vector<YamlMember> members;  // in the order of the file
};
struct YamlMember {
  std::string key;
  int line = 1, column = 1;
  YamlNode value;
};

// One document. invalid_request "file:line:column: ..." for what is no YAML, a key that stands twice in a map, more
// than one document, and trees deeper than 32 levels or larger than 100000 nodes (anchors can make a short file huge).
Result<YamlNode> parse_yaml(std::string_view text, const std::string& file);

// Gathers what is wrong with a file, so that one run tells all of it.
class YamlFaults {
 public:
  explicit YamlFaults(std::string file) : file_(std::move(file)) {}
  void add(int line, int column, const std::string& message);
  void add(const YamlNode& at, const std::string& message) { add(at.line, at.column, message); }
  bool any() const { return !lines_.empty(); }
  // One line each, in the order of the file.
  Status status() const;

 private:
  struct Line {
    int line, column;
    std::string message;
  };
  std::string file_;
  std::vector<Line> lines_;
};

// A map whose keys are all known: every call names one allowed key, finish() reports the others with the allowed ones
// and the nearest. A missing key leaves the target as it is. `where` names the map in messages, such as "server".
class YamlMap {
 public:
  YamlMap(const YamlNode& node, std::string where, YamlFaults& faults);

  // Null when the key is missing; counts as known.
  const YamlNode* find(std::string_view key);
  bool has(std::string_view key) const;
  bool text(std::string_view key, std::string& out);
  bool integer(std::string_view key, std::int64_t least, std::int64_t most, std::int64_t& out);
  bool integer(std::string_view key, std::int64_t least, std::int64_t most, int& out);
  bool number(std::string_view key, double least, double most, double& out);
  bool boolean(std::string_view key, bool& out);
  bool size_bytes(std::string_view key, std::size_t& out);
  bool texts(std::string_view key, std::vector<std::string>& out);
  bool integers(std::string_view key, std::int64_t least, std::int64_t most, std::vector<int>& out);
  // One of `choices`; `out` is its place.
  bool choice(std::string_view key, const std::vector<std::string_view>& choices, std::size_t& out);
  // Free keys: any scalar or list of scalars.
  bool params(std::string_view key, Params& out);
  void finish();

  const YamlNode& node() const { return node_; }
  const std::string& where() const { return where_; }

 private:
  const YamlNode* scalar(std::string_view key, const char* wanted);
  std::string name_of(std::string_view key) const;

  const YamlNode& node_;
  const std::string where_;
  YamlFaults& faults_;
  std::vector<std::string> known_;
};

// The name among `names` that reads most like `name`; empty when none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

// A plain scalar as YAML 1.2's core schema reads it: true/false, integers, numbers, else text.
ParamValue yaml_scalar(const YamlNode& node);

// "4G", "512MiB", "1000000"; invalid_request for anything else.
Result<std::size_t> parse_bytes(const std::string& text);

}  // namespace mstar::apps
