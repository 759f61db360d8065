// Structured log lines on stderr, by spdlog. Thread: any.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <string>
#include <string_view>

namespace mstar {

enum class LogLevel { trace, debug, info, warn, error, off };

// Sets the least level that is printed; "info" at start. Unknown names leave it as it is and return false.
bool set_log_level(std::string_view name);
std::string_view log_level_name();
// Put into every later line, for a process that shares its standard error with others. Before other threads log.
void set_log_origin(const std::string& origin);
void log_line(LogLevel level, std::string_view message);
bool log_enabled(LogLevel level);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> f, Args&&... a) {
  log(LogLevel::info, f, std::forward<Args>(a)...);
}
template <class... Args>
void log_warn(fmt::format_string<Args...> f, Args&&... a) {
  log(LogLevel::warn, f, std::forward<Args>(a)...);
}
template <class... Args>
void log_error(fmt::format_string<Args...> f, Args&&... a) {
  log(LogLevel::error, f, std::forward<Args>(a)...);
}
template <class... Args>
void log_debug(fmt::format_string<Args...> f, Args&&... a) {
  log(LogLevel::debug, f, std::forward<Args>(a)...);
}

}  // namespace mstar
