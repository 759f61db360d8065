// libFuzzer: any bytes as a reply, cut into two at any place, must come out as the whole does. The first byte chooses
// the family, the second one the cut.
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "mstar/base/check.h"
#include "mstar/text/reply/reply_parser.h"

namespace {

using mstar::ReplyPart;

constexpr std::array<std::string_view, 6> kTemplates = {"<tool_call></think>",
                                                        "[TOOL_CALLS][THINK]",
                                                        "<|python_tag|>",
                                                        "<｜tool▁call▁begin｜></think>",
                                                        "<|START_ACTION|><|START_THINKING|>",
                                                        ""};

std::vector<ReplyPart> read(std::string_view source, std::string_view text, std::size_t cut) {
  static const auto types = std::make_shared<const mstar::ToolTypes>(
      R"([{"function":{"name":"f","parameters":{"properties":{"a":{"type":"integer"},"b":{"type":"string"}}}}}])");
  mstar::ReplyParser parser(mstar::reply_format_of(source), types, text.size() % 2 == 1);
  std::vector<ReplyPart> parts;
  parser.push(text.substr(0, cut), parts);
  parser.push(text.substr(cut), parts);
  parser.finish(parts);
  return parts;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view source = kTemplates[data[0] % kTemplates.size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto whole = read(source, text, 0);
  MSTAR_CHECK(whole == read(source, text, data[1] * text.size() / 256), "a reply depends on how it was cut");
  int calls = 0;
  for (const ReplyPart& part : whole) {
    if (part.kind == ReplyPart::Kind::call) ++calls;
    MSTAR_CHECK(part.call < calls, "arguments before their call");
  }
  return 0;
}
