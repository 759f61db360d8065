#include "chat_session.h"

#include <gtest/gtest.h>

namespace mstar::apps {
namespace {

using Act = ChatSession::Act;

TEST(ChatSession, TurnsAreRemembered) {
  ChatSession session("Be \"brief\".");
  EXPECT_EQ(session.take("  Hello \r").act, Act::ask);
  EXPECT_EQ(session.messages_json(),
            R"([{"role":"system","content":"Be \"brief\"."},{"role":"user","content":"Hello"}])");
  session.answered("Hi.");
  EXPECT_EQ(session.take("Who?").act, Act::ask);
  EXPECT_EQ(session.messages_json(),
            R"([{"role":"system","content":"Be \"brief\"."},{"role":"user","content":"Hello"},)"
            R"({"role":"assistant","content":"Hi."},{"role":"user","content":"Who?"}])");
}

TEST(ChatSession, AQuestionWithoutAReplyIsForgotten) {
  ChatSession session;
  session.take("one");
  session.unanswered();
  session.take("two");
  session.answered("");
  EXPECT_EQ(session.messages_json(), "[]");
}

TEST(ChatSession, Commands) {
  ChatSession session;
  EXPECT_EQ(session.take("").act, Act::nothing);
  EXPECT_EQ(session.take(" \t").act, Act::nothing);
  session.take("one");
  session.answered("1");
  EXPECT_EQ(session.take("/reset").act, Act::tell);
  EXPECT_EQ(session.messages_json(), "[]");
  EXPECT_EQ(session.take("/system  Be kind. ").act, Act::tell);
  EXPECT_EQ(session.messages_json(), R"([{"role":"system","content":"Be kind."}])");
  EXPECT_EQ(session.take("/system").act, Act::tell);
  EXPECT_EQ(session.messages_json(), "[]");
  EXPECT_NE(session.take("/help").text.find("/reset"), std::string::npos);
  const ChatSession::Step unknown = session.take("/dance now");
  EXPECT_EQ(unknown.act, Act::tell);
  EXPECT_NE(unknown.text.find("/dance"), std::string::npos);
  EXPECT_EQ(session.take("/exit").act, Act::quit);
  EXPECT_EQ(session.take("/quit").act, Act::quit);
}

}  // namespace
}  // namespace mstar::apps
