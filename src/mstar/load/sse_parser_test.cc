#include "mstar/load/sse_parser.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace mstar::load {
namespace {

using Events = std::vector<std::pair<std::string, std::string>>;

Events parse(std::string_view body, std::size_t piece_bytes) {
  SseParser parser;
  Events out;
  for (std::size_t at = 0; at < body.size(); at += piece_bytes)
    EXPECT_TRUE(parser.push(body.substr(at, piece_bytes),
                            [&](std::string_view name, std::string_view data) { out.emplace_back(name, data); }));
  return out;
}

struct Case {
  std::string_view body;
  Events events;
};

// What the HTML standard says about each, among them the examples of its section 9.2.5.
const Case kCases[] = {
    {"data: a\n\n", {{"", "a"}}},
    {"data: a\r\n\r\ndata: b\r\n\r\n", {{"", "a"}, {"", "b"}}},
    {"data: a\r\rdata: b\r\r", {{"", "a"}, {"", "b"}}},
    {"data: a\r\n\rdata: b\n\r\n", {{"", "a"}, {"", "b"}}},
    {"data: YHOO\ndata: +2\ndata: 10\n\n", {{"", "YHOO\n+2\n10"}}},
    {": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event",
     {{"", "first event"}, {"", "second event"}}},
    {"data\n\ndata\ndata\n\ndata:", {{"", ""}, {"", "\n"}}},
    {"data:test\n\ndata: test\n\n", {{"", "test"}, {"", "test"}}},
    {"event: add\ndata: 73857293\n\nevent: remove\n\ndata: x\n\n", {{"add", "73857293"}, {"", "x"}}},
    {"\xEF\xBB\xBF"
     "data: a\n\n\xEF\xBB\xBF"
     "data: b\n\n",
     {{"", "a"}}},
    {"datax: a\ndat: b\nDATA: c\n: d\ndata : e\n\n", {}},
    {"data: a: b\nretry: 10\n\n", {{"", "a: b"}}},
    {"\n\n\n\ndata: \xff\xfe\n\n", {{"", "\xff\xfe"}}},
    {"", {}},
};

TEST(SseParser, ReadsWhatTheStandardSaysHoweverItIsCut) {
  for (const Case& each : kCases)
    for (const std::size_t piece_bytes : {1, 2, 3, 5, 1000})
      EXPECT_EQ(parse(each.body, piece_bytes), each.events) << each.body << " by " << piece_bytes;
}

TEST(SseParser, KnowsAnUnfinishedEvent) {
  SseParser parser;
  const auto drop = [](std::string_view, std::string_view) {};
  EXPECT_FALSE(parser.has_rest());
  ASSERT_TRUE(parser.push("data: a\n", drop));
  EXPECT_TRUE(parser.has_rest());
  ASSERT_TRUE(parser.push("\nda", drop));
  EXPECT_TRUE(parser.has_rest());
  parser.reset();
  EXPECT_FALSE(parser.has_rest());
  int num_events = 0;
  ASSERT_TRUE(parser.push("ta: a\n\n", [&](std::string_view, std::string_view) { ++num_events; }));
  EXPECT_EQ(num_events, 0);  // nothing is left of the body before
}

TEST(SseParser, RefusesLinesAndEventsThatAreTooLong) {
  const auto drop = [](std::string_view, std::string_view) {};
  EXPECT_TRUE(SseParser(100).push("data: " + std::string(90, 'x') + "\n\n", drop));
  EXPECT_FALSE(SseParser(100).push("data: " + std::string(96, 'x') + "\n\n", drop));
  SseParser lines(100);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(lines.push("data: 12345678\n", drop)) << i;
  EXPECT_FALSE(lines.push("data: 12345678901234\n", drop));
  SseParser bytes(100);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(bytes.push("x", drop));
  EXPECT_FALSE(bytes.push("x", drop));
}

}  // namespace
}  // namespace mstar::load
