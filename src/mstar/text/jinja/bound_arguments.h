// Arguments in the order of a function's parameters.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "mstar/text/jinja/renderer.h"

namespace mstar::jinja {

class BoundArguments {
 public:
  // bad_model when there are too many, an unknown name, or one of the first `num_required` is missing. `arguments` is
  // borrowed.
  static Result<BoundArguments> bind(Renderer& renderer, const Arguments& arguments,
                                     std::initializer_list<std::string_view> names, std::size_t num_required = 0) {
    BoundArguments out;
    out.values_.resize(names.size(), nullptr);
    if (arguments.positional.size() > names.size()) return renderer.fail("too many arguments");
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) out.values_[i] = &arguments.positional[i];
    for (const auto& [name, value] : arguments.named) {
      std::size_t at = 0;
      while (at < names.size() && *(names.begin() + at) != name) ++at;
      if (at == names.size()) return renderer.fail("unexpected keyword argument '" + name + "'");
      if (out.values_[at]) return renderer.fail("the argument '" + name + "' comes twice");
      out.values_[at] = &value;
    }
    for (std::size_t i = 0; i < num_required; ++i) {
      if (!out.values_[i]) return renderer.fail("missing argument '" + std::string(*(names.begin() + i)) + "'");
    }
    return out;
  }

  bool has(std::size_t at) const { return values_[at] != nullptr; }
  // Given, and not None.
  bool is_set(std::size_t at) const { return values_[at] && !values_[at]->is(Kind::none); }
  const Value& operator[](std::size_t at) const { return *values_[at]; }
  bool flag(std::size_t at, bool fallback) const { return values_[at] ? truthy(*values_[at]) : fallback; }
  Result<std::int64_t> integer(const Renderer& renderer, std::size_t at, std::int64_t fallback) const {
    if (!values_[at]) return fallback;
    if (values_[at]->is(Kind::undefined)) return renderer.fail(values_[at]->text());
    if (!values_[at]->is_int_like())
      return renderer.fail("'" + std::string(type_name(*values_[at])) + "' object cannot be interpreted as an integer");
    return values_[at]->as_int();
  }
  Result<std::string> string(const Renderer& renderer, std::size_t at, std::string_view fallback) const {
    if (!values_[at]) return std::string(fallback);
    if (!values_[at]->is(Kind::string))
      return renderer.fail("expected str, got " + std::string(type_name(*values_[at])));
    return values_[at]->text();
  }

 private:
  std::vector<const Value*> values_;
};

}  // namespace mstar::jinja
