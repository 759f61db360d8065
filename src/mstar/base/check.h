// A broken invariant of ours ends the process. No byte from outside may reach a check: return an Error for those.
#pragma once

#include <string_view>

namespace mstar {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, std::string_view note = {});
}

#define MSTAR_CHECK(condition, ...)                                                     \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      ::mstar::check_failed(#condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)

#ifdef NDEBUG
#define MSTAR_DCHECK(condition) \
  do {                          \
  } while (false)
#else
#define MSTAR_DCHECK(condition) MSTAR_CHECK(condition)
#endif
