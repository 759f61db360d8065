#include "mstar/text/pre_tokenizer.h"

#include <algorithm>

namespace mstar::text {
namespace {

// What ByteLevel splits by when use_regex is set: GPT-2's pattern.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Appends a match to the range before it, unless that one ended with a match. The list is in the order of reading.
void merge_matches(std::vector<SplitRange>& ranges, bool forward) {
  std::vector<SplitRange> out;
  bool previous_match = false;
  for (const SplitRange& range : ranges) {
    if (range.is_match && !previous_match && !out.empty()) {
      (forward ? out.back().end : out.back().begin) = forward ? range.end : range.begin;
    } else {
      out.push_back(range);
    }
    previous_match = range.is_match;
  }
  ranges = std::move(out);
}

void join_equal(std::vector<SplitRange>& ranges) {
  std::vector<SplitRange> out;
  for (const SplitRange& range : ranges) {
    if (!out.empty() && out.back().is_match == range.is_match) {
      out.back().end = range.end;
    } else {
      out.push_back(range);
    }
  }
  ranges = std::move(out);
}

}  // namespace

void apply_split_behavior(SplitBehavior behavior, std::vector<SplitRange>& ranges) {
  switch (behavior) {
    case SplitBehavior::isolated:
      return;
    case SplitBehavior::removed:
      std::erase_if(ranges, [](const SplitRange& range) { return range.is_match; });
      return;
    case SplitBehavior::merged_with_previous:
      return merge_matches(ranges, true);
    case SplitBehavior::merged_with_next:
      std::reverse(ranges.begin(), ranges.end());
      merge_matches(ranges, false);
      std::reverse(ranges.begin(), ranges.end());
      return;
    case SplitBehavior::contiguous:
      return join_equal(ranges);
  }
}

Result<PreTokenizer> PreTokenizer::compile(const std::vector<PreTokenStepSpec>& steps) {
  PreTokenizer out;
  for (const PreTokenStepSpec& spec : steps) {
    Step step;
    if (spec.kind == PreTokenStepSpec::Kind::byte_level) {
      step.add_prefix_space = spec.add_prefix_space;
      if (spec.use_regex) {
        MSTAR_TRY_ASSIGN(step.pattern, SplitRegex::compile(kByteLevelPattern));
      }
    } else if (spec.kind == PreTokenStepSpec::Kind::metaspace) {
      step.metaspace = spec.replacement;
      step.prepend = spec.prepend;
      step.behavior = SplitBehavior::merged_with_next;
      if (spec.split) {
        MSTAR_TRY_ASSIGN(step.pattern, SplitRegex::literal(spec.replacement));
      }
    } else {
      step.behavior = spec.behavior;
      step.invert = spec.invert;
      MSTAR_TRY_ASSIGN(step.pattern, spec.pattern.is_regex ? SplitRegex::compile(spec.pattern.text)
                                                           : SplitRegex::literal(spec.pattern.text));
    }
    out.steps_.push_back(std::move(step));
  }
  return out;
}

std::string_view PreTokenizer::with_metaspaces(const Step& step, std::string_view piece, bool is_first,
                                               Pieces& pieces) {
  std::string out;
  for (const char c : piece) {
    if (c == ' ') {
      out.append(step.metaspace);
    } else {
      out.push_back(c);
    }
  }
  const bool wanted = step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && is_first);
  if (wanted && !out.starts_with(step.metaspace)) out.insert(0, step.metaspace);
  return pieces.owned.emplace_back(std::move(out));
}

void PreTokenizer::apply_step(const Step& step, bool at_start, Pieces& pieces) {
  pieces.next.clear();
  bool is_first = at_start;
  for (std::string_view piece : pieces.views) {
    if (!step.metaspace.empty()) piece = with_metaspaces(step, piece, is_first, pieces);
    is_first = false;
    if (step.add_prefix_space && !piece.starts_with(' ')) {
      piece = pieces.owned.emplace_back(std::string(" ").append(piece));
    }
    if (!step.pattern) {
      pieces.next.push_back(piece);
      continue;
    }
    step.pattern->split(piece, pieces.ranges);
    if (step.invert) {
      for (SplitRange& range : pieces.ranges) range.is_match = !range.is_match;
    }
    apply_split_behavior(step.behavior, pieces.ranges);
    for (const SplitRange& range : pieces.ranges) {
      if (range.end > range.begin) pieces.next.push_back(piece.substr(range.begin, range.end - range.begin));
    }
  }
  pieces.views.swap(pieces.next);
}

void PreTokenizer::split(std::string_view text, bool at_start, Pieces& pieces) const {
  pieces.owned.clear();
  pieces.views.clear();
  if (text.empty()) return;
  pieces.views.push_back(text);
  for (const Step& step : steps_) apply_step(step, at_start, pieces);
}

}  // namespace mstar::text
