#include "mstar/base/check.h"

#include <cstdio>
#include <cstdlib>

#include "mstar/base/result.h"

namespace mstar {

void check_failed(const char* condition, const char* file, int line, std::string_view note) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s%s%.*s\n", file, line, condition, note.empty() ? "" : ": ",
               static_cast<int>(note.size()), note.data());
  std::fflush(stderr);
  std::abort();
}

void bad_result_access(const Error* error) {
  check_failed(error ? "value of a failed Result was read" : "error of a successful Result was read",
               error ? error->file : __FILE__, error ? error->line : __LINE__, error ? error->message : "");
}

std::string_view code_name(Code code) {
  switch (code) {
    case Code::invalid_request:
      return "invalid_request";
    case Code::bad_model:
      return "bad_model";
    case Code::exhausted:
      return "exhausted";
    case Code::unavailable:
      return "unavailable";
    case Code::cancelled:
      return "cancelled";
    case Code::internal:
      return "internal";
  }
  return "internal";
}

}  // namespace mstar
