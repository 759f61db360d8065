#include "mstar/models/whisper/whisper_text.h"

#include <zlib.h>

#include <algorithm>

namespace mstar::models {
namespace {

// No token of Whisper's vocabulary spells more than 128 bytes.
constexpr std::size_t kMaxPromptBytes = 32 << 10;

Result<std::int32_t> special(const Tokenizer& tokenizer, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    if (const auto id = tokenizer.token_to_id(name)) return *id;
  return bad_model("tokenizer.json has no token " + std::string(*names.begin()) + "; it is not a Whisper tokenizer");
}

}  // namespace

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

Result<WhisperTokens> WhisperTokens::from(const Tokenizer& tokenizer, std::int32_t vocab) {
  WhisperTokens out;
  out.vocab = vocab;
  MSTAR_TRY_ASSIGN(out.eot, special(tokenizer, {"<|endoftext|>"}));
  MSTAR_TRY_ASSIGN(out.sot, special(tokenizer, {"<|startoftranscript|>"}));
  MSTAR_TRY_ASSIGN(out.translate, special(tokenizer, {"<|translate|>"}));
  MSTAR_TRY_ASSIGN(out.transcribe, special(tokenizer, {"<|transcribe|>"}));
  MSTAR_TRY_ASSIGN(out.sot_prev, special(tokenizer, {"<|startofprev|>"}));
  MSTAR_TRY_ASSIGN(out.no_speech, special(tokenizer, {"<|nospeech|>", "<|nocaptions|>"}));
  MSTAR_TRY_ASSIGN(out.no_timestamps, special(tokenizer, {"<|notimestamps|>"}));
  out.timestamp_begin = out.no_timestamps + 1;
  // English-only models keep the language tokens in their tokenizer but were never trained on them; their end of text
  // is the last of GPT-2's ids, one below the multilingual models'.
  out.multilingual = tokenizer.token_to_id("").has_value() || out.eot >= 50257;
  if (vocab < 51000) out.multilingual = out.translate - out.sot > 1;  // small test vocabularies
  if (out.multilingual)
    for (std::int32_t id = out.sot + 1; id < std::min(out.translate, out.transcribe); ++id) out.languages.push_back(id);
  if (out.multilingual && out.languages.empty()) return bad_model("tokenizer.json names no language");
  // Language ids lie between sot and these.
  for (const std::int32_t id : {out.eot, out.sot, out.translate, out.transcribe, out.sot_prev, out.no_speech,
                                out.no_timestamps, out.timestamp_begin})
    if (id < 0 || id >= vocab)
      return bad_model("the model has " + std::to_string(vocab) + " logits but the tokenizer uses id " +
                       std::to_string(id));
  return out;
}

std::int32_t WhisperTokens::language_id(const Tokenizer& tokenizer, const std::string& code) const {
  const auto id = tokenizer.token_to_id("<|" + code + "|>");
  if (!id || std::find(languages.begin(), languages.end(), *id) == languages.end()) return -1;
  return *id;
}

std::string WhisperTokens::language_code(const Tokenizer& tokenizer, std::int32_t id) {
  std::string token(tokenizer.id_to_token(id));
  if (token.size() > 4 && token.starts_with("<|") && token.ends_with("|>")) return token.substr(2, token.size() - 4);
  return token;
}

void DecodingState::push(std::int32_t token, const WhisperTokens& tokens) {
  before_last = last;
  last = token;
  ++num_tokens;
  if (token >= tokens.timestamp_begin) latest_timestamp = token;
}

void apply_decoding_rules(const DecodingState& state, const WhisperTokens& tokens, std::vector<TokenRange>& ranges,
                          SampleRow& row) {
  const std::int32_t begin = tokens.timestamp_begin;
  ranges.clear();
  ranges.push_back({tokens.no_timestamps, tokens.no_timestamps + 1});
  row.suppress = tokens.suppress;
  if (state.num_tokens == 0) {
    row.more_suppress = tokens.suppress_first;
    ranges.push_back({0, begin});
    ranges.push_back({begin + kMaxInitialTimestamp + 1, tokens.vocab});
  } else if (state.last >= begin) {
    const std::int32_t before = state.num_tokens >= 2 ? state.before_last : state.last;
    if (before >= begin) {
      ranges.push_back({begin, tokens.vocab});  // a pair is complete: text or the end must follow
    } else {
      ranges.push_back({0, tokens.eot});
      ranges.push_back({begin, state.last});
      row.tail_begin = begin;
    }
  } else {
    if (state.latest_timestamp >= 0) ranges.push_back({begin, state.latest_timestamp + 1});
    row.tail_begin = begin;
  }
  row.suppress_ranges = ranges;
}

std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text) {
  text = without_blanks(text);
  if (text.empty()) return {};
  if (text.size() > kMaxPromptBytes) {
    text.remove_prefix(text.size() - kMaxPromptBytes);
    // Not in the middle of a character.
    for (int i = 0; i < 3 && (static_cast<unsigned char>(text.front()) & 0xC0) == 0x80; ++i) text.remove_prefix(1);
  }
  std::vector<std::int32_t> ids = tokenizer.encode(" " + std::string(text), {.parse_added = false});
  if (ids.size() > kMaxHistoryTokens) ids.erase(ids.begin(), ids.end() - kMaxHistoryTokens);
  return ids;
}

std::vector<std::int32_t> hotword_tokens(const Tokenizer& tokenizer, std::string_view text) {
  text = without_blanks(text);
  if (text.empty()) return {};
  if (text.size() > kMaxPromptBytes) {
    text = text.substr(0, kMaxPromptBytes);
    while ((static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.remove_suffix(1);
    if (static_cast<unsigned char>(text.back()) >= 0xC0) text.remove_suffix(1);  // what began there is cut off
  }
  std::vector<std::int32_t> ids = tokenizer.encode(" " + std::string(text), {.parse_added = false});
  if (ids.size() > kMaxHistoryTokens) ids.resize(kMaxHistoryTokens);
  return ids;
}

std::vector<std::int32_t> window_prompt(const WhisperTokens& tokens, std::span<const std::int32_t> history,
                                        std::int32_t language, bool translate) {
  std::vector<std::int32_t> prompt;
  if (!history.empty()) {
    const auto tail = history.subspan(history.size() - std::min<std::size_t>(history.size(), kMaxHistoryTokens));
    prompt.push_back(tokens.sot_prev);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
  }
  prompt.push_back(tokens.sot);
  if (tokens.multilingual) {
    prompt.push_back(language);
    prompt.push_back(translate ? tokens.translate : tokens.transcribe);
  }
  return prompt;
}

WindowSplit split_window(const WhisperTokens& tokens, std::span<const std::int32_t> window, int seek_frames,
                         int segment_frames) {
  const std::int32_t begin = tokens.timestamp_begin;
  const double offset_s = seek_frames * kFrameSeconds;
  const auto is_time = [&](std::size_t i) { return window[i] >= begin; };
  const auto time_s = [&](std::int32_t token) { return offset_s + (token - begin) * kTimestampSeconds; };
  const std::size_t n = window.size();
  const bool single_end = n >= 2 && !is_time(n - 2) && is_time(n - 1);
  std::vector<std::size_t> cuts;
  for (std::size_t i = 1; i < n; ++i)
    if (is_time(i) && is_time(i - 1)) cuts.push_back(i);

  WindowSplit out;
  out.advance_frames = segment_frames;
  out.single_ending = single_end;
  if (cuts.empty()) {
    double duration_s = segment_frames * kFrameSeconds;
    for (std::size_t i = n; i-- > 0;) {
      if (!is_time(i)) continue;
      if (window[i] != begin) duration_s = (window[i] - begin) * kTimestampSeconds;
      break;
    }
    out.segments.push_back({offset_s, offset_s + duration_s, {window.begin(), window.end()}});
    return out;
  }
  if (single_end) cuts.push_back(n);
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    const auto part = window.subspan(from, cut - from);
    out.segments.push_back({time_s(part.front()), time_s(part.back()), {part.begin(), part.end()}});
    from = cut;
  }
  if (!single_end) out.advance_frames = (window[from - 1] - begin) * 2;
  return out;
}

double compression_ratio(std::string_view text) {
  if (text.empty()) return 0;
  uLongf size = compressBound(static_cast<uLong>(text.size()));
  std::vector<Bytef> out(size);
  if (compress2(out.data(), &size, reinterpret_cast<const Bytef*>(text.data()), static_cast<uLong>(text.size()), 6) !=
      Z_OK)
    return 0;
  return static_cast<double>(text.size()) / static_cast<double>(size);
}

}  // namespace mstar::models
