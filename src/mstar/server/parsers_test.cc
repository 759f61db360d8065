// The small parsers and writers: urlencoded, JSON, base64, request heads, routes, response heads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "mstar/server/base64.h"
#include "mstar/server/form.h"
#include "mstar/server/json_text.h"
#include "mstar/server/request_id.h"
#include "mstar/server/request_reader.h"
#include "mstar/server/response_head.h"
#include "mstar/server/routes.h"

namespace mstar::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Urlencoded, Fields) {
  const auto form = parse_urlencoded("a=1+2&b=%C3%A9&&c&d[]=x&d[]=y=z&e=");
  ASSERT_TRUE(form);
  EXPECT_EQ(form->fields.get_string("a", "").value(), "1 2");
  EXPECT_EQ(form->fields.get_string("b", "").value(), "\xC3\xA9");
  EXPECT_EQ(form->fields.get_string("c", "-").value(), "");
  EXPECT_THAT(form->fields.get_strings("d").value(), ElementsAre("x", "y=z"));
  EXPECT_EQ(form->fields.values().size(), 5u);
  EXPECT_TRUE(parse_urlencoded(""));
  for (const std::string& bad :
       std::vector<std::string>{"a=%", "a=%4", "a=%4g", "%zz=1", "=1", "[]=1", "a=%FF", "%FF=a"})
    EXPECT_FALSE(parse_urlencoded(bad)) << bad;
  std::string many;
  for (int i = 0; i < 1001; ++i) many += "a&";
  EXPECT_FALSE(parse_urlencoded(many));
}

TEST(Json, ObjectsBecomeParams) {
  const auto params = params_from_json(
      R"({"b":true,"i":-3,"d":0.5,"s":"x","l":["a","b"],"n":[1,2.5],"mixed":[1,"a"],"o":{"k":[]},"none":null,"e":[],
          "big":18446744073709551615,"huge":1e400})",
      "it");
  // 1e400 is no number of ours.
  EXPECT_FALSE(params);
  const auto good = params_from_json(
      R"({"b":true,"i":-3,"d":0.5,"s":"x","l":["a","b"],"n":[1,2.5],"mixed":[1,"a"],"o":{"k":[]},"none":null,"e":[],
          "big":18446744073709551615})",
      "it");
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_TRUE(good->get_bool("b", false).value());
  EXPECT_EQ(good->get_int("i", 0).value(), -3);
  EXPECT_EQ(good->get_number("d", 0).value(), 0.5);
  EXPECT_THAT(good->get_strings("l").value(), ElementsAre("a", "b"));
  EXPECT_EQ(good->get_string("mixed", "").value(), "[1,\"a\"]");
  EXPECT_EQ(good->get_string("o", "").value(), "{\"k\":[]}");
  EXPECT_FALSE(good->has("none"));
  EXPECT_THAT(good->get_strings("e").value(), ElementsAre());
  EXPECT_FALSE(good->get_int("big", 0));
  std::string written;
  append_json_params(written, *good);
  EXPECT_EQ(nlohmann::json::parse(written)["n"], nlohmann::json::parse("[1,2.5]"));
}

TEST(Json, IntegersBeyond64BitsAreFound) {
  for (const char* good :
       {"{}", R"({"a":18446744073709551615,"b":-9223372036854775808,"c":123456789012345678901.5})",
        R"({"a":"99999999999999999999999","99999999999999999999999":[1e99,123456789012345678901e-3]})",
        R"({"a":"\\","b":"\"99999999999999999999999"})", "5"})
    EXPECT_FALSE(member_with_large_integer(good)) << good;
  EXPECT_EQ(member_with_large_integer(R"({"a":18446744073709551616})"), "a");
  EXPECT_EQ(member_with_large_integer(R"({"a":1,"b":{"c":[0.5,-9223372036854775809]},"d":2})"), "b");
  EXPECT_EQ(member_with_large_integer("99999999999999999999999"), "");
  const auto refused = params_from_json(R"({"big":[18446744073709551616]})", "it");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "big");
}

TEST(Json, DepthIsBounded) {
  const auto nested = [](int depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_TRUE(params_from_json(nested(kMaxJsonDepth - 1), "it"));
  EXPECT_FALSE(params_from_json(nested(kMaxJsonDepth), "it"));
  EXPECT_TRUE(
      params_from_json(R"({"a":"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"["})", "it"));
}

TEST(Json, TheNumberOfValuesIsBounded) {
  const auto repeated = [](std::size_t times, const std::string& what) {
    std::string out;
    for (std::size_t i = 0; i < times; ++i) out += (i ? "," : "") + what;
    return out;
  };
  EXPECT_TRUE(params_from_json("{\"a\":[" + repeated(kMaxJsonValues - 10, "1") + "]}", "it"));
  EXPECT_TRUE(params_from_json("{\"a\":\"" + repeated(kMaxJsonValues, "[]") + "\"}", "it"));  // one string
  for (const std::string each : {"[]", "{}", "1", "\"\""}) {
    const auto refused = params_from_json("{\"a\":[" + repeated(kMaxJsonValues + 10, each) + "]}", "it");
    ASSERT_FALSE(refused) << each;
    EXPECT_EQ(refused.error().code, Code::invalid_request);
  }
}

TEST(Json, StringsAreAlwaysValid) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    std::string out;
    append_json_string(out, bytes);
    const auto parsed = nlohmann::json::parse(out, nullptr, false);
    ASSERT_TRUE(parsed.is_string()) << out;
    if (is_utf8(bytes)) {
      EXPECT_EQ(parsed.get<std::string>(), bytes);
    }
  }
  std::string out;
  append_json_string(out, "a\"\\\n\x01\xC3\xA9\xFF");
  EXPECT_EQ(out, "\"a\\\"\\\\\\n\\u0001\xC3\xA9\xEF\xBF\xBD\"");
  out.clear();
  append_json_number(out, 0.1);
  append_json_number(out, std::nan(""));
  EXPECT_EQ(out, "0.1null");
}

TEST(Utf8, WellFormedOnly) {
  for (const std::string& good :
       std::vector<std::string>{"", "abc", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(is_utf8(good)) << good;
  for (const std::string& bad : std::vector<std::string>{"\x80", "\xC0\x80", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80",
                                                         "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\xE2\x82"})
    EXPECT_FALSE(is_utf8(bad)) << bad;
}

TEST(Base64, RoundTripAndRefusals) {
  std::mt19937 random(5);
  for (std::size_t size = 0; size < 100; ++size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    std::string text;
    append_base64(text, bytes);
    EXPECT_EQ(text.size(), (size + 2) / 3 * 4);
    EXPECT_EQ(base64_decode(text), bytes);
    text.erase(std::min(text.find('='), text.size()));
    EXPECT_EQ(base64_decode(text), bytes);
  }
  for (const std::string& bad :
       std::vector<std::string>{"A", "AA A", "AA=A", "AAA==", "A===", "AAAA=", "_AAA", "AAAAA"})
    EXPECT_FALSE(base64_decode(bad)) << bad;
}

TEST(Routes, EveryRouteIsFound) {
  for (const ApiRoute& route : route_table()) {
    const std::string path = std::string(route.path) + (route.is_prefix ? "x/y" : "");
    const RouteMatch match = find_route(route.method, path);
    ASSERT_TRUE(match.route) << path;
    EXPECT_EQ(match.route->endpoint, route.endpoint);
    EXPECT_TRUE(match.method_matches);
    EXPECT_EQ(match.rest, route.is_prefix ? "x/y" : "");
    EXPECT_TRUE(find_route("OPTIONS", path).method_matches);
    EXPECT_FALSE(find_route("DELETE", path).method_matches);
  }
  EXPECT_FALSE(find_route("GET", "/health/").route);
  EXPECT_FALSE(find_route("GET", "*").route);
}

TEST(RequestIds, SaneAndFresh) {
  EXPECT_TRUE(is_sane_request_id(fresh_request_id()));
  EXPECT_NE(fresh_request_id(), fresh_request_id());
  EXPECT_FALSE(is_sane_request_id(""));
  EXPECT_FALSE(is_sane_request_id("a\r\nb"));
}

struct ReaderTest : testing::Test {
  ServerConfig config;
  BodyBudget budget{1 << 20};
  RequestReader reader{config, budget};

  // Feeds in pieces until a request is complete or refused, or the bytes are over.
  RequestReader::Step feed(std::string_view bytes, std::size_t piece) {
    RequestReader::Step step = reader.advance();
    while (step == RequestReader::Step::need_more || step == RequestReader::Step::head_done) {
      if (step == RequestReader::Step::need_more) {
        if (bytes.empty()) return step;
        const auto room = reader.room();
        const std::size_t n = std::min({piece, bytes.size(), room.size()});
        std::copy_n(bytes.data(), n, room.data());
        reader.commit(n);
        bytes.remove_prefix(n);
      }
      step = reader.advance();
    }
    return step;
  }
};

TEST_F(ReaderTest, PiecesDoNotMatter) {
  const std::string body = R"({"text":"hello","a":[1,2]})";
  const std::string request =
      "POST /generate?x=%20y#z HTTP/1.1\r\nHost: h\r\nX-Request-ID: me\r\nContent-Type: "
      "application/json; charset=utf-8\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  for (std::size_t piece = 1; piece <= request.size(); ++piece) {
    ASSERT_EQ(feed(request, piece), RequestReader::Step::complete) << piece;
    ASSERT_FALSE(reader.error());
    EXPECT_EQ(reader.head().path, "/generate");
    EXPECT_EQ(reader.head().query, "x=%20y");
    EXPECT_EQ(reader.head().request_id, "me");
    EXPECT_EQ(reader.body_bytes(), body.size());
    EXPECT_EQ(reader.take_form().fields.get_string("text", "").value(), "hello");
    reader.next();
    EXPECT_FALSE(reader.started());
  }
  EXPECT_TRUE(budget.take(1 << 20));  // all of it came back
}

TEST(ResponseHead, HeadersCannotBeInjected) {
  RequestHead request;
  request.request_id = "id";
  request.headers = {{"access-control-request-headers", "a\r\nSet-Cookie: x"}};
  ResponseHead response;
  response.content_length = 0;
  response.preflight = true;
  const std::string head = response_head(response, request, {"*"});
  EXPECT_THAT(head, testing::Not(HasSubstr("Set-Cookie")));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  EXPECT_EQ(head.find("\r\n\r\n"), head.size() - 4);
}

TEST(ResponseHead, HttpChunks) {
  std::string out;
  append_http_chunk(out, std::string(26, 'x'), false);
  append_http_chunk(out, "", false);
  append_http_chunk(out, "y", true);
  EXPECT_EQ(out, "1a\r\n" + std::string(26, 'x') + "\r\n1\r\ny\r\n0\r\n\r\n");
}

}  // namespace
}  // namespace mstar::server
