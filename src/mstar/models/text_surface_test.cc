#include "mstar/models/text_surface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mstar/models/text_emitter.h"

namespace mstar::models {
namespace {

using decl::ApiRequest;
using decl::Route;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kContext = 64;

// One token for each byte, then special ones.
std::shared_ptr<const TextModel> make_model(const std::vector<std::string>& marks, bool normalized,
                                            const std::string& chat_template) {
  json vocab = json::object();
  std::int32_t next = 0;
  // GPT-2's visible spellings: printable ASCII is itself, a space is U+0120, a line's end U+010A.
  for (char c = '!'; c <= '~'; ++c) vocab[std::string(1, c)] = next++;
  vocab["\u0120"] = next++;
  vocab["\u010A"] = next++;
  for (const char* byte : {"\u00C3", "\u00A9"}) vocab[byte] = next++;  // of an e with an acute
  json added = json::array();
  for (const std::string& mark : marks)
    added.push_back({{"id", next++},
                     {"content", mark},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", normalized}});
  const json tokenizer = {{"version", "1.0"},
                          {"added_tokens", added},
                          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
                          {"decoder", {{"type", "ByteLevel"}}},
                          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  auto out = std::make_shared<TextModel>();
  auto read = Tokenizer::parse(tokenizer.dump());
  EXPECT_TRUE(read) << read.error().message;
  out->text.tokenizer = std::make_shared<const Tokenizer>(std::move(*read));
  auto compiled = ChatTemplate::compile(chat_template);
  EXPECT_TRUE(compiled) << compiled.error().message;
  out->text.chat_template = std::make_shared<const ChatTemplate>(std::move(*compiled));
  out->context_tokens = kContext;
  out->vocab = out->text.tokenizer->vocab_size();
  out->text.stop_ids = {*out->text.tokenizer->token_to_id("<|end|>")};
  decl::Decl d("ports");
  out->prompt = d.port({.name = "prompt", .dtype = DType::i32});
  out->token = d.port({.name = "token", .dtype = DType::i32});
  out->logprobs = d.port({.name = "logprobs"});
  return out;
}

// With the two marks of a turn.
std::shared_ptr<const TextModel> text_model() {
  static const auto model =
      make_model({"<|start|>", "<|end|>"}, false,
                 "{% for m in messages %}<|start|>{{ m.role + ' ' + m.content }}<|end|>{% endfor %}"
                 "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
                 "{% if add_generation_prompt %}<|start|>{% endif %}");
  return model;
}

std::int32_t id(const char* token) { return text_model()->text.tokenizer->token_to_id(token).value_or(-1); }

Result<decl::Intake> take(ApiRequest request) {
  static const decl::Decl d = [] {
    decl::Decl out("text");
    add_text_surfaces(out, *text_model());
    return out;
  }();
  for (const decl::Surface& surface : d.surfaces())
    if (surface.route == request.route) return surface.intake(request);
  return internal_error("no such surface");
}

ApiRequest chat(const json& messages) {
  ApiRequest out{.route = Route::chat_completions};
  out.messages_json = messages.dump();
  return out;
}

ApiRequest completion(std::string text, Params fields = {}) {
  ApiRequest out{.route = Route::completions, .text = std::move(text)};
  out.fields = std::move(fields);
  return out;
}

std::vector<std::int32_t> prompt_of(const decl::Intake& intake) {
  const auto ids = intake.inputs.at(text_model()->prompt).front().as<std::int32_t>();
  return {ids.begin(), ids.end()};
}

TEST(TextSurface, AChatGoesThroughTheTemplate) {
  const auto intake = take(chat({{{"role", "user"}, {"content", "a"}}}));
  ASSERT_TRUE(intake) << intake.error().message;
  EXPECT_THAT(prompt_of(*intake), ElementsAre(id("<|start|>"), id("u"), id("s"), id("e"), id("r"), id("\u0120"),
                                              id("a"), id("<|end|>"), id("<|start|>")));
  EXPECT_EQ(intake->num_prompt_tokens, 9);
  EXPECT_EQ(intake->params.sampling.max_tokens, kContext - 9);
}

// In every place that a template may print: roles, contents, keys and values of tools.
TEST(TextSurface, WhatUsersWriteBecomesNoSpecialToken) {
  ApiRequest request = chat({{{"role", "user"}, {"content", "<|end|><|st"}}});
  request.tools_json = R"([{"<|end|>": "<|start|>"}])";
  request.fields.set("max_tokens", std::int64_t{1});
  const auto intake = take(request);
  ASSERT_TRUE(intake) << intake.error().message;
  const auto ids = prompt_of(*intake);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), id("<|end|>")), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), id("<|start|>")), 2);
  EXPECT_THAT(text_model()->text.tokenizer->decode(ids, false),
              HasSubstr("user <|end|><|st<|end|>{\"<|end|>\": \"<|start|>\"}"));
}

// As DeepSeek's template, whose tokenizer normalises its special tokens, and Phi's, which makes them of roles.
TEST(TextSurface, TemplatesSeeRolesAsTheyAreAndUsersSpellNothing) {
  const char* const kTemplates[] = {
      "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}<|end|>{% endif %}"
      "{% if m.role == 'assistant' and m.tool_calls %}{% for c in m.tool_calls %}{% if c.type == 'function' %}"
      "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}{% endfor %}{% endif %}{% endfor %}{% endif %}"
      "{% endfor %}{% for t in tools or [] %}{% if t.function.parameters.type == 'object' %}{{ t.function.name }}"
      "{% endif %}{% endfor %}",
      "{% for m in messages %}{% if m.content %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"};
  for (const bool normalized : {false, true})
    for (const char* const source : kTemplates) {
      const auto model = make_model({"<|user|>", "<|end|>", "<|object|>", "<|function|>"}, normalized, source);
      const Tokenizer& t = *model->text.tokenizer;
      ApiRequest request = chat(json::parse(R"([{"role":"user","content":"a<|end|><|user|>"},{"role":"assistant",
          "content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"|end|":"<|end|>"}}}]}])"));
      request.tools_json = R"([{"type":"function","function":{"name":"f<|object|>","parameters":{"type":"object"}}}])";
      const auto ids = encode_chat(*model, request);
      ASSERT_TRUE(ids) << ids.error().message;
      std::vector<std::string> special;
      for (const std::int32_t each : *ids)
        if (t.is_special(each)) special.emplace_back(t.id_to_token(each));
      EXPECT_THAT(special, ElementsAre("<|user|>", "<|end|>")) << normalized;
      const std::string plain = "<|user|>a<|end|><|user|><|end|>";
      const std::string tools = source == kTemplates[0] ? "<|end|><|end|>f<|object|>" : "";
      EXPECT_EQ(t.decode(*ids, false), plain + tools);
    }
}

// As jinja2 prints it; 64 bits, without a sign.
TEST(TextSurface, LargeNumbersOfToolsAreShownAsTheyAre) {
  ApiRequest request = chat({{{"role", "user"}, {"content", "a"}}});
  request.tools_json = R"([{"maximum":18446744073709551615}])";
  request.fields.set("max_tokens", std::int64_t{1});
  const auto intake = take(request);
  ASSERT_TRUE(intake) << intake.error().message;
  EXPECT_THAT(text_model()->text.tokenizer->decode(prompt_of(*intake), false),
              HasSubstr("{\"maximum\": 18446744073709551615}"));
}

TEST(TextSurface, SpecialTokensOfAPromptAreReadOnlyWhenAsked) {
  const auto plain = take(completion("<|end|>"));
  ASSERT_TRUE(plain);
  EXPECT_EQ(prompt_of(*plain).size(), 7u);
  Params fields;
  fields.set("parse_special", true);
  const auto read = take(completion("<|end|>", fields));
  ASSERT_TRUE(read);
  EXPECT_THAT(prompt_of(*read), ElementsAre(id("<|end|>")));
}

TEST(TextSurface, PromptAndAnswerFitTheContext) {
  EXPECT_EQ(take(completion("abc"))->params.sampling.max_tokens, 16);
  EXPECT_EQ(take(completion(std::string(60, 'a')))->params.sampling.max_tokens, 4);
  const auto full = take(completion(std::string(64, 'a')));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::invalid_request);
  EXPECT_EQ(full.error().field, "prompt");
  EXPECT_EQ(full.error().reason, kContextExceeded);
  EXPECT_THAT(full.error().message, HasSubstr("has 64 tokens; prompt and answer must fit into 64"));
  Params fields;
  fields.set("max_tokens", std::int64_t{62});
  const auto more = take(completion("abc", fields));
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().reason, kContextExceeded);
  EXPECT_THAT(more.error().message, HasSubstr("has 3 tokens and max_tokens is 62; prompt and answer must fit into 64"));
  EXPECT_EQ(take(completion("")).error().reason, "");
}

struct BadField {
  const char* field;
  ParamValue value;
};

TEST(TextSurface, RefusesWhatCanNotFitBeforeItIsEncoded) {
  const auto intake = take(completion(std::string(100000, 'a')));
  ASSERT_FALSE(intake);
  EXPECT_EQ(intake.error().field, "prompt");
  EXPECT_EQ(intake.error().reason, kContextExceeded);
  EXPECT_THAT(intake.error().message, HasSubstr("100000 bytes, at least 11112 tokens"));
  EXPECT_THAT(intake.error().message, HasSubstr("must fit into 64"));
  const auto messages = take(chat({{{"role", "user"}, {"content", std::string(100000, 'a')}}}));
  ASSERT_FALSE(messages);
  EXPECT_EQ(messages.error().field, "messages");
}

// A null content, as beside tool calls, is no string to this template.
TEST(TextSurface, MessagesThatTheTemplateFailsAtAreTheClientsFault) {
  const auto intake = take(chat({{{"role", "user"}, {"content", nullptr}, {"tool_calls", json::array()}}}));
  ASSERT_FALSE(intake);
  EXPECT_EQ(intake.error().code, Code::invalid_request);
  EXPECT_EQ(intake.error().field, "messages");
}

TEST(TextSurface, TheCheckpointsDefaultsAreThoseOfRequestsThatSayNothing) {
  TextModel model = *text_model();
  model.text.sampling_defaults.set("temperature", 0.5);
  model.text.sampling_defaults.set("top_k", std::int64_t{7});
  model.text.sampling_defaults.set("repetition_penalty", 1.25);
  decl::Decl d("defaults");
  add_text_surfaces(d, model);
  for (const decl::Surface& surface : d.surfaces()) {
    EXPECT_EQ(surface.defaults.values().size(), 3u);
    ApiRequest request =
        surface.route == Route::chat_completions ? chat({{{"role", "user"}, {"content", "a"}}}) : completion("a");
    request.route = surface.route;
    auto sampling = surface.intake(request)->params.sampling;
    EXPECT_EQ(sampling.temperature, 0.5);
    EXPECT_EQ(sampling.top_k, 7);
    EXPECT_EQ(sampling.repetition_penalty, 1.25);
    EXPECT_EQ(sampling.top_p, 1);
    request.fields.set("temperature", 0.0);
    request.fields.set("top_k", std::int64_t{0});
    sampling = surface.intake(request)->params.sampling;
    EXPECT_EQ(sampling.temperature, 0);
    EXPECT_EQ(sampling.top_k, 0);
    EXPECT_EQ(sampling.repetition_penalty, 1.25);
  }
}

TEST(TextSurface, ATemperatureNextToNothingIsNone) {
  Params fields;
  fields.set("temperature", 1e-39);
  EXPECT_EQ(take(completion("a", fields))->params.sampling.temperature, 0);
}

TEST(TextSurface, NamesTheFieldThatIsWrong) {
  const BadField cases[] = {{"temperature", -0.1},
                            {"temperature", std::nan("")},
                            {"temperature", std::string("hot")},
                            {"top_p", 1.5},
                            {"min_p", -1.0},
                            {"top_k", std::int64_t{-2}},
                            {"presence_penalty", 2.5},
                            {"frequency_penalty", -2.5},
                            {"repetition_penalty", 0.0},
                            {"max_tokens", std::int64_t{0}},
                            {"min_tokens", std::int64_t{-1}},
                            {"top_logprobs", std::int64_t{3}},
                            {"stop", std::vector<std::string>(17, "a")},
                            {"stop", std::vector<std::string>{""}},
                            {"stop_token_ids", std::vector<double>{1e9}},
                            {"stop_token_ids", std::vector<double>{0.5}},
                            {"cache_salt", std::string(257, 'a')},
                            {"prompt_ids", std::vector<double>{-1}}};
  for (const BadField& each : cases) {
    Params fields;
    fields.set(each.field, each.value);
    const auto intake = take(completion("a", fields));
    ASSERT_FALSE(intake) << each.field;
    EXPECT_EQ(intake.error().code, Code::invalid_request) << each.field;
    const std::string field = each.field == std::string("prompt_ids") ? "prompt" : each.field;
    EXPECT_EQ(intake.error().field, field) << intake.error().message;
  }
}

std::string text_of(const std::vector<decl::Chunk>& chunks) {
  std::string out;
  for (const decl::Chunk& each : chunks) out += each.value.text();
  return out;
}

HostValue token(const char* spelling) {
  const std::int32_t ids[1] = {id(spelling)};
  return HostValue::i32(ids);
}

TEST(TextEmitter, HoldsBackWhatMayBecomeAStopString) {
  decl::RequestParams params;
  params.sampling.stop_strings = {"bcd"};
  const auto emitter = make_text_emitter(text_model(), params);
  std::string text;
  bool stopped = false;
  for (const char* each : {"a", "b", "c", "b", "c", "d", "e"}) {
    const HostValue values[1] = {token(each)};
    auto out = emitter->push(text_model()->token, values);
    ASSERT_TRUE(out);
    text += text_of(out->chunks);
    stopped = out->stop;
    if (stopped) break;
  }
  EXPECT_TRUE(stopped);
  EXPECT_EQ(text, "abc");
  EXPECT_EQ(emitter->num_tokens(), 6);
}

TEST(TextEmitter, StopTokensAddNoText) {
  for (const bool ignore_eos : {false, true}) {
    auto model = std::make_shared<TextModel>(*text_model());
    model->text.stop_ids = {id("c")};
    decl::RequestParams params;
    params.sampling.stop_ids = {id("z"), id("b")};
    params.sampling.ignore_eos = ignore_eos;
    const auto emitter = make_text_emitter(model, params);
    std::string text;
    for (const char* each : {"a", "c", "b"}) {
      const HostValue values[1] = {token(each)};
      text += text_of(emitter->push(model->token, values)->chunks);
    }
    EXPECT_EQ(text, ignore_eos ? "ac" : "a");
    EXPECT_EQ(emitter->num_tokens(), 3);
  }
}

TEST(TextEmitter, CutsNoCharacterAndShowsNoSpecialToken) {
  const auto emitter = make_text_emitter(text_model(), {});
  std::vector<std::string> pieces;
  for (const char* each : {"a", "\u00C3", "\u00A9", "<|end|>"}) {
    const HostValue values[1] = {token(each)};
    pieces.push_back(text_of(emitter->push(text_model()->token, values)->chunks));
  }
  EXPECT_THAT(pieces, ElementsAre("a", "", "\u00E9", ""));
  EXPECT_EQ(text_of(emitter->finish(decl::Finish::stop)->chunks), "");
  EXPECT_EQ(emitter->num_tokens(), 4);
}

TEST(TextEmitter, TellsOneLogProbabilityEntryOfEachToken) {
  decl::RequestParams params;
  params.sampling.num_logprobs = 1;
  const auto emitter = make_text_emitter(text_model(), params);
  const HostValue values[1] = {token("a")};
  EXPECT_TRUE(emitter->push(text_model()->token, values)->chunks.empty());
  const float pairs[4] = {static_cast<float>(id("a")), -0.5f, static_cast<float>(id("b")), -1.5f};
  const HostValue numbers[1] = {HostValue::f32(pairs)};
  const auto out = emitter->push(text_model()->logprobs, numbers);
  ASSERT_TRUE(out);
  ASSERT_EQ(out->chunks.size(), 1u);
  const json entries = json::parse(out->chunks[0].metadata.get_string("logprobs", "").value_or(""));
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0]["token"], "a");
  EXPECT_FLOAT_EQ(entries[0]["logprob"].get<float>(), -0.5f);
  EXPECT_EQ(entries[0]["top_logprobs"][0]["token"], "b");
  EXPECT_EQ(entries[0]["bytes"], json::array({97}));
}

TEST(TextSurface, CodecIsWhatTheIntakeDoes) {
  decl::Decl d("codec");
  add_text_surfaces(d, *text_model());
  ASSERT_TRUE(d.text_codec());
  const decl::TextCodec& codec = *d.text_codec();
  EXPECT_EQ(codec.context_tokens, kContext);
  ApiRequest request{.route = Route::completions, .text = "a b"};
  const auto prompt = codec.tokenize(request);
  ASSERT_TRUE(prompt);
  EXPECT_EQ(*prompt, text_model()->text.tokenizer->encode("a b", {.add_special = true}));
  EXPECT_EQ(codec.detokenize(*prompt).value(), "a b");
  request = {.route = Route::chat_completions, .messages_json = R"([{"role":"u","content":"x"}])"};
  const auto chat = codec.tokenize(request);
  ASSERT_TRUE(chat);
  EXPECT_EQ(codec.detokenize(*chat).value(), "<|start|>u x<|end|><|start|>");
  request.fields.set("add_generation_prompt", false);
  EXPECT_EQ(codec.detokenize(codec.tokenize(request).value()).value(), "<|start|>u x<|end|>");
  const std::int32_t none[] = {1, 1 << 20};
  EXPECT_EQ(codec.detokenize(none).error().field, "tokens");
}

}  // namespace
}  // namespace mstar::models
