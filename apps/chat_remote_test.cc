#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "chat_backend.h"

namespace mstar::apps {
namespace {

using nlohmann::json;

TEST(ChatRemote, BodyHasTypedParameters) {
  Params params;
  params.set("temperature", std::string("0.5"));
  params.set("stop", std::string("[\"a\"]"));
  params.set("user", std::string("me \"x\""));
  EXPECT_EQ(json::parse(chat_body("m", R"([{"role":"user","content":"x"}])", params)),
            json::parse(R"({"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,
                "stream_options":{"include_usage":true},"temperature":0.5,"stop":["a"],"user":"me \"x\""})"));
}

TEST(ChatRemote, EventsAreRead) {
  auto event = read_chat_event(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"}}]})");
  ASSERT_TRUE(event);
  EXPECT_EQ(event->text, "Hi");
  EXPECT_EQ(event->finish_reason, "");
  event =
      read_chat_event(R"({"choices":[{"index":0,"delta":{"content":null},"finish_reason":"length"}],"usage":null})");
  ASSERT_TRUE(event);
  EXPECT_EQ(event->text, "");
  EXPECT_EQ(event->finish_reason, "length");
  event = read_chat_event(R"({"choices":[],"usage":{"completion_tokens":9}})");
  ASSERT_TRUE(event);
  EXPECT_EQ(event->completion_tokens, 9);
}

TEST(ChatRemote, FailuresAreTold) {
  const auto failed = read_chat_event(R"({"error":{"message":"worker 1 is gone"}})");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "worker 1 is gone");
  for (const char* foreign : {"", "[]", "{}", "{\"choices\":5}", "{\"choices\":[5]}"})
    EXPECT_FALSE(read_chat_event(foreign)) << foreign;
}

}  // namespace
}  // namespace mstar::apps
