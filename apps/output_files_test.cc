#include "output_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

namespace mstar::apps {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OutputFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mstar_output_files_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  std::string touch(const std::string& name) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << "x";
    return (root_ / name).string();
  }
  std::vector<std::string> stems(const std::vector<InputFile>& inputs) const {
    std::vector<std::string> out;
    for (const InputFile& each : inputs) out.push_back(each.stem.string() + each.extension);
    return out;
  }
  fs::path root_;
};

TEST_F(OutputFiles, DirectoriesGiveTheirAudioFilesInOrder) {
  for (const char* name : {"d/b.wav", "d/a.FLAC", "d/notes.txt", "d/sub/c.mp3", "d/.hidden/e.wav", "d/.f.wav"})
    touch(name);
  std::vector<std::string> faults;
  EXPECT_THAT(stems(find_inputs({(root_ / "d").string()}, faults)), ElementsAre("a.FLAC", "b.wav", "sub/c.mp3"));
  EXPECT_TRUE(faults.empty());
}

TEST_F(OutputFiles, PatternsGiveTheAudioFilesThatMatch) {
  for (const char* name : {"d/b.wav", "d/a.mp3", "d/a.txt", "d/x/c.wav", "d/x/y/e.wav", "d/.h/f.wav", "d/[1].wav"})
    touch(name);
  std::vector<std::string> faults;
  const auto found = [&](const std::string& pattern) {
    return stems(find_inputs({(root_ / pattern).string()}, faults));
  };
  EXPECT_THAT(found("d/*"), ElementsAre("[1].wav", "a.mp3", "b.wav"));
  EXPECT_THAT(found("d/[ab].*"), ElementsAre("a.mp3", "b.wav"));
  EXPECT_THAT(found("d/*/*.wav"), ElementsAre("x/c.wav"));
  EXPECT_THAT(found("d/**/?.wav"), ElementsAre("b.wav", "x/c.wav", "x/y/e.wav"));
  EXPECT_THAT(found("d/**/y/**/*.wav"), ElementsAre("x/y/e.wav"));
  EXPECT_THAT(found("d/[1].wav"), ElementsAre("[1].wav"));  // a file of that very name
  EXPECT_TRUE(faults.empty());
  EXPECT_TRUE(found("d/*.flac").empty());
  EXPECT_TRUE(found("none/*.wav").empty());
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_THAT(faults[0], HasSubstr("no audio file matches this pattern"));
  EXPECT_THAT(faults[1], HasSubstr("No such file"));
  // Two arguments, one file.
  EXPECT_EQ(find_inputs({(root_ / "d/b*").string(), (root_ / "d/b.wav").string()}, faults).size(), 1u);
}

TEST_F(OutputFiles, FilesCountWhateverTheirExtensionAndOnce) {
  const std::string odd = touch("speech.bin");
  std::vector<std::string> faults;
  const auto inputs = find_inputs({odd, (root_ / "." / "speech.bin").string(), "-"}, faults);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[0].stem, "speech");
  EXPECT_EQ(inputs[1].shown(), "standard input");
}

TEST_F(OutputFiles, ALargeFileIsMappedNotRead) {
  const std::string path = touch("large.wav");
  // Sparse: more than any machine's memory.
  constexpr std::uintmax_t kBytes = std::uintmax_t{1} << 42;
  std::error_code error;
  fs::resize_file(path, kBytes, error);
  if (error) GTEST_SKIP() << "this file system holds no file of 4 TiB: " << error.message();
  const auto value = open_whole(path);
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(value->size_bytes(), kBytes);
  EXPECT_EQ(value->dtype(), DType::bytes);
  EXPECT_EQ(value->text().substr(0, 2), std::string_view("x\0", 2));
  EXPECT_EQ(value->text().back(), '\0');
  fs::remove(path);
  EXPECT_EQ(value->text().front(), 'x');  // the mapping keeps it
}

TEST_F(OutputFiles, WhatCannotBeMappedIsRead) {
  const std::string pipe = (root_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "from a pipe"; });
  const auto value = open_whole(pipe);
  writer.join();
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(value->text(), "from a pipe");
  std::ofstream((root_ / "empty.wav").string());
  ASSERT_TRUE(open_whole((root_ / "empty.wav").string()));
  EXPECT_EQ(open_whole((root_ / "empty.wav").string())->size_bytes(), 0u);
  const auto missing = open_whole((root_ / "missing").string());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message, "No such file or directory");
}

TEST_F(OutputFiles, WhatCannotBeReadIsNamed) {
  fs::create_directories(root_ / "empty");
  std::vector<std::string> faults;
  EXPECT_TRUE(find_inputs({"/no/such.wav", (root_ / "empty").string()}, faults).empty());
  EXPECT_THAT(faults, ElementsAre("/no/such.wav: no such file", HasSubstr("no audio file")));
}

InputFile at(const std::string& path, const std::string& stem, const std::string& extension) {
  return {.path = path, .stem = stem, .extension = extension};
}

TEST(PlanOutputs, KeepsStructureAndTellsExtensionsApart) {
  const auto plan = plan_outputs(
      {at("x/a.wav", "a", ".wav"), at("y/a.flac", "a", ".flac"), at("d/s/b.ogg", "s/b", ".ogg")}, "out", "srt");
  ASSERT_TRUE(plan);
  EXPECT_THAT(*plan, ElementsAre("out/a.wav.srt", "out/a.flac.srt", "out/s/b.srt"));
}

TEST(PlanOutputs, RefusesTwoInputsForOneOutput) {
  const auto plan = plan_outputs({at("x/a.wav", "a", ".wav"), at("y/a.wav", "a", ".wav")}, "out", "txt");
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::invalid_request);
  EXPECT_THAT(plan.error().message,
              ::testing::AllOf(HasSubstr("x/a.wav"), HasSubstr("y/a.wav"), HasSubstr("out/a.wav.txt")));
}

TEST(PartialPath, MarksTheFile) { EXPECT_EQ(partial_path("out/a.b.txt"), fs::path("out/a.b.partial.txt")); }

TEST_F(OutputFiles, WritesWholeFilesAndLeavesNothingElse) {
  const fs::path path = root_ / "deep" / "a.txt";
  ASSERT_TRUE(write_atomically(path, "one\n"));
  ASSERT_TRUE(write_atomically(path, "two\n"));
  EXPECT_EQ(read_whole(path.string()).value_or(""), "two\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), fs::directory_iterator()), 1);
}

TEST_F(OutputFiles, AFullDiskIsSaidAndLeavesNothing) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  // The temporary file's name leads to a device that is always full.
  const fs::path path = root_ / "a.txt";
  fs::create_symlink("/dev/full", path.string() + ".tmp" + std::to_string(::getpid()));
  const Status written = write_atomically(path, "text");
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message, ::testing::AllOf(HasSubstr("a.txt"), HasSubstr("No space left")));
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(OutputFiles, ADirectoryWithoutPermissionIsRefusedBeforeAnyWork) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ::chmod(root_.c_str(), 0500);
  const Status made = prepare_directory(root_ / "out");
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("ermission denied"));
}

TEST_F(OutputFiles, AFileIsNoOutputDirectory) {
  EXPECT_FALSE(prepare_directory(touch("file")));
  EXPECT_FALSE(write_atomically(fs::path(touch("file2")) / "a.txt", "text"));
}

TEST(ReadWhole, SaysWhyNot) {
  EXPECT_FALSE(read_whole("/no/such/file"));
  const auto directory = read_whole("/tmp");
  ASSERT_FALSE(directory);
  EXPECT_THAT(directory.error().message, HasSubstr("directory"));
}

}  // namespace
}  // namespace mstar::apps
