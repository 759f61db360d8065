// How a model family writes what it thinks and which tools it calls, read off its chat template.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"

namespace mstar {

enum class CallStyle : std::uint8_t {
  none,
  // <tool_call> and one of: {"name":…,"arguments":…} (Hermes, Qwen2.5, Qwen3); <function=f><parameter=p>v</parameter>
  // (Qwen3-Coder, Qwen3.5); f<arg_key>p</arg_key><arg_value>v</arg_value> (GLM). Which one, the call itself shows.
  tags,
  json,      // the reply is {"name":…,"parameters":…}, several with ; between (Llama 3)
  mistral,   // [TOOL_CALLS][{…},…], or [TOOL_CALLS]f[ARGS]{…} for each
  deepseek,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>… (V3.1; V3 and R1 in a
             // fence)
  command    // <|START_ACTION|>[{"tool_name":…,"parameters":…},…]<|END_ACTION|>
};

struct ReplyFormat {
  CallStyle calls = CallStyle::none;
  std::string think_open, think_close;  // empty: it does not think aloud
  // Marks that are left out of replies wherever they stand.
  std::vector<std::string> dropped;
  // Its marks are special tokens, which a decoder must not leave out.
  bool has_special_marks = false;

  bool thinks() const { return !think_close.empty(); }
};

// Pure. A template that is none of a known family's: no calls, no thoughts.
ReplyFormat reply_format_of(std::string_view chat_template);

// What JSON type each parameter of each tool has: those of the schema's "type", or the first of several that is not
// null; "" where it says none.
class ToolTypes {
 public:
  ToolTypes() = default;
  // `tools_json`: OpenAI's list of tools. What is not as expected has no types.
  explicit ToolTypes(const std::string& tools_json);
  std::string_view type_of(std::string_view tool, std::string_view parameter) const;

 private:
  std::map<std::string, std::map<std::string, std::string, std::less<>>, std::less<>> types_;
};

}  // namespace mstar
