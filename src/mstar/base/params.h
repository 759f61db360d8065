// Named request or configuration values, kept typed and small; the common form of JSON bodies, form fields and YAML.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "mstar/base/result.h"

namespace mstar {

using ParamValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>, std::vector<double>>;

// Getters coerce as lax JSON clients expect ("16", 16.0 and 16 are the integer 16; "true" is true) and answer a missing
// name with the fallback. A value of the wrong kind is invalid_request with the field's name.
class Params {
 public:
  void set(std::string name, ParamValue value) { values_.insert_or_assign(std::move(name), std::move(value)); }
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  Result<std::int64_t> get_int(std::string_view name, std::int64_t fallback) const;
  Result<double> get_number(std::string_view name, double fallback) const;
  Result<bool> get_bool(std::string_view name, bool fallback) const;
  Result<std::string> get_string(std::string_view name, std::string fallback) const;
  // A single string counts as a list of one.
  Result<std::vector<std::string>> get_strings(std::string_view name) const;
  const std::map<std::string, ParamValue, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, ParamValue, std::less<>> values_;
};

}  // namespace mstar
