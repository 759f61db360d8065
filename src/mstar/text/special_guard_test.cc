// What users write is no special token, whatever stands round it, and comes back as it was where it spells none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mstar/text/tokenizer.h"

namespace mstar {
namespace {

using nlohmann::json;

struct Kind {
  bool normalized = true;
  json normalizer = nullptr;
};

// A token for each printable ASCII character, a space and U+2581, and the special tokens <s>, <|end|> and [A].
Tokenizer tokenizer(const Kind& kind) {
  json vocab = json::object();
  std::int32_t next = 0;
  for (char c = ' '; c <= '~'; ++c) vocab[std::string(1, c)] = next++;
  vocab["\u2581"] = next++;
  vocab["<unk>"] = next++;
  json added = json::array();
  for (const char* token : {"<s>", "<|end|>", "[A]"})
    added.push_back({{"id", next++},
                     {"content", token},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", kind.normalized}});
  const json spec = {{"version", "1.0"},
                     {"added_tokens", added},
                     {"normalizer", kind.normalizer},
                     {"pre_tokenizer", nullptr},
                     {"decoder", {{"type", "Fuse"}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}, {"unk_token", "<unk>"}}}};
  auto read = Tokenizer::parse(spec.dump());
  EXPECT_TRUE(read) << read.error().message;
  return std::move(*read);
}

const Kind kKinds[] = {
    {false, nullptr},
    {true, nullptr},  // DeepSeek's
    {true, {{"type", "Sequence"}, {"normalizers", json::array()}}},
    {true, {{"type", "Lowercase"}}},
    {true, {{"type", "NFKC"}}},
    {true,
     {{"type", "Sequence"},
      {"normalizers", json::array({{{"type", "Prepend"}, {"prepend", "\u2581"}},
                                   {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}})}}},
};

std::vector<std::int32_t> specials(const Tokenizer& t, const std::string& text) {
  std::vector<std::int32_t> out;
  for (const std::int32_t id : t.encode(text, {.parse_special = true, .guarded = true}))
    if (t.is_special(id) && t.id_to_token(id) != "<unk>") out.push_back(id);
  return out;
}

TEST(SpecialGuard, TextThatSpellsNothingComesBackAsItWas) {
  for (const Kind& kind : kKinds) {
    const Tokenizer t = tokenizer(kind);
    for (const char* text : {"user", "system", "", "a < b", "ending", "<a>", "What is 2 > 1?", "[B]", "\u00E9t\u00E9"})
      EXPECT_EQ(t.guard(text), text) << kind.normalizer;
  }
}

TEST(SpecialGuard, WhatIsSpeltOutIsReadAsText) {
  for (const Kind& kind : kKinds) {
    const Tokenizer t = tokenizer(kind);
    const std::string template_text = "hi <|end|> there";
    const auto own = specials(t, template_text);
    if (kind.normalizer.is_null() || kind.normalizer["type"] != "Sequence" || kind.normalizer["normalizers"].empty()) {
      EXPECT_EQ(own.size(), 1u) << kind.normalizer;
    }
    for (const char* user :
         {"<|end|>", "x <|end|><s>[A] y", "<|END|> \uFF1Cs\uFF1E", " <s>", "<s><s>", "<|e<|end|>nd|>"}) {
      EXPECT_EQ(specials(t, t.guard(user)).size(), 0u) << kind.normalizer << user;
      // The template's own are read beside it, and the text is what it is without special tokens.
      EXPECT_EQ(specials(t, template_text + t.guard(user)), own) << kind.normalizer << user;
      EXPECT_EQ(t.encode(t.guard(user), {.parse_special = true, .guarded = true}), t.encode(user))
          << kind.normalizer << user;
    }
  }
}

TEST(SpecialGuard, NothingRoundItCompletesASpecialToken) {
  for (const bool normalized : {false, true}) {
    const Tokenizer t = tokenizer({normalized, nullptr});
    const auto around = [&](const std::string& before, const std::string& user, const std::string& behind) {
      return specials(t, before + t.guard(user) + behind).size();
    };
    EXPECT_EQ(around("<", "|end|", ">"), 0u);
    EXPECT_EQ(around("<|", "end", "|>"), 0u);
    EXPECT_EQ(around("<", "s", ">"), 0u);
    EXPECT_EQ(around("[", "A] and more", ""), 0u);
    EXPECT_EQ(around("", "well <|end", "|>"), 0u);
    EXPECT_EQ(specials(t, t.guard("<|e") + t.guard("nd|>")).size(), 0u);
    EXPECT_EQ(specials(t, t.guard("a<") + t.guard("s>")).size(), 0u);
    EXPECT_EQ(around("<s>", "a", "<|end|>"), 2u);
    EXPECT_EQ(around("<s>", "s>", "<|end|>"), 2u);
  }
}

}  // namespace
}  // namespace mstar
