// Cues of a width, of so many lines or words. Source: openai-whisper's SubtitlesWriter.
#include <algorithm>
#include <optional>

#include "mstar/text/subtitles.h"
#include "mstar/text/utf8.h"

namespace mstar {
namespace {

constexpr double kLongPause_s = 3.0;
constexpr std::size_t kNoLimit = 1000;  // the reference's

std::size_t num_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

class CueMaker {
 public:
  CueMaker(const CueRules& rules, double first_s)
      : line_count_(rules.max_line_count > 0 ? std::optional<std::size_t>(rules.max_line_count) : std::nullopt),
        width_(rules.max_line_width > 0 ? static_cast<std::size_t>(rules.max_line_width) : kNoLimit),
        num_words_(rules.max_words_per_line > 0 ? static_cast<std::size_t>(rules.max_words_per_line) : kNoLimit),
        keeps_segments_(rules.max_line_count <= 0 || rules.max_line_width <= 0),
        last_s_(first_s) {}

  void add(const TranscriptSegment& segment, std::vector<TranscriptSegment>& out) {
    for (std::size_t i = 0; i < segment.words.size(); ++i) add(segment.words[i], i % num_words_ == 0, out);
  }
  void finish(std::vector<TranscriptSegment>& out) {
    if (cue_) out.push_back(std::move(*cue_));
    cue_.reset();
  }

 private:
  // `begins`: a segment, or as many words of one as a line may have.
  void add(const TranscriptWord& word, bool begins, std::vector<TranscriptSegment>& out) {
    const bool long_pause = !keeps_segments_ && word.start_s - last_s_ > kLongPause_s;
    const bool has_room = line_width_ + num_characters(word.text) <= width_;
    const bool ends_segment = begins && cue_ && keeps_segments_;
    std::string text = word.text;
    if (line_width_ > 0 && has_room && !long_pause && !ends_segment) {
      line_width_ += num_characters(text);
    } else {
      text = strip_spaces(text);
      const std::size_t width = num_characters(text);
      if ((cue_ && line_count_ && (long_pause || num_lines_ >= *line_count_)) || ends_segment) {
        finish(out);
        num_lines_ = 1;
      } else if (line_width_ > 0) {
        ++num_lines_;
        text.insert(0, 1, '\n');
      }
      line_width_ = width;
    }
    if (!cue_) {
      cue_.emplace();
      cue_->start_s = word.start_s;
    }
    cue_->text += text;
    cue_->end_s = word.end_s;
    last_s_ = word.start_s;
  }

  const std::optional<std::size_t> line_count_;
  const std::size_t width_, num_words_;
  const bool keeps_segments_;
  double last_s_;
  std::size_t line_width_ = 0, num_lines_ = 1;
  std::optional<TranscriptSegment> cue_;
};

}  // namespace

std::vector<TranscriptSegment> cues_by_rules(std::span<const TranscriptSegment> segments, const CueRules& rules) {
  const bool has_words =
      std::any_of(segments.begin(), segments.end(), [](const auto& each) { return !each.words.empty(); });
  if (!rules.any() || !has_words) return {segments.begin(), segments.end()};
  const auto first =
      std::find_if(segments.begin(), segments.end(), [](const auto& each) { return !each.words.empty(); });
  CueMaker maker(rules, first->words.front().start_s);
  std::vector<TranscriptSegment> out;
  for (const TranscriptSegment& each : segments) maker.add(each, out);
  maker.finish(out);
  return out;
}

}  // namespace mstar
