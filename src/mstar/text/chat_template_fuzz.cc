// libFuzzer: any bytes as a template must give a text or an Error, within the limits. A NUL ends the template; what
// follows is the variables' JSON.
#include <cstdint>
#include <string_view>

#include "mstar/base/check.h"
#include "mstar/text/chat_template.h"
#include "mstar/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static constexpr std::string_view kVariables =
      R"({"messages":[{"role":"user","content":"Hi é"},{"role":"assistant","content":null,"tool_calls":[{"a":1.5}]}],
          "tools":[{"name":"f","parameters":{"b":[true]}}],"add_generation_prompt":true,"bos_token":"<s>","n":-3})";
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const auto compiled = mstar::ChatTemplate::compile(input.substr(0, end));
  if (!compiled) return 0;
  auto variables = mstar::jinja::Value::parse_json(end == std::string_view::npos ? kVariables : input.substr(end + 1));
  if (!variables || !variables->is(mstar::jinja::Kind::dict)) variables = mstar::jinja::Value::parse_json(kVariables);
  mstar::TemplateLimits limits;
  limits.max_steps = 20'000;
  limits.max_output_bytes = 1u << 20;
  limits.max_built_bytes = 4u << 20;
  const std::tm now{};
  const auto text = compiled->render(variables->entries(), now, limits);
  if (text) MSTAR_CHECK(mstar::is_valid_utf8(*text) && text->size() <= limits.max_output_bytes);
  return 0;
}
