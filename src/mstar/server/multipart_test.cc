#include "mstar/server/multipart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace mstar::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<Form> parse(std::string_view body, std::size_t piece = 1 << 20, MultipartLimits limits = {}) {
  MultipartReader reader("b", limits);
  for (std::size_t at = 0; at < body.size(); at += piece) MSTAR_TRY(reader.feed(body.substr(at, piece)));
  return reader.finish();
}

std::string part(std::string_view headers, std::string_view body) {
  return "--b\r\n" + std::string(headers) + "\r\n\r\n" + std::string(body) + "\r\n";
}
std::string field(std::string_view name, std::string_view value) {
  return part("Content-Disposition: form-data; name=\"" + std::string(name) + "\"", value);
}
std::string file(std::string_view file_name, std::string_view bytes) {
  return part("Content-Disposition: form-data; name=\"f\"; filename=" + std::string(file_name), bytes);
}

TEST(Multipart, FieldsAndFiles) {
  // A file may hold all but the delimiter itself.
  EXPECT_FALSE(parse(file("x", "a\r\n--bc") + "--b--"));
  const std::string bytes = std::string("\r\n--\0--b\r\n-b\r\n--\r\n--a", 21);
  const std::string good =
      "a preamble\r\n" + field("a", "1") + field("empty", "") +
      part("content-type:  audio/wav \r\nCONTENT-DISPOSITION: form-data; filename=\"x.wav\"; name=f", bytes) +
      "--b--\r\nan epilogue --b\r\n";
  for (std::size_t piece = 1; piece <= good.size(); ++piece) {
    const auto read = parse(good, piece);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->fields.get_string("a", "").value(), "1");
    EXPECT_TRUE(read->fields.has("empty"));
    ASSERT_EQ(read->files.size(), 1u);
    EXPECT_EQ(read->files[0].field, "f");
    EXPECT_EQ(read->files[0].file_name, "x.wav");
    EXPECT_EQ(read->files[0].content_type, "audio/wav");
    EXPECT_EQ(read->files[0].bytes, bytes);
  }
}

TEST(Multipart, RandomBytesComeBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(random() % 3000, '\0');
    // Mostly of the delimiter's own characters.
    for (char& c : bytes) c = random() % 4 ? "\r\n-b"[random() % 4] : static_cast<char>(random());
    for (std::size_t at = bytes.find("\r\n--b"); at != std::string::npos; at = bytes.find("\r\n--b")) bytes[at] = 'x';
    if ((bytes + "\r\n--b").find("\r\n--b") != bytes.size()) continue;
    const auto form = parse(file("x", bytes) + field("k", "v") + "--b--", 1 + random() % 100);
    ASSERT_TRUE(form) << form.error().message;
    EXPECT_EQ(form->files.at(0).bytes, bytes);
    EXPECT_TRUE(form->fields.has("k"));
  }
}

TEST(Multipart, FileNamesKeepTheirLastPart) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"\"a.wav\"", "a.wav"},
      {"a.wav", "a.wav"},
      {"\"../../etc/passwd\"", "passwd"},
      {"\"C:\\dir\\a b.wav\"", "a b.wav"},
      {"\"a\\\"b.wav\"", "a\"b.wav"},
      {"\"..\"", "file"},
      {"\"x/\"", "file"},
      {"\"\"", "file"},
      {"\"a\tb\x01.wav\"", "ab.wav"},
      {"\"caf\xC3\xA9.wav\"", "caf\xC3\xA9.wav"},
      {"\"caf\xE9.wav\"", "caf_.wav"},
      {"\"x.wav\"; filename*=UTF-8''na%C3%AFve%2Fb.wav", "b.wav"},
      {"\"x.wav\"; filename*=latin-1''y.wav", "x.wav"},
      {"\"a;name=z.wav\"", "a;name=z.wav"},
  };
  for (const auto& [sent, kept] : rows) {
    const auto form = parse(file(sent, "x") + "--b--");
    ASSERT_TRUE(form) << sent << form.error().message;
    EXPECT_EQ(form->files.at(0).file_name, kept) << sent;
    EXPECT_EQ(form->files.at(0).field, "f") << sent;
  }
  EXPECT_EQ(base_name(std::string(1000, 'a') + ".wav").size(), 255u);
  EXPECT_TRUE(base_name(std::string(1000, 'a') + ".wav").ends_with(".wav"));
}

TEST(Multipart, RepeatedFieldsAreLists) {
  const auto form = parse(field("a[]", "1") + field("b[]", "1") + field("b[]", "2") + field("c", "1") +
                          field("c", "2") + field("c", "3") + "--b--");
  ASSERT_TRUE(form);
  EXPECT_THAT(form->fields.get_strings("a").value(), ElementsAre("1"));
  EXPECT_THAT(form->fields.get_strings("b").value(), ElementsAre("1", "2"));
  EXPECT_THAT(form->fields.get_strings("c").value(), ElementsAre("1", "2", "3"));
  EXPECT_FALSE(form->fields.get_string("c", ""));
}

TEST(Multipart, MalformedBodies) {
  const std::vector<std::string> bodies = {
      "",
      "no boundary at all",
      "--x\r\n\r\n--x--",
      "--b",
      "--b\r\n",
      "--bx\r\n" + field("a", "1") + "--b--",
      field("a", "1"),
      field("a", "1") + "--b-",
      field("a", "1") + "--bb--",
      "--b\r\n\r\nno headers\r\n--b--",
      part("Content-Type: text/plain", "no disposition") + "--b--",
      part("Content-Disposition: attachment; name=\"a\"", "1") + "--b--",
      part("Content-Disposition: form-data", "1") + "--b--",
      part("Content-Disposition: form-data; name=\"a", "unclosed quote") + "--b--",
      part("Content-Disposition: form-data; name=\"\"", "1") + "--b--",
      part("Content-Disposition form-data; name=a", "1") + "--b--",
      part(": form-data; name=a", "1") + "--b--",
      part("Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64", "AAAA") + "--b--",
      field("\xFF", "1") + "--b--",
      field("a", "\xC3\x28") + "--b--",
      "--b\n" + field("a", "1") + "--b--",
  };
  for (const std::string& body : bodies) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{1000}}) {
      const auto form = parse(body, piece);
      ASSERT_FALSE(form) << body;
      EXPECT_EQ(form.error().code, Code::invalid_request) << body;
    }
  }
}

TEST(Multipart, Limits) {
  MultipartLimits limits;
  limits.part_header_bytes = 200;
  limits.preamble_bytes = 100;
  limits.field_bytes = 50;
  limits.num_parts = 3;
  const std::string end = "--b--";
  EXPECT_EQ(parse("--b\r\nX: " + std::string(300, 'x'), 10, limits).error().code, Code::exhausted);
  EXPECT_EQ(parse("--b" + std::string(300, ' '), 10, limits).error().code, Code::invalid_request);
  EXPECT_EQ(parse(std::string(300, 'x'), 10, limits).error().code, Code::invalid_request);
  EXPECT_TRUE(parse(field("a", std::string(25, 'x')) + field("b", std::string(25, 'x')) + end, 10, limits));
  const auto large = parse(field("a", std::string(25, 'x')) + field("b", std::string(26, 'x')) + end, 10, limits);
  EXPECT_EQ(large.error().code, Code::exhausted);
  EXPECT_EQ(large.error().field, "b");
  EXPECT_TRUE(parse(file("x", std::string(5000, 'x')) + end, 10, limits));
  EXPECT_EQ(parse(field("a", "") + field("a", "") + field("a", "") + field("a", "") + end, 10, limits).error().code,
            Code::exhausted);
}

TEST(Multipart, Boundaries) {
  EXPECT_EQ(multipart_boundary("multipart/form-data; boundary=abc").value(), "abc");
  EXPECT_EQ(multipart_boundary("multipart/form-data;charset=utf-8; BOUNDARY=\"a b:c\"").value(), "a b:c");
  EXPECT_EQ(multipart_boundary("multipart/form-data; boundary=" + std::string(70, 'x')).value().size(), 70u);
  for (const std::string& bad :
       {std::string("multipart/form-data"), std::string("multipart/form-data; boundary="),
        std::string("multipart/form-data; boundary=\"\""), std::string("multipart/form-data; boundary=\"abc"),
        std::string("multipart/form-data; boundary=\"a \""), std::string("multipart/form-data; boundary=a\x01"),
        "multipart/form-data; boundary=" + std::string(71, 'x')})
    EXPECT_FALSE(multipart_boundary(bad)) << bad;
}

}  // namespace
}  // namespace mstar::server
