#include "mstar/load/completion_event.h"

#include <gtest/gtest.h>

namespace mstar::load {
namespace {

CompletionEvent read(std::string_view data) {
  CompletionEventReader reader;
  auto event = reader.read(data);
  EXPECT_TRUE(event) << data;
  return event ? *event : CompletionEvent{};
}

TEST(CompletionEvent, TextOfBothRoutes) {
  EXPECT_TRUE(read(R"({"choices":[{"index":0,"text":" a","finish_reason":null}]})").has_text);
  EXPECT_TRUE(read(R"({"choices":[{"delta":{"content":"a"}}]})").has_text);
  EXPECT_TRUE(read(R"({"choices":[{"delta":{"reasoning_content":"a","content":null}}]})").has_text);
  EXPECT_FALSE(read(R"({"choices":[{"text":""}]})").has_text);
  EXPECT_FALSE(read(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})").has_text);
  EXPECT_FALSE(read(R"({"choices":[{"delta":{}}]})").has_text);
}

TEST(CompletionEvent, EndsAndUsage) {
  EXPECT_TRUE(read("[DONE]").is_last);
  const CompletionEvent finish = read(R"({"choices":[{"text":"","finish_reason":"length"}],"usage":null})");
  EXPECT_EQ(finish.finish_reason, "length");
  EXPECT_FALSE(finish.usage);
  const CompletionEvent usage = read(
      R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}})");
  ASSERT_TRUE(usage.usage);
  EXPECT_EQ(usage.usage->prompt_tokens, 5);
  EXPECT_EQ(usage.usage->completion_tokens, 9);
  EXPECT_EQ(usage.usage->cached_tokens, 3);
}

TEST(CompletionEvent, ErrorsInTheStream) {
  EXPECT_EQ(read(R"({"error":{"message":"out of pages","code":500}})").error, "out of pages");
  EXPECT_EQ(read(R"({"error":"gone"})").error, "gone");
  EXPECT_EQ(read(R"({"error":null,"choices":[{"text":"a"}]})").error, "");
}

TEST(CompletionEvent, OddEventsAreRefused) {
  CompletionEventReader reader;
  for (const std::string_view data :
       {"", "a", "[1]", "3", "{", R"({"choices":{}})", R"({"choices":[1]})", R"({"choices":[{"text":1}]})",
        R"({"choices":[{"delta":[]}]})", R"({"choices":[{"finish_reason":1}]})", R"({"usage":[]})",
        R"({"usage":{"completion_tokens":-1}})", R"({"usage":{"completion_tokens":"1"}})",
        R"({"usage":{"prompt_tokens":1.5}})", "{\"choices\":[{\"text\":\"\xff\"}]}"})
    EXPECT_FALSE(reader.read(data)) << data;
  EXPECT_TRUE(reader.read(R"({"id":"x"})"));  // and the reader goes on
}

TEST(CompletionEvent, ErrorBodies) {
  EXPECT_EQ(error_message(R"({"error":{"message":"no model 'x'"}})"), "no model 'x'");
  EXPECT_EQ(error_message("<html>\n<body>"), "<html> <body>");
  EXPECT_EQ(error_message(R"({"error":{"code":1}})"), R"({"error":{"code":1}})");
  EXPECT_EQ(error_message(""), "");
  EXPECT_EQ(error_message(std::string(1000, 'x')).size(), 200u);
}

}  // namespace
}  // namespace mstar::load
