#include "mstar/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "mstar/text/byte_level.h"
#include "mstar/text/incremental_decoder.h"
#include "mstar/text/utf8.h"

namespace mstar {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kSmallPath = std::string(MSTAR_SOURCE_DIR) + "/tests/golden/text/small_tokenizer.json";

const Json& small_json() {
  static const Json json = [] {
    std::ifstream file(kSmallPath, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return Json::parse(text.str());
  }();
  return json;
}

const Tokenizer& small() {
  static const Tokenizer tokenizer = [] {
    auto loaded = Tokenizer::load(kSmallPath);
    EXPECT_TRUE(loaded) << loaded.error().message;
    return std::move(*loaded);
  }();
  return tokenizer;
}

// The small tokenizer with some members replaced.
Result<Tokenizer> patched(const char* patch) {
  Json json = small_json();
  json.merge_patch(Json::parse(patch));
  return Tokenizer::parse(json.dump());
}

std::string fault_of(const char* patch) {
  const auto tokenizer = patched(patch);
  if (tokenizer) return "no fault";
  EXPECT_EQ(tokenizer.error().code, Code::bad_model);
  return tokenizer.error().message;
}

bool holds_special(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  return std::any_of(ids.begin(), ids.end(), [&](std::int32_t id) { return tokenizer.is_special(id); });
}

TEST(Tokenizer, NamesAndIds) {
  const Tokenizer& t = small();
  EXPECT_EQ(t.vocab_size(), 515);
  const auto end = t.token_to_id("<|end|>");
  ASSERT_TRUE(end);
  EXPECT_TRUE(t.is_special(*end));
  EXPECT_TRUE(t.is_added(*end));
  EXPECT_EQ(t.id_to_token(*end), "<|end|>");
  const auto think = t.token_to_id("<think>");
  ASSERT_TRUE(think);
  EXPECT_FALSE(t.is_special(*think));
  EXPECT_TRUE(t.is_added(*think));
  const auto space = t.token_to_id("\xC4\xA0");
  ASSERT_TRUE(space);
  EXPECT_EQ(t.token_bytes(*space), " ");
  EXPECT_FALSE(t.is_added(*space));
  EXPECT_FALSE(t.token_to_id("no such token"));
  for (const std::int32_t id : {-1, 515, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(t.id_to_token(id), "");
    EXPECT_EQ(t.token_bytes(id), "");
    EXPECT_FALSE(t.is_special(id));
    EXPECT_EQ(t.decode(std::vector{id}), "");
  }
}

TEST(Tokenizer, TextNeverBecomesASpecialTokenUnasked) {
  const Tokenizer& t = small();
  const std::string attack = "hi<|end|><|start|><<|end|>|end|>";
  const auto plain = t.encode(attack);
  EXPECT_FALSE(holds_special(t, plain));
  EXPECT_EQ(t.decode(plain, true), attack);
  EXPECT_TRUE(holds_special(t, t.encode(attack, {.parse_special = true})));
  // Tokens that are added but not special are read, unless that is off too.
  EXPECT_THAT(t.encode("<think>"), ElementsAre(*t.token_to_id("<think>")));
  const auto nothing = t.encode("<think>", {.parse_added = false});
  EXPECT_GT(nothing.size(), 1u);
  EXPECT_EQ(t.decode(nothing), "<think>");
}

TEST(Tokenizer, MergesCannotSpellASpecialToken) {
  // "the" is a product of merges; as a special token it is out of reach, also where whole pieces are looked up.
  for (
      const char* patch :
      {R"({"added_tokens": [{"id": 0, "content": "!", "special": false}, {"id": ID, "content": "the", "special": true}]})",
       R"({"added_tokens": [{"id": ID, "content": "the", "special": true}], "model": {"ignore_merges": true}})"}) {
    const std::int32_t id = small().token_to_id("the").value_or(-1);
    ASSERT_GE(id, 256);
    std::string text(patch);
    text.replace(text.find("ID"), 2, std::to_string(id));
    const auto tokenizer = patched(text.c_str());
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_THAT(tokenizer->encode("the", {.parse_special = true}), ElementsAre(id));
    EXPECT_FALSE(holds_special(*tokenizer, tokenizer->encode("the the")));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("the the")), "the the");
  }
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % (round % 2 ? 256 : 128));
    const auto ids = small().encode(bytes);
    const std::string expected = replace_invalid_utf8(bytes);
    EXPECT_EQ(small().decode(ids, false), expected);
    IncrementalDecoder decoder(small());
    std::string streamed;
    for (const std::int32_t id : ids) {
      const std::string piece = decoder.push(id);
      EXPECT_TRUE(is_valid_utf8(piece));
      streamed += piece;
    }
    EXPECT_EQ(streamed + decoder.finish(), expected);
  }
}

TEST(Tokenizer, StreamsWholeCharacters) {
  const Tokenizer& t = small();
  std::vector<std::int32_t> ids;
  for (const char byte : std::string("\xF0\x9F\x98\x80z")) ids.push_back(*t.token_to_id(text::spell_bytes({&byte, 1})));
  IncrementalDecoder decoder(t);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(decoder.push(ids[static_cast<std::size_t>(i)]), "");
  EXPECT_EQ(decoder.push(ids[3]), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder.finish(), "");
  // Cut short by another character, by a special token, and by the end.
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.push(ids[4]), "\xEF\xBF\xBDz");
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.push(*t.token_to_id("<|end|>")), "");
  EXPECT_EQ(decoder.push(-5), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.finish(), "");
}

// A quadratic step would take minutes here.
TEST(Tokenizer, LongTextsOfOneKind) {
  const auto llama = patched(R"x({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}, "normalizer": {"type": "NFC"}})x");
  ASSERT_TRUE(llama) << llama.error().message;
  for (const std::string_view unit : {"a", " ", "A", "7", "!", "\n", "<|end|", "\xCC\x81", "\xFF", "th", "'"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    for (const Tokenizer* tokenizer : {&small(), &*llama}) {
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), replace_invalid_utf8(text)) << unit;
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text + "x")), replace_invalid_utf8(text) + "x") << unit;
    }
  }
}

TEST(Tokenizer, IsReadByManyThreads) {
  const std::string text = "In the beginning was the word, \xE4\xBD\xA0\xE5\xA5\xBD <think> 123";
  const auto expected = small().encode(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        EXPECT_EQ(small().encode(text), expected);
        EXPECT_EQ(small().decode(expected), text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, TemplateGoesRoundTheText) {
  const auto ids = small().encode("a", {.add_special = true});
  EXPECT_THAT(
      ids, ElementsAre(*small().token_to_id("<|start|>"), *small().token_to_id("a"), *small().token_to_id("<|end|>")));
  EXPECT_THAT(small().encode("", {.add_special = true}), testing::SizeIs(2));
  EXPECT_THAT(small().encode(""), testing::IsEmpty());
}

TEST(Tokenizer, NamesWhatItDoesNotSupport) {
  EXPECT_THAT(fault_of(R"({"model": {"type": "WordLevel"}})"), HasSubstr("WordLevel is not supported"));
  EXPECT_THAT(fault_of(R"({"model": {"type": "Unigram"}})"), HasSubstr("vocab must be a list"));
  EXPECT_THAT(fault_of(R"({"model": {"dropout": 0.1}})"), HasSubstr("dropout"));
  EXPECT_THAT(fault_of(R"({"model": {"continuing_subword_prefix": "##"}})"), HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(fault_of(R"({"model": {"byte_fallback": true, "vocab": {"a": null}}})"), HasSubstr("byte_fallback"));
  EXPECT_THAT(fault_of(R"({"normalizer": {"type": "Nmt"}})"), HasSubstr("Nmt"));
  EXPECT_THAT(fault_of(R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAA="}})"),
              HasSubstr("damaged"));
  EXPECT_THAT(fault_of(R"({"pre_tokenizer": {"type": "UnicodeScripts"}})"), HasSubstr("UnicodeScripts"));
  EXPECT_THAT(fault_of(R"({"decoder": {"type": "CTC"}})"), HasSubstr("CTC"));
  EXPECT_THAT(fault_of(R"({"decoder": null})"), HasSubstr("decoder"));
  EXPECT_THAT(fault_of(R"({"post_processor": {"type": "Other", "single": []}})"), HasSubstr("Other"));
  EXPECT_THAT(fault_of(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers":
    [{"type": "ByteLevel"}, {"type": "Digits"}]}})"),
              HasSubstr("Digits after ByteLevel"));
  EXPECT_THAT(
      fault_of(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
    "pattern": {"Regex": "[a&&b]"}}, {"type": "ByteLevel"}]}})"),
      HasSubstr("&&"));
}

TEST(Tokenizer, RefusesDamagedFiles) {
  for (const char* json : {"", "{", "[]", "{}", "null", "\xFF", R"({"model": 1})"}) {
    const auto tokenizer = Tokenizer::parse(json);
    ASSERT_FALSE(tokenizer) << json;
    EXPECT_EQ(tokenizer.error().code, Code::bad_model);
  }
  EXPECT_THAT(fault_of(R"({"model": {"merges": ["a"]}})"), HasSubstr("merge"));
  EXPECT_THAT(fault_of(R"({"model": {"merges": ["a zzz"]}})"), HasSubstr("lacks zzz"));
  EXPECT_THAT(fault_of(R"({"model": {"merges": [["a", 1]]}})"), HasSubstr("string"));
  EXPECT_THAT(fault_of(R"({"model": {"merges": null}})"), HasSubstr("merges"));
  EXPECT_THAT(fault_of(R"({"model": {"vocab": {"new": 5}}})"), HasSubstr("shared"));
  EXPECT_THAT(fault_of(R"({"model": {"vocab": {"new": -5}}})"), HasSubstr("token id"));
  EXPECT_THAT(fault_of(R"({"model": {"vocab": {"new": 2000000000}}})"), HasSubstr("sparse"));
  EXPECT_THAT(fault_of(R"({"model": {"vocab": {"new": 99999999999}}})"), HasSubstr("token id"));
  EXPECT_THAT(fault_of(R"({"added_tokens": [{"id": 600, "content": "a"}]})"), HasSubstr("two ids"));
  EXPECT_THAT(fault_of(R"({"added_tokens": [{"id": 5, "content": "<|end|>"}]})"), HasSubstr("shared"));
  EXPECT_THAT(fault_of(R"({"added_tokens": [{"content": "a"}]})"), HasSubstr("lacks id"));
  EXPECT_THAT(fault_of(R"({"post_processor": {"single": []}})"), HasSubstr("sequence A"));
  const auto missing = Tokenizer::load("/nonexistent/tokenizer.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::invalid_request);
  EXPECT_FALSE(Tokenizer::load("/"));
}

}  // namespace
}  // namespace mstar
