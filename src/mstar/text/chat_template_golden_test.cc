// What jinja2 makes of chat templates: tools/golden/jinja_golden.py and jinja_fuzz.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "mstar/text/chat_template.h"

namespace mstar {
namespace {

// Keeps the order of keys, which templates print.
using Json = nlohmann::ordered_json;
const std::filesystem::path kGolden = std::filesystem::path(MSTAR_SOURCE_DIR) / "tests" / "golden" / "jinja";

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

std::tm golden_time() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 9;
  now.tm_wday = 5;
  now.tm_yday = 207;
  return now;
}

Result<std::string> render(const std::string& source, const Json& variables) {
  const auto values = jinja::Value::parse_json(variables.dump());
  EXPECT_TRUE(values);
  MSTAR_TRY_ASSIGN(const ChatTemplate compiled, ChatTemplate::compile(source));
  return compiled.render(values->entries(), golden_time());
}

TEST(ChatTemplateGolden, ShippedTemplatesRenderAsJinja2) {
  const Json cases = Json::parse(read_text(kGolden / "template_cases.json"));
  std::size_t num_texts = 0;
  for (const auto& [name, answers] : cases["expected"].items()) {
    const std::string source = read_text(kGolden / "templates" / (name + ".jinja"));
    for (const auto& [conversation, expected] : answers.items()) {
      const auto got = render(source, cases["conversations"][conversation]);
      if (expected.contains("text")) {
        ++num_texts;
        ASSERT_TRUE(got) << name << " " << conversation << ": " << got.error().message;
        EXPECT_EQ(*got, expected["text"].get<std::string>()) << name << " " << conversation;
      } else {
        ASSERT_FALSE(got) << name << " " << conversation;
        if (expected.contains("raised")) {
          EXPECT_EQ(got.error().code, Code::invalid_request);
          EXPECT_EQ(got.error().message, expected["raised"].get<std::string>()) << name << " " << conversation;
        }
      }
    }
  }
  EXPECT_GT(num_texts, 150u);
}

TEST(ChatTemplateGolden, RandomTemplatesRenderAsJinja2) {
  const Json cases = Json::parse(read_text(kGolden / "fuzz_cases.json"));
  ASSERT_GE(cases["cases"].size(), 400u);
  for (const Json& one : cases["cases"]) {
    const auto source = one["template"].get<std::string>();
    const auto got = render(source, one["variables"]);
    if (one["text"].is_null()) {
      EXPECT_FALSE(got) << source;
    } else {
      ASSERT_TRUE(got) << source << "\n" << got.error().message;
      EXPECT_EQ(*got, one["text"].get<std::string>()) << source;
    }
  }
}

}  // namespace
}  // namespace mstar
