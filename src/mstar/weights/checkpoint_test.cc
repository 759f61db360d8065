#include "mstar/weights/checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "mstar/weights/checkpoint_writer_test.h"

namespace mstar::weights {
namespace {

using namespace testing;  // NOLINT: the writers of this directory

std::string error_of(const std::filesystem::path& path) {
  const auto opened = Checkpoint::open(path);
  if (opened) return "";
  EXPECT_EQ(opened.error().code, Code::bad_model);
  return opened.error().message;
}
void expect_has(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}

TEST(MappedFile, NamesPathAndReason) {
  const TestDirectory dir;
  const auto missing = MappedFile::open(dir.path() / "none");
  ASSERT_FALSE(missing);
  expect_has(missing.error().message, (dir.path() / "none").string());
  expect_has(missing.error().message, "No such file");
  expect_has(MappedFile::open(dir.path()).error().message, "not a regular file");
  ASSERT_EQ(::mkfifo((dir.path() / "pipe").c_str(), 0600), 0);
  expect_has(MappedFile::open(dir.path() / "pipe").error().message, "not a regular file");
}

TEST(MappedFile, MapsBytesAndOutlivesTheFile) {
  const TestDirectory dir;
  EXPECT_TRUE((*MappedFile::open(dir.write("empty", "")))->bytes().empty());
  const auto path = dir.write("a", "hello");
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file);
  std::filesystem::remove(path);
  EXPECT_EQ((*file)->bytes().size(), 5u);
  (*file)->release_pages();
  EXPECT_EQ(std::memcmp((*file)->bytes().data(), "hello", 5), 0);
}

// Which pages of the bytes this process has mapped in now.
std::vector<bool> pages_present(std::span<const std::byte> bytes, std::size_t page) {
  // One eight-byte entry a page; a stream's buffer would ask for an odd number of bytes, which is refused.
  const int map = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  std::vector<bool> out;
  for (std::size_t at = 0; at < bytes.size(); at += page) {
    std::uint64_t entry = 0;
    const auto offset = reinterpret_cast<std::uintptr_t>(bytes.data() + at) / page * sizeof(entry);
    const bool read = ::pread(map, &entry, sizeof(entry), static_cast<off_t>(offset)) == sizeof(entry);
    out.push_back(read && (entry >> 63) != 0);
  }
  ::close(map);
  return out;
}

TEST(MappedFile, ReleasesTheWholePagesOfAPart) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::string content(8 * page, 0);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 5);
  const TestDirectory dir;
  const auto file = MappedFile::open(dir.write("a", content));
  ASSERT_TRUE(file);
  const auto bytes = (*file)->bytes();
  EXPECT_EQ(std::memcmp(bytes.data(), content.data(), content.size()), 0);
  if (pages_present(bytes, page) != std::vector<bool>(8, true)) GTEST_SKIP() << "/proc/self/pagemap cannot be read";
  (*file)->release_pages(bytes.subspan(page + 1, 3 * page));
  EXPECT_EQ(pages_present(bytes, page), (std::vector<bool>{true, true, false, false, true, true, true, true}));
  (*file)->release_pages(bytes.subspan(6 * page, 2 * page));
  EXPECT_EQ(pages_present(bytes, page), (std::vector<bool>{true, true, false, false, true, true, false, false}));
  (*file)->release_pages(bytes.subspan(10, 100));
  EXPECT_TRUE(pages_present(bytes, page)[0]);
  EXPECT_EQ(std::memcmp(bytes.data(), content.data(), content.size()), 0) << "they come back";
}

TEST(Checkpoint, OpensEachLayout) {
  const std::string one = safetensors_file({f32("a", {2}, {1, 2})});
  const std::string two = safetensors_file({f16("b", {1}, {3})});
  {
    const TestDirectory dir;
    dir.write("model.safetensors", one);
    dir.write("other.safetensors", two);  // not looked at: model.safetensors is the whole model
    const auto opened = Checkpoint::open(dir.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ((*opened)->weights().size(), 1u);
    EXPECT_EQ((*opened)->format(), Format::safetensors);
    EXPECT_EQ((*opened)->total_bytes(), 8u);
    EXPECT_NE((*opened)->find("a"), nullptr);
    EXPECT_EQ((*opened)->find("b"), nullptr);
  }
  {
    const TestDirectory dir;
    dir.write("x-1.safetensors", one);
    dir.write("x-2.safetensors", two);
    EXPECT_EQ((*Checkpoint::open(dir.path()))->weights().size(), 2u);
    const auto index =
        dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}})");
    const auto opened = Checkpoint::open(dir.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ((*opened)->find("b")->file, "x-2.safetensors");
    EXPECT_TRUE(Checkpoint::open(index));
    EXPECT_EQ((*Checkpoint::open(dir.path() / "x-2.safetensors"))->weights().size(), 1u);
  }
  {
    const TestDirectory dir;
    const auto file = dir.write("model.bin", ct2_file({f32("a", {2}, {1, 2})}, {{"c", "a"}}));
    for (const auto& path : {dir.path(), file}) {
      const auto opened = Checkpoint::open(path);
      ASSERT_TRUE(opened) << opened.error().message;
      EXPECT_EQ((*opened)->format(), Format::ctranslate2);
      EXPECT_EQ((*opened)->spec_name(), "TestSpec");
      EXPECT_EQ((*opened)->find("c"), (*opened)->find("a"));
      EXPECT_EQ((*opened)->weights().size(), 1u);
    }
  }
}

TEST(Checkpoint, RefusesWhatIsNoCheckpoint) {
  const TestDirectory dir;
  expect_has(error_of(dir.path() / "none"), "No such file");
  expect_has(error_of(dir.path()), "holds no");
  expect_has(error_of(dir.write("a.gz", "x")), "neither");
  expect_has(error_of(dir.write("model.bin", "")), "binary version");
  EXPECT_NE(error_of(dir.write("model.safetensors", "")), "");
}

TEST(Checkpoint, ChecksShardsAgainstTheirIndex) {
  const TestDirectory dir;
  dir.write("x-1.safetensors", safetensors_file({f32("a", {1}, {1})}));
  const auto index = [&](const std::string& map) {
    dir.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    return error_of(dir.path());
  };
  EXPECT_EQ(index(R"("a":"x-1.safetensors")"), "");
  expect_has(index(R"("a":"x-1.safetensors","b":"x-1.safetensors")"),
             "'b' should be in 'x-1.safetensors' but is missing");
  expect_has(index(R"("a":"x-2.safetensors")"), "x-2.safetensors");
  dir.write("x-2.safetensors", safetensors_file({f32("c", {1}, {1})}));
  expect_has(index(R"("a":"x-2.safetensors","c":"x-1.safetensors")"), "but is in");
  dir.write("x-2.safetensors", safetensors_file({f32("a", {1}, {1})}));
  expect_has(index(R"("a":"x-1.safetensors","a":"x-2.safetensors")"), "twice");
}

TEST(Checkpoint, RefusesAliasesToNowhere) {
  const TestDirectory dir;
  const auto with = [&](const TestAliases& aliases) {
    dir.write("model.bin", ct2_file({f32("a", {1}, {1})}, aliases));
    return error_of(dir.path());
  };
  EXPECT_EQ(with({{"b", "a"}, {"c", "a"}}), "");
  expect_has(with({{"b", "none"}}), "'none', which is not there");
  expect_has(with({{"a", "a"}}), "twice");
  expect_has(with({{"b", "a"}, {"b", "a"}}), "twice");
  expect_has(with({{"", "a"}}), "empty");
  expect_has(with({{"b", "c"}, {"c", "b"}}), "not there");
}

TEST(Checkpoint, ReadsIntegersAndSuggestsNames) {
  const TestDirectory dir;
  dir.write("model.bin", ct2_file({{"heads", DType::i16, {}, raw(std::int16_t{-6})},
                                   {"flag", DType::i8, {}, "\x03"},
                                   {"n", DType::i32, {1}, raw(std::int32_t{70000})},
                                   f32("x", {}, {1}),
                                   {"two", DType::i32, {2}, "12345678"}}));
  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->integer("heads"), -6);
  EXPECT_EQ((*opened)->integer("flag"), 3);
  EXPECT_EQ((*opened)->integer("n"), 70000);
  for (const char* name : {"x", "two", "none"}) EXPECT_FALSE((*opened)->integer(name)) << name;
  EXPECT_EQ((*opened)->nearest("head"), "heads");
  EXPECT_EQ((*opened)->nearest("quite another"), "");
}

// The weights that the tests are run with, where they are on this machine.
TEST(Checkpoint, ReadsRealWhisper) {
  const char* directory = std::getenv("MSTAR_TEST_WHISPER_CT2");
  if (!directory) GTEST_SKIP() << "MSTAR_TEST_WHISPER_CT2 names no directory with a CTranslate2 Whisper";
  const auto opened = Checkpoint::open(directory);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->spec_name(), "WhisperSpec");
  const StoredWeight* embeddings = (*opened)->find("decoder/embeddings/weight");
  ASSERT_NE(embeddings, nullptr);
  EXPECT_EQ((*opened)->find("decoder/projection/weight"), embeddings);
  const std::int64_t width = embeddings->shape[1];
  EXPECT_EQ((*opened)->integer("encoder/num_heads"), width / 64);
  EXPECT_EQ((*opened)->find("encoder/position_encodings/encodings")->shape, (Shape{1500, width}));
  EXPECT_EQ((*opened)->find("decoder/position_encodings/encodings")->shape, (Shape{448, width}));
  EXPECT_EQ((*opened)->find("encoder/layer_0/self_attention/linear_0/weight")->shape, (Shape{3 * width, width}));
  EXPECT_EQ((*opened)->find("decoder/layer_0/attention/linear_1/weight")->shape, (Shape{2 * width, width}));
}

}  // namespace
}  // namespace mstar::weights
