#include "progress.h"

#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "mstar/text/utf8.h"

namespace mstar::apps {
namespace {

constexpr int kMinBar = 10;
constexpr int kMaxBar = 40;
constexpr int kMinName = 8;
constexpr int kMaxName = 36;

struct Range {
  char32_t first, last;
};
// Blocks that terminals draw two columns wide (Unicode East Asian Width W and F, coarsely), and marks without width.
constexpr Range kWide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},  {0x3041, 0x33FF}, {0x3400, 0x4DBF},
                           {0x4E00, 0x9FFF},   {0xA000, 0xA4CF},  {0xAC00, 0xD7A3}, {0xF900, 0xFAFF},
                           {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},  {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F},
                           {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};
constexpr Range kZero[] = {{0x0300, 0x036F}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}};

template <std::size_t N>
bool in(const Range (&ranges)[N], char32_t c) {
  return std::any_of(ranges, ranges + N, [c](Range r) { return c >= r.first && c <= r.last; });
}
int width_of(char32_t c) { return in(kZero, c) ? 0 : in(kWide, c) ? 2 : 1; }

struct Glyph {
  std::string bytes;
  int width = 1;
};
std::vector<Glyph> glyphs_of(std::string_view text) {
  std::vector<Glyph> out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const bool shown =
        step.kind == Utf8Kind::valid && step.code_point >= 0x20 && (step.code_point < 0x7F || step.code_point > 0x9F);
    if (shown) {
      out.push_back({std::string(text.substr(0, step.length_bytes)), width_of(step.code_point)});
    } else {
      out.push_back({"?", 1});
    }
    text.remove_prefix(std::max<std::size_t>(step.length_bytes, 1));
  }
  return out;
}

std::string bar(double share, int inner) {
  const int filled = std::clamp(static_cast<int>(std::lround(share * inner)), 0, inner);
  std::string out(static_cast<std::size_t>(inner), ' ');
  std::fill(out.begin(), out.begin() + filled, '=');
  if (filled > 0 && filled < inner) out[static_cast<std::size_t>(filled) - 1] = '>';
  return "[" + out + "]";
}

}  // namespace

std::string format_clock(double seconds) {
  const auto s = static_cast<long long>(std::isfinite(seconds) ? std::clamp(seconds, 0.0, 3.6e7) : 0.0);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string format_speed(double audio_s, double elapsed_s) {
  if (!(audio_s > 0) || !(elapsed_s > 0)) return "";
  const double speed = audio_s / elapsed_s;
  return speed < 100 ? fmt::format("{:.1f}x", speed) : fmt::format("{:.0f}x", speed);
}

int display_width(std::string_view text) {
  int out = 0;
  for (const Glyph& each : glyphs_of(text)) out += each.width;
  return out;
}

std::string fit_name(std::string_view text, int columns) {
  const std::vector<Glyph> glyphs = glyphs_of(text);
  int width = 0;
  for (const Glyph& each : glyphs) width += each.width;
  // Half of what fits from each end; the end of a path says more, so it gets the odd column.
  const int room = width <= columns ? width : std::max(0, columns - 2);
  std::string head, tail;
  std::size_t first = 0, last = glyphs.size();
  if (width <= columns) {
    for (const Glyph& each : glyphs) head += each.bytes;
    return head;
  }
  for (int used = 0; first < last && used + glyphs[first].width <= room / 2; ++first) {
    used += glyphs[first].width;
    head += glyphs[first].bytes;
  }
  for (int used = 0; last > first && used + glyphs[last - 1].width <= room - room / 2; --last) {
    used += glyphs[last - 1].width;
    tail.insert(0, glyphs[last - 1].bytes);
  }
  return head + std::string(static_cast<std::size_t>(std::clamp(columns, 0, 2)), '.') + tail;
}

std::string progress_line(const FileProgress& file, int columns) {
  std::string figures;
  const bool known = file.duration_s && *file.duration_s > 0;
  double share = 0;
  if (known) {
    // A window may end past the file.
    const double done_s = std::min(file.done_s, *file.duration_s);
    share = std::max(0.0, done_s / *file.duration_s);
    figures =
        fmt::format(" {:3.0f}%  {}/{}", std::floor(share * 100), format_clock(done_s), format_clock(*file.duration_s));
  } else {
    figures = "  " + format_clock(file.done_s);
  }
  const std::string speed = format_speed(file.done_s, file.elapsed_s);
  if (!speed.empty()) figures += "  " + speed;
  const int room = columns - static_cast<int>(figures.size());
  if (room < kMinName) return fit_name(file.name + figures, columns);
  const int bar_columns = known ? std::clamp(room - kMaxName - 1, 0, kMaxBar + 2) : 0;
  const bool has_bar = bar_columns >= kMinBar + 2;
  const int name_columns = std::min(kMaxName, has_bar ? room - bar_columns - 1 : room);
  std::string name = fit_name(file.name, name_columns);
  // Names are padded so that the bars of several files stand in one column.
  if (has_bar) name += std::string(static_cast<std::size_t>(std::max(0, name_columns - display_width(name)) + 1), ' ');
  return name + (has_bar ? bar(share, bar_columns - 2) : std::string()) + figures;
}

std::string done_line(const FileProgress& file) {
  const double audio_s = file.duration_s.value_or(file.done_s);
  const std::string speed = format_speed(audio_s, file.elapsed_s);
  return fmt::format("{}: {:.1f} s of audio in {:.1f} s{}", file.name, audio_s, file.elapsed_s,
                     speed.empty() ? "" : ", " + speed + " real time");
}

ProgressBoard::ProgressBoard(std::FILE* out) : out_(out), on_terminal_(::isatty(::fileno(out)) == 1) {}

int ProgressBoard::columns() const {
  winsize size{};
  if (::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

void ProgressBoard::put(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  if (num_drawn_ > 0 && text == drawn_) return;
  clear();
  drawn_ = text;
  std::fputs(text.c_str(), out_);
  std::fflush(out_);
  num_drawn_ = static_cast<int>(lines.size());
}

void ProgressBoard::draw(const std::vector<FileProgress>& files) {
  if (!on_terminal_) return;
  std::vector<std::string> lines;
  // The last column stays free: some terminals wrap when it is written.
  for (const FileProgress& each : files) lines.push_back(progress_line(each, columns() - 1));
  put(lines);
}

void ProgressBoard::draw_text(const std::string& line) {
  if (on_terminal_) put({fit_name(line, columns() - 1)});
}

void ProgressBoard::clear() {
  if (num_drawn_ == 0) return;
  std::string text = "\r\x1b[K";
  for (int i = 1; i < num_drawn_; ++i) text += "\x1b[A\r\x1b[K";
  std::fputs(text.c_str(), out_);
  std::fflush(out_);
  num_drawn_ = 0;
}

void ProgressBoard::say(const std::string& line) {
  clear();
  std::fputs((line + "\n").c_str(), out_);
  std::fflush(out_);
}

}  // namespace mstar::apps
