// Chats whose replies have thoughts and calls of tools, from the request's fields to the chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mstar/models/text_emitter.h"
#include "mstar/models/text_surface.h"

namespace mstar::models {
namespace {

using decl::ApiRequest;
using decl::Chunk;
using decl::Route;
using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"n":{"type":"integer"}}}}}])";

TextModel make_model(decl::Decl& d, const std::string& reply_marks, const std::string& prompt_end) {
  TextModel out;
  out.text = *dummy_text(259);
  auto compiled = ChatTemplate::compile("{% for m in messages %}{{ m.content }}{% endfor %}" + prompt_end);
  EXPECT_TRUE(compiled);
  out.text.chat_template = std::make_shared<const ChatTemplate>(std::move(*compiled));
  out.text.reply = reply_format_of(reply_marks);
  out.context_tokens = 512;
  out.vocab = 259;
  out.prompt = d.port({.name = "prompt", .dtype = DType::i32});
  out.token = d.port({.name = "token", .dtype = DType::i32});
  out.logprobs = d.port({.name = "logprobs"});
  return out;
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

json list(const Pairs& pairs) {
  json out = json::array();
  for (const auto& [format, text] : pairs) out.push_back(json::array({format, text}));
  return out;
}

class TextReplies : public testing::Test {
 protected:
  void start(const std::string& reply_marks, const std::string& prompt_end = "") {
    model_ = make_model(d_, reply_marks, prompt_end);
    add_text_surfaces(d_, model_);
  }
  ApiRequest chat(bool tools, Params fields = {}) const {
    ApiRequest out{.route = Route::chat_completions};
    out.messages_json = R"([{"role":"user","content":"x"}])";
    if (tools) out.tools_json = kTools;
    out.fields = std::move(fields);
    return out;
  }
  // What is made of a reply, as JSON: a list of [format, text].
  json reply(const ApiRequest& request, const std::string& text) {
    const decl::Surface& surface = *d_.surface_for(request.route);
    const auto intake = surface.intake(request);
    EXPECT_TRUE(intake) << intake.error().message;
    const auto emitter = surface.emitter(intake->params);
    json out = json::array();
    const auto take = [&](const Result<decl::Emitted>& emitted) {
      ASSERT_TRUE(emitted);
      for (const Chunk& chunk : emitted->chunks) {
        if (chunk.format == "call") ids_.push_back(*chunk.metadata.get_string("id", ""));
        if (!out.empty() && out.back()[0] == chunk.format && chunk.format != "call") {
          out.back()[1] = out.back()[1].get<std::string>() + std::string(chunk.value.text());
        } else {
          out.push_back(json::array({chunk.format, chunk.value.text()}));
        }
      }
    };
    for (const std::int32_t id : model_.text.tokenizer->encode(text, {})) {
      const HostValue value[1] = {HostValue::i32({&id, 1})};
      take(emitter->push(model_.token, value));
    }
    take(emitter->finish(decl::Finish::stop));
    return out;
  }

  decl::Decl d_{"text"};
  TextModel model_;
  std::vector<std::string> ids_;
};

const std::string kSaid =
    "<think>Hm.</think>\n\nI look. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>";

TEST_F(TextReplies, StandApart) {
  start("<tool_call></think>");
  EXPECT_EQ(reply(chat(true), kSaid),
            (list({{"thought", "Hm."}, {"utf8", "I look."}, {"call", "f"}, {"arguments", "{\"n\": 1}"}})));
  ASSERT_EQ(ids_.size(), 1u);
  EXPECT_THAT(ids_[0], StartsWith("call_"));
  reply(chat(true), kSaid);
  EXPECT_NE(ids_[0], ids_[1]);
}

TEST_F(TextReplies, AreTextWhereNobodyAsked) {
  start("<tool_call></think>");
  EXPECT_EQ(reply(chat(false), kSaid)[1],
            json::array({"utf8", "I look. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>"}));
  Params together;
  together.set("separate_reasoning", false);
  EXPECT_EQ(reply(chat(false, together), kSaid), (list({{"utf8", kSaid}})));
  // Completions are what the model wrote, whatever a client puts into its fields.
  ApiRequest completion{.route = Route::completions, .text = "x"};
  completion.fields.set(kThinksField, true);
  completion.fields.set(kToolsField, std::string(kTools));
  EXPECT_EQ(reply(completion, kSaid), (list({{"utf8", kSaid}})));
}

TEST_F(TextReplies, ThoughtsThatThePromptOpens) {
  start("<tool_call></think>", "<think>\n");
  EXPECT_EQ(reply(chat(false), "Hm.\n</think>\n\nYes."), (list({{"thought", "Hm."}, {"utf8", "Yes."}})));
}

TEST_F(TextReplies, ArgumentsHaveTheToolsTypes) {
  start("<tool_call>");
  EXPECT_EQ(reply(chat(true), "<tool_call><function=f><parameter=n>\n2\n</parameter></function></tool_call>"),
            (list({{"call", "f"}, {"arguments", "{\"n\": 2}"}})));
}

TEST_F(TextReplies, MistralsIdsAreShort) {
  start("[TOOL_CALLS]");
  EXPECT_EQ(reply(chat(true), R"([TOOL_CALLS][{"name": "f", "arguments": {}}])"),
            (list({{"call", "f"}, {"arguments", "{}"}})));
  ASSERT_EQ(ids_.size(), 1u);
  EXPECT_EQ(ids_[0].size(), 9u);
}

}  // namespace
}  // namespace mstar::models
