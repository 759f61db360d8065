// For tools/golden/jinja_fuzz.py: reads one JSON object a line, {"template": ..., "variables": {...}}, and answers each
// with {"text": ...} or {"error": ...}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "mstar/text/chat_template.h"

namespace {

mstar::Result<std::string> answer(const std::string& line) {
  MSTAR_TRY_ASSIGN(const mstar::jinja::Value request, mstar::jinja::Value::parse_json(line));
  if (!request.is(mstar::jinja::Kind::dict)) return mstar::invalid_request("a line must be an object");
  const auto* source = request.entries().find("template");
  const auto* variables = request.entries().find("variables");
  if (!source || !variables) return mstar::invalid_request("a line must hold template and variables");
  MSTAR_TRY_ASSIGN(const mstar::ChatTemplate compiled, mstar::ChatTemplate::compile(source->text()));
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 9;
  now.tm_wday = 5;
  now.tm_yday = 207;
  return compiled.render(variables->entries(), now);
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto text = answer(line);
    nlohmann::json out;
    if (text) {
      out["text"] = *text;
    } else {
      out["error"] = text.error().message;
    }
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
