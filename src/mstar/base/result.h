// Errors as values: Result<T>, Status, and the macros that pass them on. See docs/adr/0001-errors-as-values.md.
#pragma once

#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace mstar {

// What kind of failure it is; one table in server/ maps a code to an HTTP status.
enum class Code {
  invalid_request,  // the caller's input is wrong; retrying the same input fails again
  bad_model,        // a checkpoint, config or declaration is wrong
  exhausted,        // memory, pages, slots, queue space or time ran out
  unavailable,      // a worker, device or peer is gone
  cancelled,        // the client went away or the request was aborted
  internal,         // a library failed in a way that none of the above says
};

std::string_view code_name(Code code);

// A failure with a message that says what to do. `field` names the request or config field at fault, when there is one;
// `reason` is a word for programs, such as kContextExceeded, where `code` alone does not tell what they may do about
// it.
struct Error {
  Code code = Code::internal;
  std::string message;
  std::string field;
  std::string reason;
  const char* file = "";
  int line = 0;

  Error() = default;
  Error(Code c, std::string m, const char* f = __builtin_FILE(), int l = __builtin_LINE())
      : code(c), message(std::move(m)), file(f), line(l) {}
  Error&& with_field(std::string name) && {
    field = std::move(name);
    return std::move(*this);
  }
  Error&& with_reason(std::string_view word) && {
    reason = word;
    return std::move(*this);
  }
  // Puts "context: " before the message.
  Error&& in(std::string_view context) && {
    message.insert(0, ": ").insert(0, context);
    return std::move(*this);
  }
};

// Prompt and answer are longer than the model can hold.
inline constexpr std::string_view kContextExceeded = "context_length_exceeded";

inline Error invalid_request(std::string m, const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
  return Error(Code::invalid_request, std::move(m), f, l);
}
inline Error bad_model(std::string m, const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
  return Error(Code::bad_model, std::move(m), f, l);
}
inline Error exhausted(std::string m, const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
  return Error(Code::exhausted, std::move(m), f, l);
}
inline Error unavailable(std::string m, const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
  return Error(Code::unavailable, std::move(m), f, l);
}
inline Error cancelled(std::string m, const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
  return Error(Code::cancelled, std::move(m), f, l);
}
inline Error internal_error(std::string m, const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
  return Error(Code::internal, std::move(m), f, l);
}

[[noreturn]] void bad_result_access(const Error* error);

// Either a T or an Error. Member names follow std::expected.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit on purpose
  template <class U>
  requires(std::is_convertible_v<U&&, T> && !std::is_same_v<std::decay_t<U>, T> &&
           !std::is_same_v<std::decay_t<U>, Error> && !std::is_same_v<std::decay_t<U>, Result<T>>) Result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}  // NOLINT: implicit on purpose

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& value() {
    if (!has_value()) bad_result_access(&error());
    return *std::get_if<0>(&state_);
  }
  const T& value() const { return const_cast<Result*>(this)->value(); }
  Error& error() {
    if (has_value()) bad_result_access(nullptr);
    return *std::get_if<1>(&state_);
  }
  const Error& error() const { return const_cast<Result*>(this)->error(); }
  T value_or(T other) && { return has_value() ? std::move(value()) : std::move(other); }

 private:
  std::variant<T, Error> state_;
};

// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose

  bool has_value() const { return !error_; }
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  Error& error() {
    if (!error_) bad_result_access(nullptr);
    return *error_;
  }
  const Error& error() const { return const_cast<Status*>(this)->error(); }

 private:
  std::optional<Error> error_;
};

inline Status ok_status() { return {}; }

#define MSTAR_CONCAT_INNER(a, b) a##b
#define MSTAR_CONCAT(a, b) MSTAR_CONCAT_INNER(a, b)

// Returns the error of `expr` (a Status or Result) from the enclosing function, if it holds one.
#define MSTAR_TRY(expr)                                                \
  do {                                                                 \
    auto mstar_try_result = (expr);                                    \
    if (!mstar_try_result) return std::move(mstar_try_result.error()); \
  } while (false)

// MSTAR_TRY_ASSIGN(auto x, f()): declares or assigns x from a Result, or returns its error.
#define MSTAR_TRY_ASSIGN(target, expr) MSTAR_TRY_ASSIGN_INNER(MSTAR_CONCAT(mstar_try_, __LINE__), target, expr)
#define MSTAR_TRY_ASSIGN_INNER(tmp, target, expr) \
  auto tmp = (expr);                              \
  if (!tmp) return std::move(tmp.error());        \
  target = std::move(*tmp)

}  // namespace mstar
