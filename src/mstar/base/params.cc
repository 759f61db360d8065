#include "mstar/base/params.h"

#include <charconv>
#include <cmath>

namespace mstar {
namespace {

Error wrong_kind(std::string_view name, std::string_view wanted) {
  return std::move(invalid_request("'" + std::string(name) + "' must be " + std::string(wanted)))
      .with_field(std::string(name));
}

template <class T>
bool parse_all(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<std::int64_t> Params::get_int(std::string_view name, std::int64_t fallback) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  if (const auto* i = std::get_if<std::int64_t>(&it->second)) return *i;
  double d = 0;
  if (const auto* held = std::get_if<double>(&it->second)) {
    d = *held;
  } else if (const auto* text = std::get_if<std::string>(&it->second)) {
    std::int64_t i = 0;
    if (parse_all(*text, i)) return i;
    if (!parse_all(*text, d)) return wrong_kind(name, "an integer");
  } else {
    return wrong_kind(name, "an integer");
  }
  if (std::nearbyint(d) != d || std::abs(d) > 0x1p53) return wrong_kind(name, "an integer");
  return static_cast<std::int64_t>(d);
}

Result<double> Params::get_number(std::string_view name, double fallback) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  double d = 0;
  if (const auto* i = std::get_if<std::int64_t>(&it->second)) {
    d = static_cast<double>(*i);
  } else if (const auto* held = std::get_if<double>(&it->second)) {
    d = *held;
  } else if (const auto* text = std::get_if<std::string>(&it->second); !text || !parse_all(*text, d)) {
    return wrong_kind(name, "a number");
  }
  if (!std::isfinite(d)) return wrong_kind(name, "a finite number");
  return d;
}

Result<bool> Params::get_bool(std::string_view name, bool fallback) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  if (const auto* b = std::get_if<bool>(&it->second)) return *b;
  if (const auto* i = std::get_if<std::int64_t>(&it->second); i && (*i == 0 || *i == 1)) return *i == 1;
  if (const auto* text = std::get_if<std::string>(&it->second)) {
    if (*text == "true" || *text == "True" || *text == "1") return true;
    if (*text == "false" || *text == "False" || *text == "0") return false;
  }
  return wrong_kind(name, "true or false");
}

Result<std::string> Params::get_string(std::string_view name, std::string fallback) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  if (const auto* text = std::get_if<std::string>(&it->second)) return *text;
  return wrong_kind(name, "a string");
}

Result<std::vector<std::string>> Params::get_strings(std::string_view name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return std::vector<std::string>{};
  if (const auto* list = std::get_if<std::vector<std::string>>(&it->second)) return *list;
  if (const auto* text = std::get_if<std::string>(&it->second)) return std::vector<std::string>{*text};
  return wrong_kind(name, "a list of strings");
}

}  // namespace mstar
