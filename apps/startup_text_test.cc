#include "startup_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "media_file.h"

namespace mstar::apps {
namespace {

using ::testing::HasSubstr;

TEST(UrlOf, IsWhatAClientWouldOpen) {
  EXPECT_EQ(url_of("127.0.0.1", 8000), "http://127.0.0.1:8000");
  EXPECT_EQ(url_of("0.0.0.0", 80), "http://127.0.0.1:80");
  EXPECT_EQ(url_of("::", 80), "http://[::1]:80");
  EXPECT_EQ(url_of("example.org", 80), "http://example.org:80");
}

TEST(StartupText, ShowsCommandsForWhatIsServed) {
  Startup s{
      .memory = {},
      .device = "a processor",
      .models = {{"words", {}, {decl::Route::generate}}, {"w", {"whisper-1"}, {decl::Route::audio_transcriptions}}},
      .url = "http://h:1",
      .sample = "/a/b.wav"};
  EXPECT_THAT(startup_text(s),
              ::testing::AllOf(HasSubstr("serving w, whisper-1\n"), HasSubstr("ready on http://h:1\n"),
                               HasSubstr("curl http://h:1/v1/audio/transcriptions -F model=w -F file=@/a/b.wav\n")));
  s.models.pop_back();
  EXPECT_THAT(
      startup_text(s),
      HasSubstr(
          R"(curl http://h:1/generate -H 'Content-Type: application/json' -d '{"model": "words", "text": "Hello"}')"));
}

TEST(ReadMedia, TellsTheKindByPrefixOrExtension) {
  EXPECT_EQ(read_media("audio:/dev/null")->modality, decl::Modality::audio);
  EXPECT_EQ(read_media("image:/dev/null")->file_name, "null");
  ASSERT_FALSE(read_media("/dev/null"));
  EXPECT_EQ(read_media("/dev/null").error().code, Code::invalid_request);
  EXPECT_EQ(read_media("/no/such.wav").error().code, Code::unavailable);
}

TEST(ChunkFileName, NamesTheFormatAndNothingElse) {
  EXPECT_EQ(chunk_file_name({.modality = decl::Modality::image, .format = "png"}, 3), "answer-3.png");
  EXPECT_EQ(chunk_file_name({.modality = decl::Modality::audio, .format = "../x"}, 0), "answer-0.x");
  EXPECT_EQ(chunk_file_name({.modality = decl::Modality::audio}, 0), "answer-0.audio");
}

}  // namespace
}  // namespace mstar::apps
