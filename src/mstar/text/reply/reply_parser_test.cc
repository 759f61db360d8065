#include "mstar/text/reply/reply_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace mstar {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

struct Call {
  std::string name, arguments;
  friend bool operator==(const Call&, const Call&) = default;
};
void PrintTo(const Call& call, std::ostream* out) { *out << call.name << call.arguments; }

struct Reply {
  std::string text, thought;
  std::vector<Call> calls;
  friend bool operator==(const Reply&, const Reply&) = default;
};
void PrintTo(const Reply& reply, std::ostream* out) {
  *out << json{{"text", reply.text}, {"thought", reply.thought}}.dump(-1, ' ', false, json::error_handler_t::replace);
  for (const Call& call : reply.calls) *out << ' ' << call.name << call.arguments;
}

Reply joined(const std::vector<ReplyPart>& parts) {
  Reply out;
  for (const ReplyPart& part : parts) {
    using Kind = ReplyPart::Kind;
    if (part.kind == Kind::text) out.text += part.text;
    if (part.kind == Kind::thought) out.thought += part.text;
    if (part.kind == Kind::call) {
      EXPECT_EQ(part.call, static_cast<int>(out.calls.size()));
      out.calls.push_back({part.text, ""});
    }
    if (part.kind == Kind::arguments) {
      EXPECT_EQ(part.call + 1, static_cast<int>(out.calls.size()));
      out.calls.back().arguments += part.text;
    }
  }
  return out;
}

struct How {
  ReplyFormat format;
  std::shared_ptr<const ToolTypes> types = {};
  bool begins_thinking = false;
};

// In pieces that end at these places, in order.
Reply read(const How& how, std::string_view text, const std::vector<std::size_t>& ends = {}) {
  ReplyParser parser(how.format, how.types, how.begins_thinking);
  std::vector<ReplyPart> parts;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    std::vector<ReplyPart> some;
    parser.push(text.substr(begin, end - begin), some);
    parts.insert(parts.end(), some.begin(), some.end());
    begin = end;
  }
  parser.push(text.substr(begin), parts);
  parser.finish(parts);
  return joined(parts);
}

// Whole, byte by byte, and cut at random places: the same.
Reply read_any_way(const How& how, std::string_view text) {
  const Reply whole = read(how, text);
  std::vector<std::size_t> bytes;
  for (std::size_t i = 1; i < text.size(); ++i) bytes.push_back(i);
  EXPECT_EQ(read(how, text, bytes), whole);
  std::mt19937 random(7);
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<std::size_t> some;
    for (const std::size_t each : bytes)
      if (random() % 8 == 0) some.push_back(each);
    EXPECT_EQ(read(how, text, some), whole);
  }
  return whole;
}

How tags() { return {reply_format_of("<tool_call> <think>")}; }

const std::string kTools =
    R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":
  {"city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":["null","boolean"]},"where":{"anyOf":[{"type":"null"},{"type":"object"}]}}}}}])";

How typed(How how) {
  how.types = std::make_shared<const ToolTypes>(kTools);
  return how;
}

TEST(ReplyFormat, IsReadOffTheTemplate) {
  EXPECT_EQ(reply_format_of("{{ messages }}").calls, CallStyle::none);
  EXPECT_FALSE(reply_format_of("{{ messages }}").thinks());
  EXPECT_EQ(reply_format_of("a <tool_call> b").calls, CallStyle::tags);
  EXPECT_EQ(reply_format_of("'[TOOL_CALLS] '").calls, CallStyle::mistral);
  EXPECT_EQ(reply_format_of("<|python_tag|>").calls, CallStyle::json);
  EXPECT_EQ(reply_format_of("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>").calls, CallStyle::deepseek);
  EXPECT_EQ(reply_format_of("<|START_ACTION|>").calls, CallStyle::command);
  EXPECT_TRUE(reply_format_of("split('</think>')").thinks());
  EXPECT_EQ(reply_format_of("[THINK]").think_close, "[/THINK]");
}

TEST(ReplyParser, TextIsText) {
  for (const How& how : {tags(), How{ReplyFormat()}, How{reply_format_of("<|python_tag|>")}}) {
    EXPECT_EQ(read_any_way(how, "").text, "");
    EXPECT_EQ(read_any_way(how, "Hello <b>you</b> <tool> [x] {}\n").text, "Hello <b>you</b> <tool> [x] {}\n");
    EXPECT_EQ(read_any_way(how, "a <tool_cal").text, "a <tool_cal");
  }
}

TEST(ReplyParser, ThoughtsStandApart) {
  const Reply reply = read_any_way(tags(), "<think>\nHm. 1 < 2\n\n</think>\n\nYes.\n");
  EXPECT_EQ(reply.thought, "Hm. 1 < 2");
  EXPECT_EQ(reply.text, "Yes.\n");
  How open = tags();
  open.begins_thinking = true;
  EXPECT_EQ(read_any_way(open, "Hm.\n</think>\n\nYes."), (Reply{"Yes.", "Hm.", {}}));
  EXPECT_EQ(read_any_way(open, "<think>\nHm.\n</think>\n\nYes."), (Reply{"Yes.", "Hm.", {}}));
  EXPECT_EQ(read_any_way(open, "It breaks o"), (Reply{"", "It breaks o", {}}));
  EXPECT_EQ(read_any_way(tags(), "<think></think>Yes. <think>"), (Reply{"Yes. <think>", "", {}}));
}

TEST(ReplyParser, HermesAndQwen3) {
  const Reply reply = read_any_way(tags(),
                                   "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
                                   "\"Z\\u00fc\\\"}\", \"days\": [1, {}]}}\n</tool_call>\n"
                                   "<tool_call>\n{\"arguments\": {\"a\": 1}, \"name\": \"f\"}\n</tool_call>");
  EXPECT_EQ(reply.text, "I look.");
  EXPECT_THAT(reply.calls,
              ElementsAre(Call{"weather", R"({"city": "Z\u00fc\"}", "days": [1, {}]})"}, Call{"f", R"({"a": 1})"}));
  EXPECT_THAT(read_any_way(tags(), R"(<tool_call>{"name": "f"}</tool_call>)").calls, ElementsAre(Call{"f", "{}"}));
  EXPECT_THAT(read_any_way(tags(), R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)").calls,
              ElementsAre(Call{"f", R"({"a": 1})"}));
  EXPECT_THAT(read_any_way(tags(), R"(<tool_call>{"name": "f", "arguments": null})").calls,
              ElementsAre(Call{"f", "{}"}));
}

TEST(ReplyParser, QwenCoderByTheToolsTypes) {
  const std::string said =
      "<tool_call>\n<function=weather>\n<parameter=city>\nNew\n\"York\"\n</parameter>\n<parameter=days>\n3\n</"
      "parameter>\n"
      "<parameter=exact>\nTrue\n</parameter>\n<parameter=where>\n{\"x\": "
      "1}\n</parameter>\n<parameter=else>\n7\n</parameter>\n</function>\n</tool_call>";
  const Reply reply = read_any_way(typed(tags()), said);
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(json::parse(reply.calls[0].arguments),
            (json{{"city", "New\n\"York\""}, {"days", 3}, {"exact", true}, {"where", {{"x", 1}}}, {"else", "7"}}));
  EXPECT_EQ(reply.text, "");
  EXPECT_THAT(read_any_way(tags(), "<tool_call>\n<function=f>\n</function>\n</tool_call>\nDone.").calls,
              ElementsAre(Call{"f", "{}"}));
  EXPECT_THAT(
      read_any_way(tags(), "<tool_call><function=f><parameter=a>1\n<parameter=b>2\n</function></tool_call>").calls,
      ElementsAre(Call{"f", R"({"a": "1", "b": "2"})"}));
}

TEST(ReplyParser, Glm) {
  const Reply reply =
      read_any_way(typed(tags()),
                   "<think>So.</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n"
                   "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>z</arg_key><arg_value>[1]</"
                   "arg_value>\n</tool_call>");
  EXPECT_EQ(reply.thought, "So.");
  EXPECT_THAT(reply.calls, ElementsAre(Call{"weather", R"({"city": "12", "days": 2, "z": [1]})"}));
  EXPECT_THAT(read_any_way(tags(), "<tool_call>now</tool_call>").calls, ElementsAre(Call{"now", "{}"}));
}

TEST(ReplyParser, Llama3) {
  const How llama{reply_format_of("<|python_tag|>")};
  EXPECT_THAT(read_any_way(llama, R"({"name": "f", "parameters": {"a": 1}})").calls,
              ElementsAre(Call{"f", R"({"a": 1})"}));
  EXPECT_THAT(
      read_any_way(
          llama,
          R"(<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": [2]}})")
          .calls,
      ElementsAre(Call{"f", "{}"}, Call{"g", R"({"b": [2]})"}));
  for (const char* const text :
       {R"({"a": 1} is JSON.)", R"({"name": 5})", "{", "{}", R"(Say {"name": "f", "parameters": {}})"})
    EXPECT_EQ(read_any_way(llama, text), (Reply{text, "", {}}));
}

TEST(ReplyParser, Mistral) {
  const How mistral{reply_format_of("[TOOL_CALLS]")};
  EXPECT_THAT(
      read_any_way(
          mistral,
          R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}, "id": "123456789"}])")
          .calls,
      ElementsAre(Call{"f", R"({"a": 1})"}, Call{"g", "{}"}));
  EXPECT_THAT(
      read_any_way(mistral, R"(Well.[TOOL_CALLS]f[ARGS]{"a": "}"}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{})").calls,
      ElementsAre(Call{"f", R"({"a": "}"})"}, Call{"g", "{}"}));
}

TEST(ReplyParser, DeepSeek) {
  const How deepseek{reply_format_of("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>")};
  EXPECT_THAT(
      read_any_way(
          deepseek,
          "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
          "1}\n```<｜tool▁call▁end｜>\n"
          "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      (Reply{"Let me see.", "", {{"f", "{\"a\": 1}"}, {"g", "{}"}}}));
  EXPECT_THAT(
      read_any_way(
          deepseek,
          "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>")
          .calls,
      ElementsAre(Call{"f", "{\"a\": 1}"}));
}

TEST(ReplyParser, Command) {
  const How command{reply_format_of("<|START_ACTION|> <|START_THINKING|>")};
  EXPECT_EQ(read_any_way(command, R"(<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}},
    {"tool_call_id": "1", "tool_name": "g", "parameters": {}}
]<|END_ACTION|>)"),
            (Reply{"", "I look.", {{"f", R"({"a": 1})"}, {"g", "{}"}}}));
  EXPECT_EQ(read_any_way(command, "<|START_RESPONSE|>Hello.<|END_RESPONSE|>").text, "Hello.");
}

TEST(ReplyParser, WhatIsNoCallComesBack) {
  for (const char* const text : {"a <tool_call>", "a <tool_call> <b>", "a <tool_call>{\"x\": 1}",
                                 "a <tool_call>\n{\"name\"", "<tool_call>two words\n", "<tool_call>[]"}) {
    const Reply reply = read_any_way(tags(), text);
    EXPECT_EQ(reply, (Reply{text, "", {}}));
  }
  // What was told of a call stays.
  EXPECT_THAT(read_any_way(tags(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ").calls,
              ElementsAre(Call{"f", "{\"a\": "}));
  EXPECT_THAT(read_any_way(tags(), "<tool_call><function=f><parameter=a>1").calls,
              ElementsAre(Call{"f", "{\"a\": \"1\"}"}));
}

// Replies of marks and text in any order: all ways to cut them agree, and nothing of plain text is lost.
TEST(ReplyParser, RandomRepliesCutAnyWay) {
  const std::vector<std::string> pieces = {"<think>",
                                           "</think>",
                                           "<tool_call>",
                                           "</tool_call>",
                                           "{\"name\": \"f\", ",
                                           "\"arguments\": {\"a\": 1}}",
                                           "<function=f>",
                                           "<parameter=p>",
                                           "</parameter>",
                                           "</function>",
                                           "<arg_key>",
                                           "</arg_key>",
                                           "<arg_value>",
                                           "</arg_value>",
                                           "[TOOL_CALLS]",
                                           "[ARGS]",
                                           "[CALL_ID]",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           "\"",
                                           "\\",
                                           ",",
                                           ";",
                                           "\n",
                                           " ",
                                           "word",
                                           "<",
                                           "<｜tool▁calls▁begin｜>",
                                           "<｜tool▁call▁begin｜>",
                                           "<｜tool▁sep｜>",
                                           "<｜tool▁call▁end｜>",
                                           "<｜tool▁calls▁end｜>",
                                           "<|START_ACTION|>",
                                           "<|END_ACTION|>",
                                           "<|python_tag|>"};
  std::mt19937 random(11);
  for (const char* const source :
       {"<tool_call></think>", "[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁call▁begin｜></think>", "<|START_ACTION|>"}) {
    const How how = typed({reply_format_of(source)});
    for (int turn = 0; turn < 400; ++turn) {
      std::string text;
      for (std::size_t i = random() % 14; i > 0; --i) text += pieces[random() % pieces.size()];
      SCOPED_TRACE(text);
      read_any_way(how, text);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace mstar
