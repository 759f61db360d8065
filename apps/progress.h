// Progress on a terminal: one line for each file in work, redrawn in place; plain lines elsewhere.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mstar::apps {

struct FileProgress {
  std::string name;
  double done_s = 0;                 // of audio
  std::optional<double> duration_s;  // of the whole file, where it says so
  double elapsed_s = 0;              // of work
};

// "1:02:03", "2:03"; whole seconds, rounded down.
std::string format_clock(double seconds);
// "12.3x", "113x"; empty when nothing was done yet.
std::string format_speed(double audio_s, double elapsed_s);
// Columns that a terminal gives `text`: wide East Asian characters take two, combining ones none.
int display_width(std::string_view text);
// The text cut in its middle to at most `columns`, control characters and ill-formed bytes shown as '?'.
std::string fit_name(std::string_view text, int columns);
// At most `columns` wide: "name [====>    ]  45%  0:27/1:00  12.3x". Without a duration, no bar; what does not fit is
// left out, the name last.
std::string progress_line(const FileProgress& file, int columns);
// "name: 60.0 s of audio in 4.9 s, 12.3x real time"
std::string done_line(const FileProgress& file);

// Owner thread: one. Nothing else may write to the terminal between draw() and clear().
class ProgressBoard {
 public:
  explicit ProgressBoard(std::FILE* out);
  ~ProgressBoard() { clear(); }
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  bool on_terminal() const { return on_terminal_; }
  // Draws the lines in the place of the last ones. Nothing where `out` is no terminal.
  void draw(const std::vector<FileProgress>& files);
  void draw_text(const std::string& line);
  void clear();
  // A line that stays.
  void say(const std::string& line);

 private:
  int columns() const;
  void put(const std::vector<std::string>& lines);

  std::FILE* out_;
  bool on_terminal_;
  std::string drawn_;
  int num_drawn_ = 0;  // lines
};

}  // namespace mstar::apps
