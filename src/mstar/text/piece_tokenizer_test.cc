// Tokenizers of pieces with scores, of words, and from GGUF metadata.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "mstar/text/bert_normal.h"
#include "mstar/text/byte_trie.h"
#include "mstar/text/incremental_decoder.h"
#include "mstar/text/tokenizer.h"
#include "mstar/text/utf8.h"

namespace mstar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
const std::filesystem::path kGolden = std::filesystem::path(MSTAR_SOURCE_DIR) / "tests" / "golden" / "text";

Tokenizer load(const std::string& name) {
  auto tokenizer = Tokenizer::load((kGolden / name).string());
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(*tokenizer);
}

std::string bytes_of(const std::string& name) {
  std::ifstream file(kGolden / name, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

// <unk> <s> 256 bytes, then pieces in the order of their scores.
GgufTokenizer pieces(const char* model, std::initializer_list<const char*> texts) {
  GgufTokenizer out;
  out.model = model;
  const auto add = [&](std::string token, float score, std::int32_t type) {
    out.tokens.push_back(std::move(token));
    out.scores.push_back(score);
    out.token_types.push_back(type);
  };
  add("<unk>", 0, 2);
  add("<s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) {
    std::string name = "<0x00>";
    name[3] = "0123456789ABCDEF"[byte / 16];
    name[4] = "0123456789ABCDEF"[byte % 16];
    add(name, 0, 6);
  }
  float score = -1;
  for (const char* text : texts) add(text, score -= 1, 1);
  out.bos_id = 1;
  return out;
}

Tokenizer made(const GgufTokenizer& metadata) {
  auto tokenizer = Tokenizer::from_gguf(metadata);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(*tokenizer);
}

std::vector<std::string> tokens_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> out;
  for (const std::int32_t id : tokenizer.encode(text)) out.emplace_back(tokenizer.id_to_token(id));
  return out;
}

TEST(ByteTrie, FindsEveryPrefix) {
  text::ByteTrie trie;
  std::mt19937 random(3);
  std::vector<std::string> known;
  for (int i = 0; i < 3000; ++i) {
    std::string word(1 + random() % 6, '\0');
    for (char& c : word) c = static_cast<char>("abc\xFF"[random() % 4]);
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    trie.insert(word, static_cast<std::int32_t>(known.size()));
    known.push_back(word);
  }
  for (int i = 0; i < 500; ++i) {
    std::string text(random() % 9, '\0');
    for (char& c : text) c = static_cast<char>("abcd"[random() % 4]);
    std::vector<std::string> found, expected;
    trie.each_prefix(text, [&](std::size_t length, std::int32_t value) {
      EXPECT_EQ(known[static_cast<std::size_t>(value)], text.substr(0, length));
      found.push_back(text.substr(0, length));
    });
    for (std::size_t length = 1; length <= text.size(); ++length) {
      if (std::find(known.begin(), known.end(), text.substr(0, length)) != known.end())
        expected.push_back(text.substr(0, length));
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(PieceTokenizer, MergesByScore) {
  const Tokenizer t = made(pieces("llama", {"ab", "bc", "abc", "\xE2\x96\x81", "a", "b", "c",
                                            "\xE2\x96\x81"
                                            "a"}));
  EXPECT_THAT(tokens_of(t, "abc"), ElementsAre("\xE2\x96\x81", "abc"));
  EXPECT_THAT(tokens_of(t, "bc a"), ElementsAre("\xE2\x96\x81", "bc",
                                                "\xE2\x96\x81"
                                                "a"));
  EXPECT_THAT(tokens_of(t, "\n\xC3\xA9"), ElementsAre("\xE2\x96\x81", "<0x0A>", "<0xC3>", "<0xA9>"));
  EXPECT_THAT(t.encode("a", {.add_special = true}), ElementsAre(1, *t.token_to_id("\xE2\x96\x81"
                                                                                  "a")));
  EXPECT_EQ(t.decode(t.encode("  bc \n\xC3\xA9 a")), "  bc \n\xC3\xA9 a");
}

TEST(PieceTokenizer, TakesTheLikeliestSplit) {
  GgufTokenizer metadata = pieces("t5", {"\xE2\x96\x81", "a", "b", "ab", "aab"});
  const Tokenizer t = made(metadata);
  EXPECT_THAT(tokens_of(t, "aab"), ElementsAre("\xE2\x96\x81", "aab"));
  EXPECT_THAT(tokens_of(t, " ab  xy b "),
              ElementsAre("\xE2\x96\x81", "ab", "\xE2\x96\x81", "<unk>", "\xE2\x96\x81", "b"));
  EXPECT_EQ(t.decode(t.encode(" ab  ab ")), "ab ab");
}

TEST(PieceTokenizer, ReadsBertFromGguf) {
  GgufTokenizer metadata;
  metadata.model = "bert";
  metadata.tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "\xE2\x96\x81un", "aff", "able", "\xE2\x96\x81,"};
  metadata.token_types = {3, 3, 3, 3, 1, 1, 1, 1};
  metadata.bos_id = 2;
  metadata.eos_id = 3;
  const Tokenizer t = made(metadata);
  EXPECT_THAT(t.encode("UN\xC3\x81"
                       "FFable, xyz",
                       {.add_special = true}),
              ElementsAre(2, 4, 5, 6, 7, 1, 3));
  EXPECT_EQ(t.decode(std::vector<std::int32_t>{4, 5, 6, 7, 4}), "unaffable, un");
}

// A model that merges spaces has none before the first word, however many pieces spell them.
TEST(PieceTokenizer, LeadingSpacesOfEveryTokenGoWhereAModelMergesThem) {
  const Tokenizer t = load("sp_unigram.model");
  const std::int32_t space = *t.token_to_id("\xE2\x96\x81"), word = *t.token_to_id("\xE2\x96\x81word");
  EXPECT_EQ(t.decode(std::vector{space, word, space, word}), "word  word");
  EXPECT_EQ(t.decode(std::vector{space, space, word}), "word");
  EXPECT_EQ(t.decode(std::vector{space}), "");
  IncrementalDecoder decoder(t);
  for (const std::int32_t id : {space, space}) EXPECT_EQ(decoder.push(id), "");
  EXPECT_EQ(decoder.push(word), "word");
}

// The `tokenizers` package knows the categories of Unicode 8.
TEST(BertNormal, WhatIsNotAssignedStays) {
  text::NormalStepSpec spec;
  spec.kind = text::NormalStepSpec::Kind::bert;
  spec.clean_text = spec.drop_accents = true;
  for (const std::string_view kept : {"a\xCD\xB9"
                                      "b",
                                      "a\xE0\xA2\x98"
                                      "b"})  // U+0379 is none, U+0898 is of Unicode 14
    EXPECT_EQ(text::bert_normal(spec, kept), kept);
  EXPECT_EQ(text::bert_normal(spec,
                              "a\xE2\x80\x8B\x01\xCC\x81"
                              "b"),
            "ab");  // U+200B, a control, U+0301
}

TEST(PieceTokenizer, NamesWhatGgufHasThatIsUnknown) {
  GgufTokenizer metadata = pieces("llama", {"a"});
  metadata.model = "rwkv";
  EXPECT_THAT(Tokenizer::from_gguf(metadata).error().message, HasSubstr("rwkv"));
  metadata.model = "gpt2";
  metadata.pre = "no-such";
  EXPECT_THAT(Tokenizer::from_gguf(metadata).error().message, HasSubstr("no-such"));
  metadata.model = "llama";
  metadata.scores.pop_back();
  EXPECT_THAT(Tokenizer::from_gguf(metadata).error().message, HasSubstr("scores"));
  EXPECT_FALSE(Tokenizer::from_gguf({}));
}

TEST(PieceTokenizer, GuardedTextHoldsNoSpecialToken) {
  for (const char* name : {"small_tokenizer.json", "llama_tokenizer.json", "bert_tokenizer.json"}) {
    const Tokenizer t = load(name);
    std::vector<std::string> specials;
    for (std::int32_t id = 0; id < t.vocab_size(); ++id) {
      if (t.is_special(id) && t.id_to_token(id).size() > 1) specials.emplace_back(t.id_to_token(id));
    }
    ASSERT_FALSE(specials.empty());
    std::mt19937 random(5);
    for (int round = 0; round < 200; ++round) {
      std::string user;
      for (int i = 0; i < 6; ++i) {
        const std::string& special = specials[random() % specials.size()];
        const std::size_t from = random() % special.size();
        user += round % 2 ? special : special.substr(from, 1 + random() % special.size());
        if (random() % 3 == 0) user += " x";
      }
      const std::string& special = specials[random() % specials.size()];
      const auto ids = t.encode(special + t.guard(user), {.parse_special = true, .guarded = true});
      EXPECT_EQ(std::count_if(ids.begin(), ids.end(),
                              [&](std::int32_t id) { return t.is_special(id) && t.id_to_token(id) != "[UNK]"; }),
                1 - (special == "[UNK]" ? 1 : 0))
          << user;
      // Otherwise it reads as it would without special tokens.
      const auto plain = t.encode(user);
      ASSERT_LE(plain.size(), ids.size());
      EXPECT_TRUE(std::equal(plain.rbegin(), plain.rend(), ids.rbegin())) << user;
    }
    EXPECT_EQ(t.guard("a\xEF\xB7\x90"
                      "b")
                  .find("\xEF\xB7\x90"
                        "b"),
              std::string::npos);
  }
}

TEST(PieceTokenizer, ComesBackWhole) {
  const Tokenizer t = load("sp_bpe.model");
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string text(random() % 30, '\0');
    for (char& c : text) c = static_cast<char>(random() % (round % 2 ? 256 : 128));
    const std::string expected = replace_invalid_utf8(text);
    const auto ids = t.encode(text);
    EXPECT_EQ(t.decode(ids), expected);
    IncrementalDecoder decoder(t);
    std::string streamed;
    for (const std::int32_t id : ids) {
      const std::string piece = decoder.push(id);
      EXPECT_TRUE(is_valid_utf8(piece));
      streamed += piece;
    }
    EXPECT_EQ(streamed + decoder.finish(), expected);
  }
}

// A quadratic step would take minutes here.
TEST(PieceTokenizer, LongTextsOfOneKind) {
  const Tokenizer bpe = load("sp_bpe.model"), unigram = load("sp_unigram_bytes.model"),
                  bert = load("bert_tokenizer.json");
  for (const std::string_view unit : {"a", " ", "th", "\xE2\x96\x81", "\xF0\x9F\x98\x80", "e the "}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    // What stands for a space can't come back as itself.
    if (unit != "\xE2\x96\x81") {
      EXPECT_EQ(bpe.decode(bpe.encode(text)), text);
    }
    unigram.encode(text);
    bert.encode(text);
  }
}

TEST(PieceTokenizer, RefusesDamagedModels) {
  const std::string whole = bytes_of("sp_bpe.model");
  ASSERT_TRUE(Tokenizer::parse_sentencepiece(whole));
  EXPECT_FALSE(Tokenizer::parse_sentencepiece(""));
  EXPECT_FALSE(Tokenizer::parse_sentencepiece("\xFF\xFF"));
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 2) bytes.resize(random() % bytes.size());
    const auto tokenizer = Tokenizer::parse_sentencepiece(bytes);
    if (tokenizer) tokenizer->encode("the quick \xC3\xA9\n");
  }
}

}  // namespace
}  // namespace mstar
