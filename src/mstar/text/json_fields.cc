#include "mstar/text/json_fields.h"

#include <limits>

#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

Error fault(std::string_view where, std::string_view what) {
  std::string message = "tokenizer.json: ";
  message.append(where).append(": ").append(what);
  return bad_model(std::move(message));
}
Error unsupported(std::string_view where, std::string_view what) {
  return fault(where, std::string(what) + " is not supported");
}

std::optional<dom::element> member(const dom::object& o, std::string_view name) {
  dom::element e;
  if (o.at_key(name).get(e) != simdjson::SUCCESS || e.is_null()) return std::nullopt;
  return e;
}

Result<std::string_view> string_of(const dom::element& e, std::string_view where) {
  std::string_view text;
  if (e.get_string().get(text) != simdjson::SUCCESS) return fault(where, "must be a string");
  return text;
}
Result<std::string_view> string_at(const dom::object& o, std::string_view name, std::string_view where) {
  const auto e = member(o, name);
  if (!e) return fault(where, "lacks " + std::string(name));
  return string_of(*e, std::string(where) + "." + std::string(name));
}
Result<bool> bool_at(const dom::object& o, std::string_view name, bool fallback, std::string_view where) {
  const auto e = member(o, name);
  if (!e) return fallback;
  bool value = false;
  if (e->get_bool().get(value) != simdjson::SUCCESS) {
    return fault(std::string(where) + "." + std::string(name), "must be true or false");
  }
  return value;
}
Result<std::int32_t> id_of(const dom::element& e, std::string_view where) {
  std::int64_t id = -1;
  if (e.get_int64().get(id) != simdjson::SUCCESS || id < 0 || id >= std::numeric_limits<std::int32_t>::max()) {
    return fault(where, "must be a token id of 0 or more");
  }
  return static_cast<std::int32_t>(id);
}
Result<dom::object> object_of(const dom::element& e, std::string_view where) {
  dom::object o;
  if (e.get_object().get(o) != simdjson::SUCCESS) return fault(where, "must be an object");
  return o;
}
Result<dom::array> array_at(const dom::object& o, std::string_view name, std::string_view where) {
  const auto e = member(o, name);
  dom::array a;
  if (!e || e->get_array().get(a) != simdjson::SUCCESS) return fault(where, std::string(name) + " must be a list");
  return a;
}

Result<std::int64_t> count_at(const dom::object& o, std::string_view name, std::int64_t fallback,
                              std::string_view where) {
  const auto e = member(o, name);
  if (!e) return fallback;
  std::int64_t count = 0;
  if (e->get_int64().get(count) != simdjson::SUCCESS || count < 0) {
    return fault(std::string(where) + "." + std::string(name), "must be a count");
  }
  return count;
}

// {"String": "..."} or {"Regex": "..."}
Result<PatternSpec> read_pattern(const dom::object& o, std::string_view where) {
  const auto e = member(o, "pattern");
  if (!e) return fault(where, "lacks pattern");
  MSTAR_TRY_ASSIGN(const dom::object pattern, object_of(*e, where));
  if (const auto text = member(pattern, "String")) {
    MSTAR_TRY_ASSIGN(const std::string_view value, string_of(*text, where));
    return PatternSpec{value, false};
  }
  if (const auto regex = member(pattern, "Regex")) {
    MSTAR_TRY_ASSIGN(const std::string_view value, string_of(*regex, where));
    return PatternSpec{value, true};
  }
  return fault(where, "pattern must be a String or a Regex");
}

}  // namespace mstar::text
