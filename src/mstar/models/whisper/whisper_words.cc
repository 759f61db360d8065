#include "mstar/models/whisper/whisper_words.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "mstar/text/utf8.h"

namespace mstar::models {
namespace {

constexpr double kFramesPerSecond = 100, kPositionsPerSecond = 50;

// As Python's `part in whole`.
bool is_in(std::string_view part, std::string_view whole) { return whole.find(part) != std::string_view::npos; }

std::size_t num_characters(std::string_view text) {
  std::size_t out = 0;
  for (; !text.empty(); text.remove_prefix(utf8_step(text).length_bytes)) ++out;
  return out;
}

// Which character of the text is the replacement character first; nothing when none is.
std::optional<std::size_t> find_replacement(std::string_view text) {
  const std::size_t at = text.find(kReplacementUtf8);
  if (at == std::string_view::npos) return std::nullopt;
  return num_characters(text.substr(0, at));
}

// Tokens that are whole characters together. A replacement character that the whole text has there too is one.
std::vector<std::vector<std::int32_t>> character_tokens(const Tokenizer& tokenizer, std::span<const std::int32_t> text,
                                                        std::vector<std::string>& spellings) {
  const std::string whole = tokenizer.decode(text);
  std::vector<std::vector<std::int32_t>> out;
  std::vector<std::int32_t> open;
  std::size_t begin = 0;  // of the open tokens' text, in bytes of the whole
  for (const std::int32_t token : text) {
    open.push_back(token);
    std::string decoded = tokenizer.decode(open);
    if (const auto found = find_replacement(decoded)) {
      // By characters, for what the open tokens spell so far need not be a part of the whole.
      std::string_view rest = std::string_view(whole).substr(std::min(begin, whole.size()));
      for (std::size_t i = 0; i < *found && !rest.empty(); ++i) rest.remove_prefix(utf8_step(rest).length_bytes);
      if (!rest.starts_with(kReplacementUtf8)) continue;
    }
    std::string_view passed = std::string_view(whole).substr(std::min(begin, whole.size()));
    for (std::size_t i = num_characters(decoded); i > 0 && !passed.empty(); --i)
      passed.remove_prefix(utf8_step(passed).length_bytes);
    begin = whole.size() - passed.size();
    spellings.push_back(std::move(decoded));
    out.push_back(std::move(open));
    open.clear();
  }
  return out;
}

bool has_no_spaces(std::string_view language) {
  constexpr std::array<std::string_view, 6> kLanguages = {"zh", "ja", "th", "lo", "my", "yue"};
  return std::find(kLanguages.begin(), kLanguages.end(), language) != kLanguages.end();
}

void join(Word& to, Word& from, bool in_front) {
  to.text = in_front ? from.text + to.text : to.text + from.text;
  to.num_tokens += from.num_tokens;
  from.text.clear();
  from.num_tokens = 0;
}

void merge_punctuation(std::vector<Word>& words, const WhisperOptions& options) {
  for (std::size_t i = words.size(), following = i - 1; i-- > 1;) {
    Word& previous = words[i - 1];
    if (previous.text.starts_with(' ') && is_in(strip_spaces(previous.text), options.prepend_punctuations)) {
      join(words[following], previous, true);
    } else {
      following = i - 1;
    }
  }
  for (std::size_t i = 1, previous = 0; i < words.size(); ++i) {
    if (!words[previous].text.ends_with(' ') && is_in(words[i].text, options.append_punctuations)) {
      join(words[previous], words[i], false);
    } else {
      previous = i;
    }
  }
}

double median_duration(const std::vector<Word>& words) {
  std::vector<double> durations;
  for (const Word& each : words)
    if (each.end_s != each.start_s) durations.push_back(each.end_s - each.start_s);
  if (durations.empty()) return 0;
  std::sort(durations.begin(), durations.end());
  const std::size_t half = durations.size() / 2;
  const double median = durations.size() % 2 ? durations[half] : (durations[half - 1] + durations[half]) / 2;
  return std::min(0.7, median);
}

// Words that are an end of a sentence, and those behind one, last no longer than others.
void shorten_at_sentence_ends(std::vector<Word>& words, double most_s) {
  constexpr std::string_view kEnds = ".\u3002!\uff01?\uff1f";
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i].end_s - words[i].start_s <= most_s) continue;
    if (is_in(words[i].text, kEnds)) {
      words[i].end_s = words[i].start_s + most_s;
    } else if (is_in(words[i - 1].text, kEnds)) {
      words[i].start_s = words[i].end_s - most_s;
    }
  }
}

// To hundredths, as Python rounds.
double rounded(double seconds) { return std::nearbyint(seconds * 100) / 100; }

// The first word after a pause, or two, are no longer than twice the median.
void shorten_after_pause(std::vector<Word>& words, double median_s, double last_speech_s) {
  const double most_s = 2 * median_s;
  Word& first = words[0];
  Word* const second = words.size() > 1 ? &words[1] : nullptr;
  if (first.end_s - last_speech_s <= median_s * 4) return;
  if (first.end_s - first.start_s <= most_s && !(second && second->end_s - first.start_s > most_s * 2)) return;
  if (second && second->end_s - second->start_s > most_s)
    first.end_s = second->start_s = std::max(second->end_s / 2, second->end_s - most_s);
  first.start_s = std::max(0.0, first.end_s - most_s);
}

// The segment's own times hold where a word at its end is far too long; else the words' do.
void agree_on_ends(Segment& segment, std::vector<Word>& words, double median_s) {
  Word &first = words.front(), &last = words.back();
  if (segment.start_s < first.end_s && segment.start_s - 0.5 > first.start_s) {
    first.start_s = std::max(0.0, std::min(first.end_s - median_s, segment.start_s));
  } else {
    segment.start_s = first.start_s;
  }
  if (segment.end_s > last.start_s && segment.end_s + 0.5 < last.end_s) {
    last.end_s = std::max(last.start_s + median_s, segment.end_s);
  } else {
    segment.end_s = last.end_s;
  }
}

// ---- inventions

double strangeness(const Word& word) {
  const double duration_s = word.end_s - word.start_s;
  double out = word.probability < 0.15 ? 1 : 0;
  if (duration_s < 0.133) out += (0.133 - duration_s) * 15;
  if (duration_s > 2) out += duration_s - 2;
  return out;
}

bool is_strange(const TimedSegment* segment) {
  constexpr std::string_view kPunctuation = "\"'\u201c\u00bf([{-\"'.\u3002,\uff0c!\uff01?\uff1f:\uff1a\u201d)]}\u3001";
  constexpr int kMostWords = 8;
  if (!segment || segment->words.empty()) return false;
  double score = 0;
  int count = 0;
  for (const Word& word : segment->words) {
    if (is_in(word.text, kPunctuation)) continue;
    score += strangeness(word);
    if (++count == kMostWords) break;
  }
  return score >= 3 || score + 0.01 >= count;
}

const TimedSegment* next_with_words(const std::vector<TimedSegment>& segments, std::size_t from) {
  for (; from < segments.size(); ++from)
    if (!segments[from].words.empty()) return &segments[from];
  return nullptr;
}

}  // namespace

int to_frames(double seconds) { return static_cast<int>(std::nearbyint(seconds * kFramesPerSecond)); }

std::vector<Word> split_words(const Tokenizer& tokenizer, const WhisperTokens& tokens, std::string_view language,
                              std::span<const std::int32_t> text) {
  constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
  std::vector<std::string> spellings;
  const auto pieces = character_tokens(tokenizer, text, spellings);
  const bool by_characters = has_no_spaces(language);
  std::vector<Word> out;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string& spelling = spellings[i];
    const int count = static_cast<int>(pieces[i].size());
    if (by_characters || out.empty() || pieces[i].front() >= tokens.eot || spelling.starts_with(' ') ||
        is_in(strip_spaces(spelling), kPunctuation)) {
      out.push_back({.text = spelling, .num_tokens = count});
    } else {
      out.back().text += spelling;
      out.back().num_tokens += count;
    }
  }
  return out;
}

WindowWords words_of(const Tokenizer& tokenizer, const WhisperTokens& tokens, std::string_view language,
                     const WhisperOptions& options, std::span<const std::int32_t> text,
                     std::span<const std::int32_t> first_frames, std::span<const float> probabilities) {
  std::vector<std::int32_t> ended(text.begin(), text.end());
  ended.push_back(tokens.eot);
  std::vector<Word> words = split_words(tokenizer, tokens, language, ended);
  if (!words.empty()) words.pop_back();  // the end, and what of a character stands before it
  std::size_t at = 0;
  for (Word& word : words) {
    const std::size_t end = at + static_cast<std::size_t>(word.num_tokens);
    word.start_s = first_frames[at] / kPositionsPerSecond;
    word.end_s = first_frames[end] / kPositionsPerSecond;
    double sum = 0;
    for (std::size_t i = at; i < end; ++i) sum += probabilities[i];
    word.probability = sum / word.num_tokens;
    at = end;
  }
  return finish_words(std::move(words), options);
}

WindowWords finish_words(std::vector<Word> words, const WhisperOptions& options) {
  WindowWords out{.words = std::move(words)};
  out.median_s = median_duration(out.words);
  if (out.median_s > 0) shorten_at_sentence_ends(out.words, 2 * out.median_s);
  merge_punctuation(out.words, options);
  return out;
}

std::vector<TimedSegment> place_words(const WhisperTokens& tokens, WindowWords window, std::vector<Segment> segments,
                                      double offset_s, double last_speech_s) {
  std::vector<TimedSegment> out;
  std::size_t next = 0;
  for (Segment& segment : segments) {
    const auto num_tokens = std::count_if(segment.tokens.begin(), segment.tokens.end(),
                                          [&](std::int32_t token) { return token < tokens.eot; });
    std::vector<Word> words;
    for (std::ptrdiff_t taken = 0; taken < num_tokens && next < window.words.size(); ++next) {
      Word& word = window.words[next];
      taken += word.num_tokens;
      if (word.text.empty()) continue;
      word.start_s = rounded(offset_s + word.start_s);
      word.end_s = rounded(offset_s + word.end_s);
      words.push_back(std::move(word));
    }
    if (!words.empty()) {
      shorten_after_pause(words, window.median_s, last_speech_s);
      agree_on_ends(segment, words, window.median_s);
      last_speech_s = segment.end_s;
    }
    out.push_back({std::move(segment), std::move(words)});
  }
  return out;
}

std::optional<double> speech_end(const std::vector<TimedSegment>& segments) {
  for (auto each = segments.rbegin(); each != segments.rend(); ++each)
    if (!each->words.empty()) return each->words.back().end_s;
  if (segments.empty()) return std::nullopt;
  return segments.back().segment.end_s;
}

Verdict find_inventions(const std::vector<TimedSegment>& segments, WindowPlace window, double threshold_s,
                        double last_speech_s) {
  const double offset_s = window.seek_frames * kFrameSeconds;
  Verdict out{.num_kept = segments.size()};
  if (const TimedSegment* const first = next_with_words(segments, 0); is_strange(first)) {
    const double gap_s = first->segment.start_s - offset_s;
    if (gap_s > threshold_s) {
      out.skips_window = true;
      out.next_seek_frames = window.seek_frames + to_frames(gap_s);
      return out;
    }
  }
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const TimedSegment& each = segments[i];
    if (each.words.empty()) continue;
    const double start_s = each.segment.start_s, end_s = each.segment.end_s;
    if (is_strange(&each)) {
      const TimedSegment* const next = next_with_words(segments, i + 1);
      const double next_start_s = next ? next->words.front().start_s : offset_s + window.segment_frames * kFrameSeconds;
      const bool silent_before =
          start_s - last_speech_s > threshold_s || start_s < threshold_s || start_s - offset_s < 2;
      const bool silent_after = next_start_s - end_s > threshold_s || is_strange(next) ||
                                offset_s + kWindowFrames * kFrameSeconds - end_s < 2;
      if (silent_before && silent_after) {
        out.next_seek_frames = to_frames(std::max(offset_s + 1, start_s));
        if (window.content_frames * kFrameSeconds - end_s < threshold_s) out.next_seek_frames = window.content_frames;
        out.num_kept = i;
        return out;
      }
    }
    last_speech_s = end_s;
  }
  return out;
}

}  // namespace mstar::models
