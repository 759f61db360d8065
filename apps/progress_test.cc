#include "progress.h"

#include <gtest/gtest.h>

namespace mstar::apps {
namespace {

TEST(FormatClock, CutsToWholeSecondsAndShowsHoursFromOneOn) {
  EXPECT_EQ(format_clock(0), "0:00");
  EXPECT_EQ(format_clock(59.999), "0:59");
  EXPECT_EQ(format_clock(61), "1:01");
  EXPECT_EQ(format_clock(3599.9), "59:59");
  EXPECT_EQ(format_clock(3600), "1:00:00");
  EXPECT_EQ(format_clock(7384), "2:03:04");
  EXPECT_EQ(format_clock(-5), "0:00");
  EXPECT_EQ(format_clock(std::numeric_limits<double>::quiet_NaN()), "0:00");
}

TEST(FormatSpeed, IsEmptyBeforeAnythingWasDone) {
  EXPECT_EQ(format_speed(0, 3), "");
  EXPECT_EQ(format_speed(3, 0), "");
  EXPECT_EQ(format_speed(24.6, 2), "12.3x");
  EXPECT_EQ(format_speed(1130, 10), "113x");
}

TEST(DisplayWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("h\xC3\xA9"), 2);                 // é
  EXPECT_EQ(display_width("\xE6\x97\xA5\xE6\x9C\xAC"), 4);  // 日本
  EXPECT_EQ(display_width("e\xCC\x81"), 1);                 // e and a combining accent
  EXPECT_EQ(display_width("a\x1b[2Jb"), 6);                 // an escape code is shown, never sent
  EXPECT_EQ(display_width("\xFF\xFE"), 2);
}

TEST(FitName, KeepsBothEndsAndNeverSendsControlCharacters) {
  EXPECT_EQ(fit_name("short.wav", 20), "short.wav");
  EXPECT_EQ(fit_name("0123456789abcdef", 10), "0123..cdef");
  EXPECT_EQ(fit_name("evil\x1b[2J.wav", 40), "evil?[2J.wav");
  EXPECT_EQ(fit_name("abc", 0), "");
  EXPECT_EQ(fit_name("abcdef", 1), ".");
  for (int columns = 0; columns < 30; ++columns)
    EXPECT_LE(display_width(fit_name("\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E-recording-of-today.wav", columns)), columns);
}

TEST(ProgressLine, ShowsBarClockAndSpeed) {
  const FileProgress half{.name = "talk.wav", .done_s = 30, .duration_s = 60, .elapsed_s = 3};
  const std::string line = progress_line(half, 80);
  EXPECT_EQ(line, "talk.wav                             [========>         ]  50%  0:30/1:00  10.0x");
}

TEST(ProgressLine, FitsEveryWidth) {
  const FileProgress known{
      .name = "a/rather/long/path/to/a/recording.flac", .done_s = 4000, .duration_s = 9000, .elapsed_s = 100};
  const FileProgress unknown{.name = "stream.mp3", .done_s = 12, .duration_s = {}, .elapsed_s = 2};
  for (int columns = 1; columns < 200; ++columns) {
    EXPECT_LE(display_width(progress_line(known, columns)), columns);
    EXPECT_LE(display_width(progress_line(unknown, columns)), columns);
  }
  EXPECT_NE(progress_line(unknown, 80).find("0:12  6.0x"), std::string::npos);
  EXPECT_EQ(progress_line(unknown, 80).find('['), std::string::npos);
}

TEST(ProgressLine, AWindowThatEndsPastTheFileIsAllOfIt) {
  const FileProgress past{.name = "a.wav", .done_s = 31, .duration_s = 30.2, .elapsed_s = 1};
  EXPECT_NE(progress_line(past, 100).find("100%  0:30/0:30"), std::string::npos);
}

TEST(DoneLine, SaysWhatTheFileTook) {
  EXPECT_EQ(done_line({.name = "a.wav", .done_s = 58, .duration_s = 60, .elapsed_s = 4}),
            "a.wav: 60.0 s of audio in 4.0 s, 15.0x real time");
}

}  // namespace
}  // namespace mstar::apps
