#include "mstar/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace mstar {
namespace {

spdlog::logger& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_color_mt("mstar");
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum native(LogLevel level) {
  switch (level) {
    case LogLevel::trace:
      return spdlog::level::trace;
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warn:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

constexpr std::string_view kNames[] = {"trace", "debug", "info", "warn", "error", "off"};

}  // namespace

bool set_log_level(std::string_view name) {
  for (int i = 0; i < 6; ++i) {
    if (kNames[i] == name) {
      logger().set_level(native(static_cast<LogLevel>(i)));
      return true;
    }
  }
  return false;
}

std::string_view log_level_name() {
  for (int i = 0; i < 6; ++i)
    if (native(static_cast<LogLevel>(i)) == logger().level()) return kNames[i];
  return "info";
}

void set_log_origin(const std::string& origin) {
  std::string name;
  for (const char c : origin) name += c == '%' ? "%%" : std::string(1, c);
  logger().set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ [" + name + "] %v");
}

void log_line(LogLevel level, std::string_view message) {
  logger().log(native(level), spdlog::string_view_t(message.data(), message.size()));
}

bool log_enabled(LogLevel level) { return logger().should_log(native(level)); }

}  // namespace mstar
