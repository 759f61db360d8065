#include "mstar/text/jinja/value.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>

#include "mstar/base/check.h"

namespace mstar::jinja {
namespace {

// Dicts of up to this many entries are searched from the front.
constexpr std::size_t kSmallDict = 8;

struct TextBody final : Body {
  explicit TextBody(std::string t) : text(std::move(t)) {}
  std::string text;
};
struct ItemsBody final : Body {
  ItemsBody(std::vector<Value> i, int d) : items(std::move(i)), depth(d) {}
  std::vector<Value> items;
  int depth;
  mutable std::size_t next = 0;  // of an iterator
};
struct DictBody final : Body {
  DictBody(Dict e, int d) : entries(std::move(e)), depth(d) {}
  Dict entries;
  int depth;
};

const ItemsBody& items_body(const Value& value) { return *static_cast<const ItemsBody*>(value.body()); }

std::string integer_key(std::int64_t value) { return "i" + std::to_string(value); }

int depth_of(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

Result<Value> convert(const simdjson::dom::element& e, int depth);

Result<Value> convert_object(const simdjson::dom::object& object, int depth) {
  Dict out;
  for (const auto field : object) {
    MSTAR_TRY_ASSIGN(Value value, convert(field.value, depth + 1));
    out.set(field.key, std::move(value));
  }
  return Value::dict(std::move(out));
}

Value convert_scalar(const simdjson::dom::element& e) {
  std::int64_t integer = 0;
  std::uint64_t large = 0;
  double real = 0;
  bool flag = false;
  std::string_view text;
  if (e.get_bool().get(flag) == simdjson::SUCCESS) return Value::boolean(flag);
  if (e.get_int64().get(integer) == simdjson::SUCCESS) return Value::integer(integer);
  if (e.get_uint64().get(large) == simdjson::SUCCESS) return Value::large_integer(large);
  if (e.get_double().get(real) == simdjson::SUCCESS) return Value::real(real);
  if (e.get_string().get(text) == simdjson::SUCCESS) return Value::string(std::string(text));
  return Value::none();
}

Result<Value> convert(const simdjson::dom::element& e, int depth) {
  using Type = simdjson::dom::element_type;
  if (depth > kMaxValueDepth) return invalid_request("JSON is nested deeper than 200 levels");
  switch (e.type()) {
    case Type::ARRAY: {
      std::vector<Value> items;
      simdjson::dom::array array;
      if (e.get_array().get(array) != simdjson::SUCCESS) return Value::list({});
      for (const simdjson::dom::element item : array) {
        MSTAR_TRY_ASSIGN(Value value, convert(item, depth + 1));
        items.push_back(std::move(value));
      }
      return Value::list(std::move(items));
    }
    case Type::OBJECT: {
      simdjson::dom::object object;
      if (e.get_object().get(object) != simdjson::SUCCESS) return Value::dict({});
      return convert_object(object, depth);
    }
    default:
      return convert_scalar(e);
  }
}

std::optional<bool> less_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!equal(a[i], b[i])) return less(a[i], b[i]);
  }
  return a.size() < b.size();
}

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (!other || !equal(value, *other)) return false;
  }
  return true;
}

}  // namespace

Value Value::undefined(std::string why) {
  Value out;
  out.body_ = std::make_shared<TextBody>(std::move(why));
  return out;
}
Value Value::boolean(bool b) {
  Value out(Kind::boolean);
  out.integer_ = b ? 1 : 0;
  return out;
}
Value Value::integer(std::int64_t i) {
  Value out(Kind::integer);
  out.integer_ = i;
  return out;
}
Value Value::large_integer(std::uint64_t i) {
  Value out(i >> 63 ? Kind::large_integer : Kind::integer);
  out.integer_ = static_cast<std::int64_t>(i);
  return out;
}
Value Value::real(double d) {
  Value out(Kind::real);
  out.real_ = d;
  return out;
}
Value Value::string(std::string text) {
  Value out(Kind::string);
  out.body_ = std::make_shared<TextBody>(std::move(text));
  return out;
}
Value Value::sequence(Kind kind, std::vector<Value> items) {
  Value out(kind);
  const int depth = depth_of(items);
  out.body_ = std::make_shared<ItemsBody>(std::move(items), depth);
  return out;
}
Value Value::dict(Dict entries) {
  int depth = 0;
  for (const auto& [key, value] : entries.entries()) depth = std::max({depth, key.depth(), value.depth()});
  Value out(Kind::dict);
  out.body_ = std::make_shared<DictBody>(std::move(entries), depth + 1);
  return out;
}
Value Value::object(std::shared_ptr<const Body> body, int depth) {
  Value out(Kind::object);
  out.body_ = std::move(body);
  out.integer_ = depth;
  return out;
}
Value Value::borrowed_object(const Body& body) {
  return object(std::shared_ptr<const Body>(std::shared_ptr<const Body>(), &body), 0);
}

Result<Value> Value::parse_json(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const auto error = parser.parse(json.data(), json.size()).get(root);
  if (error) return invalid_request(std::string("JSON: ") + simdjson::error_message(error));
  return convert(root, 0);
}

const std::string& Value::text() const {
  static const std::string empty;
  if (!body_) return empty;
  return static_cast<const TextBody*>(body_.get())->text;
}
const std::vector<Value>& Value::items() const {
  MSTAR_CHECK(is_sequence());
  return items_body(*this).items;
}
const Dict& Value::entries() const {
  MSTAR_CHECK(is(Kind::dict));
  return static_cast<const DictBody*>(body_.get())->entries;
}

int Value::depth() const {
  if (is_sequence()) return items_body(*this).depth;
  if (is(Kind::dict)) return static_cast<const DictBody*>(body_.get())->depth;
  return is(Kind::object) ? static_cast<int>(integer_) : 0;
}

std::vector<Value> Value::take_items() const {
  if (!is(Kind::iterator)) return items();
  const ItemsBody& body = items_body(*this);
  const auto from = static_cast<std::ptrdiff_t>(body.next);
  body.next = body.items.size();
  return {body.items.begin() + from, body.items.end()};
}
std::optional<Value> Value::take_next() const {
  const ItemsBody& body = items_body(*this);
  if (body.next >= body.items.size()) return std::nullopt;
  return body.items[body.next++];
}

std::optional<std::size_t> Dict::position(const Value& key) const {
  if (index_.empty()) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (equal(entries_[i].first, key)) return i;
    }
    return std::nullopt;
  }
  const auto name = key_of(key);
  if (!name) return std::nullopt;
  const auto found = index_.find(*name);
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

bool Dict::set(const Value& key, Value value) {
  auto name = key_of(key);
  if (!name) return false;
  if (const auto at = position(key)) {
    entries_[*at].second = std::move(value);
    return true;
  }
  entries_.emplace_back(key, std::move(value));
  if (!index_.empty()) {
    index_.emplace(std::move(*name), entries_.size() - 1);
  } else if (entries_.size() > kSmallDict) {
    for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(*key_of(entries_[i].first), i);
  }
  return true;
}

const Value* Dict::find(const Value& key) const {
  const auto at = position(key);
  return at ? &entries_[*at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [name, value] : entries_) {
      if (name.is(Kind::string) && name.text() == key) return &value;
    }
    return nullptr;
  }
  const auto found = index_.find(std::string("s").append(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return value.as_int() != 0;
    case Kind::large_integer:
      return true;
    case Kind::real:
      return value.as_real() != 0;
    case Kind::string:
      return !value.text().empty();
    case Kind::dict:
      return !value.entries().empty();
    case Kind::iterator:
    case Kind::object:
      return true;
    default:
      return !value.items().empty();
  }
}

namespace {

// Any number: 64 bits of mantissa, so an integer loses nothing.
long double wide(const Value& v) {
  if (v.is(Kind::large_integer)) return static_cast<long double>(v.as_large());
  return v.is_int_like() ? static_cast<long double>(v.as_int()) : static_cast<long double>(v.as_real());
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_int_like() && b.is_int_like()) return a.as_int() == b.as_int();
    return wide(a) == wide(b);
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::string:
      return a.text() == b.text();
    case Kind::dict:
      return a.body() == b.body() || equal_dicts(a.entries(), b.entries());
    case Kind::object:
    case Kind::iterator:
    case Kind::dict_values:
      return a.body() == b.body();
    default:
      return a.body() == b.body() || equal_items(a.items(), b.items());
  }
}

std::optional<std::string> key_of(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return "u";
    case Kind::none:
      return "n";
    case Kind::boolean:
    case Kind::integer:
      return integer_key(value.as_int());
    case Kind::large_integer:
      return "i" + std::to_string(value.as_large());
    case Kind::real: {
      const double d = value.as_real();
      if (std::abs(d) < 9e18 && d == std::trunc(d)) return integer_key(static_cast<std::int64_t>(d));
      if (d >= 0x1p63 && d < 0x1p64) return "i" + std::to_string(static_cast<std::uint64_t>(d));
      return "f" + std::to_string(std::hash<double>()(d));
    }
    case Kind::string:
      return "s" + value.text();
    case Kind::tuple:
    case Kind::range: {
      std::string key = value.is(Kind::tuple) ? "(" : "r";
      for (const Value& item : value.items()) {
        const auto part = key_of(item);
        if (!part) return std::nullopt;
        key.append(std::to_string(part->size())).append(":").append(*part);
      }
      return key;
    }
    default:
      return std::nullopt;
  }
}

std::optional<bool> less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_int_like() && b.is_int_like()) return a.as_int() < b.as_int();
    return wide(a) < wide(b);
  }
  if (a.kind() != b.kind()) return std::nullopt;
  // The order of UTF-8 bytes is that of code points.
  if (a.is(Kind::string)) return a.text() < b.text();
  if (a.is(Kind::list) || a.is(Kind::tuple)) return less_items(a.items(), b.items());
  return std::nullopt;
}

std::string_view type_name(const Value& value) {
  constexpr std::string_view kNames[] = {"Undefined",  "NoneType",  "bool",  "int",   "int",       "float",
                                         "str",        "list",      "tuple", "range", "dict_keys", "dict_values",
                                         "dict_items", "generator", "dict",  "object"};
  return kNames[static_cast<std::size_t>(value.kind())];
}

}  // namespace mstar::jinja
