// What a template computes with: Python's values as far as chat templates use them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::jinja {

enum class Kind : std::uint8_t {
  undefined,
  none,
  boolean,
  integer,
  large_integer,  // from 2^63 to 2^64 - 1, as JSON may hold it: shown and compared, but not computed with
  real,
  string,
  list,
  tuple,
  range,
  dict_keys,
  dict_values,
  dict_items,
  iterator,  // can be walked once
  dict,
  object,  // namespace, macro, function, method, loop
};

// What a Value shares. Immutable but for iterators and objects.
class Body {
 public:
  virtual ~Body() = default;
};

class Dict;

// A cheap copy: scalars inside, the rest shared. Containers hold no cycles: what a template can change (a namespace) is
// owned by the renderer and only pointed at. Thread: values are shared between threads only while none is an iterator
// or an object.
class Value {
 public:
  Value() = default;  // undefined
  static Value undefined(std::string why);
  static Value none() { return Value(Kind::none); }
  static Value boolean(bool b);
  static Value integer(std::int64_t i);
  static Value large_integer(std::uint64_t i);  // an integer where it fits
  static Value real(double d);
  static Value string(std::string text);  // valid UTF-8
  static Value list(std::vector<Value> items) { return sequence(Kind::list, std::move(items)); }
  // `kind` from list to iterator.
  static Value sequence(Kind kind, std::vector<Value> items);
  static Value dict(Dict entries);
  // Owned by the value, or, with `owned` false, by somebody who outlives it.
  static Value object(std::shared_ptr<const Body> body, int depth);
  static Value borrowed_object(const Body& body);
  // invalid_request on malformed JSON, on nesting deeper than 200 and on integers from -2^63 - 1 down or from 2^64 up.
  static Result<Value> parse_json(std::string_view json);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_sequence() const { return kind_ >= Kind::list && kind_ <= Kind::iterator; }
  bool is_number() const { return kind_ >= Kind::boolean && kind_ <= Kind::real; }
  bool is_int_like() const { return kind_ == Kind::boolean || kind_ == Kind::integer; }
  bool as_bool() const { return integer_ != 0; }
  std::int64_t as_int() const { return integer_; }                                 // boolean too
  std::uint64_t as_large() const { return static_cast<std::uint64_t>(integer_); }  // large_integer
  double as_real() const {                                                         // any number
    if (is(Kind::large_integer)) return static_cast<double>(as_large());
    return is(Kind::real) ? real_ : static_cast<double>(integer_);
  }
  const std::string& text() const;          // string; of undefined, why it is so
  const std::vector<Value>& items() const;  // of a sequence; of an iterator, all of it
  const Dict& entries() const;
  const Body* body() const { return body_.get(); }
  // Containers inside of containers.
  int depth() const;
  // What is left of an iterator, which is then at its end; all of another sequence.
  std::vector<Value> take_items() const;
  std::optional<Value> take_next() const;  // of an iterator

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::undefined;
  std::int64_t integer_ = 0;
  double real_ = 0;
  std::shared_ptr<const Body> body_;
};

// Keeps the order in which keys came.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  // False for a key that can't be one (a list or a dict). A key that is there keeps its place.
  bool set(const Value& key, Value value);
  void set(std::string_view key, Value value) { set(Value::string(std::string(key)), std::move(value)); }
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

 private:
  std::optional<std::size_t> position(const Value& key) const;

  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;  // by key_of; only of dicts that are not small
};

// The deepest container that is built or read.
inline constexpr int kMaxValueDepth = 200;

bool truthy(const Value& value);
// Python's ==.
bool equal(const Value& a, const Value& b);
// A string that equal hashable values share; nullopt for what can't be a key.
std::optional<std::string> key_of(const Value& value);
// Python's <, or nullopt where Python raises TypeError.
std::optional<bool> less(const Value& a, const Value& b);
// The name that Python prints for the type: "str", "dict", ...
std::string_view type_name(const Value& value);

}  // namespace mstar::jinja
