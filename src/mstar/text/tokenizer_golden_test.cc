// Ids and texts as the packages `tokenizers` and `sentencepiece` give them: tools/golden/tokenizer_golden.py and
// tokenizer_fuzz.py.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "mstar/text/incremental_decoder.h"
#include "mstar/text/tokenizer.h"

namespace mstar {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;
const std::filesystem::path kGolden = std::filesystem::path(MSTAR_SOURCE_DIR) / "tests" / "golden" / "text";

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

std::filesystem::path weights_dir() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value ? value : "");
  };
  if (const auto dir = variable("MSTAR_WEIGHTS_DIR"); !dir.empty()) return dir;
  const auto cache = variable("XDG_CACHE_HOME");
  return (cache.empty() ? variable("HOME") / ".cache" : cache) / "mstar" / "weights";
}

const Json& cases(const std::string& file) {
  static const Json bytes = Json::parse(read_text(kGolden / "tokenizer_cases.json"));
  static const Json pieces = Json::parse(read_text(kGolden / "piece_cases.json"));
  return file == "pieces" ? pieces : bytes;
}

class TokenizerGolden : public testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  // The tokenizer that the case names, or null when its weights are not here.
  std::optional<Tokenizer> open(const Json& expected) {
    if (expected.contains("weights")) {
      const auto path = weights_dir() / expected["weights"].get<std::string>() / "tokenizer.json";
      if (!std::filesystem::exists(path)) return std::nullopt;
      auto tokenizer = Tokenizer::load(path.string());
      EXPECT_TRUE(tokenizer) << tokenizer.error().message;
      return std::move(*tokenizer);
    }
    if (expected.contains("sentencepiece")) {
      auto tokenizer = Tokenizer::load((kGolden / expected["sentencepiece"].get<std::string>()).string());
      EXPECT_TRUE(tokenizer) << tokenizer.error().message;
      return std::move(*tokenizer);
    }
    Json json = Json::parse(read_text(kGolden / expected["file"].get<std::string>()));
    if (expected.contains("patch")) json.merge_patch(expected["patch"]);
    auto tokenizer = Tokenizer::parse(json.dump());
    EXPECT_TRUE(tokenizer) << tokenizer.error().message;
    return std::move(*tokenizer);
  }
};

TEST_P(TokenizerGolden, EqualsTheOracle) {
  const auto& [file, name] = GetParam();
  const Json& expected = cases(file)["tokenizers"][name];
  const auto tokenizer = open(expected);
  if (!tokenizer) GTEST_SKIP() << "no tokenizer.json under " << weights_dir();
  EXPECT_EQ(tokenizer->vocab_size(), expected["vocab_size"].get<std::int32_t>());
  EXPECT_EQ(tokenizer->encode("a b", {.add_special = true, .parse_special = true}), expected["templated"].get<Ids>());
  const Json& texts = cases(file)["texts"];
  ASSERT_EQ(expected["plain"].size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    if (expected["plain"][i].is_null()) continue;
    const auto plain = expected["plain"][i].get<Ids>();
    const auto parsed = expected["parsed"][i].is_null() ? plain : expected["parsed"][i].get<Ids>();
    EXPECT_EQ(tokenizer->encode(text), plain) << text;
    // SentencePiece reads no special tokens.
    if (expected.contains("sentencepiece")) continue;
    EXPECT_EQ(tokenizer->encode(text, {.parse_special = true}), parsed) << text;
  }
  for (const Json& decoded : expected["decoded"]) {
    const auto ids = decoded[0].get<Ids>();
    for (const bool skip_special : {false, true}) {
      const auto text = decoded[skip_special ? 2 : 1].get<std::string>();
      EXPECT_EQ(tokenizer->decode(ids, skip_special), text);
      IncrementalDecoder decoder(*tokenizer, skip_special);
      std::string streamed;
      for (const std::int32_t id : ids) streamed += decoder.push(id);
      EXPECT_EQ(streamed + decoder.finish(), text);
    }
  }
}

std::vector<std::pair<std::string, std::string>> names() {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string file : {"bytes", "pieces"}) {
    for (const auto& item : cases(file)["tokenizers"].items()) out.emplace_back(file, item.key());
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden, testing::ValuesIn(names()), [](const auto& test) {
  std::string name = test.param.second;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace mstar
