#include "mstar/text/special_guard.h"

#include <algorithm>

#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

constexpr std::size_t kMaxMissing = 2;  // characters that a template may put on one side of a name

using Cuts = std::vector<std::size_t>;  // where guards go

// Where the characters of a text begin, and its end.
Cuts character_starts(std::string_view text) {
  Cuts out;
  for (std::size_t at = 0; at < text.size(); at += utf8_step(text.substr(at)).length_bytes) out.push_back(at);
  out.push_back(text.size());
  return out;
}

std::string with_guards(std::string_view text, const Cuts& cuts) {
  std::string out;
  out.reserve(text.size() + cuts.size() * kGuard.size());
  std::size_t done = 0;
  for (const std::size_t cut : cuts) {
    out.append(text.substr(done, cut - done)).append(kGuard);
    done = cut;
  }
  return out.append(text.substr(done));
}

// Behind the first character of each special token that is spelt out.
void cut_spelt(const AddedTokenFinder& tokens, std::string_view text, Cuts& cuts) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = at + utf8_step(text.substr(at)).length_bytes;
    if (tokens.special_at(text, at)) cuts.push_back(next);
    at = next;
  }
}

bool spells_special(const AddedTokenFinder& tokens, std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at)
    if (tokens.special_at(text, at)) return true;
  return false;
}

// The same for what a text spells once it is normalised, each character by itself, behind a space or not.
void cut_normalized(const AddedTokenFinder& tokens, const Normalizer& normalizer, std::string_view text, Cuts& cuts) {
  const Cuts starts = character_starts(text);
  std::string normal = normalizer.apply(" ", false, false);
  std::vector<std::size_t> ends(normal.size(), 0);  // by byte of `normal`: where the character ends that it comes from
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    normal += normalizer.apply(text.substr(starts[i], starts[i + 1] - starts[i]), false, false);
    ends.resize(normal.size(), starts[i + 1]);
  }
  for (std::size_t at = 0; at < normal.size(); ++at)
    if (tokens.special_at(normal, at)) cuts.push_back(ends[at]);
}

void sort_unique(Cuts& cuts) {
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
}

}  // namespace

std::string without_guards(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = text.find(kGuard); at != std::string_view::npos; at = text.find(kGuard)) {
    out.append(text.substr(0, at));
    text.remove_prefix(at + kGuard.size());
  }
  return out.append(text);
}

std::string normalize_guarded(const Normalizer& normalizer, std::string_view text, bool prefix_allowed) {
  std::string out;
  for (bool at_start = true;;) {
    const std::size_t at = text.find(kGuard);
    const std::string_view part = text.substr(0, at);
    if (!part.empty()) {
      out += normalizer.apply(part, prefix_allowed && at_start, at_start);
      at_start = false;
    }
    if (at == std::string_view::npos) return out;
    out += kGuard;
    text.remove_prefix(at + kGuard.size());
  }
}

void SpecialGuard::add(std::string_view token) {
  const Cuts starts = character_starts(token);
  const std::size_t num_characters = starts.size() - 1;
  if (num_characters < 2) return;  // a part of the alphabet
  longest_bytes_ = std::max(longest_bytes_, token.size());
  for (std::size_t i = 1; i < num_characters; ++i) beginnings_.emplace(token.substr(0, starts[i]));
  for (std::size_t before = 1; before <= kMaxMissing && before < num_characters; ++before) {
    ends_.emplace(token.substr(starts[before]));
    for (std::size_t behind = 1; behind <= kMaxMissing && before + behind < num_characters; ++behind)
      middles_.emplace(token.substr(starts[before], starts[num_characters - behind] - starts[before]));
  }
}

bool SpecialGuard::begins_inside(std::string_view text) const {
  if (middles_.find(text) != middles_.end()) return true;
  for (std::size_t n = 1; n <= std::min(text.size(), longest_bytes_); ++n)
    if (ends_.find(text.substr(0, n)) != ends_.end()) return true;
  return false;
}

bool SpecialGuard::ends_inside(std::string_view text) const {
  for (std::size_t n = 1; n <= std::min(text.size(), longest_bytes_); ++n)
    if (beginnings_.find(text.substr(text.size() - n)) != beginnings_.end()) return true;
  return false;
}

std::string SpecialGuard::guard(std::string_view text, const AddedTokenFinder& raw, const AddedTokenFinder& normalized,
                                const Normalizer& normalizer) const {
  Cuts cuts;
  if (begins_inside(text)) cuts.push_back(0);
  if (ends_inside(text)) cuts.push_back(text.size());
  cut_spelt(raw, text, cuts);
  if (normalizer.empty()) {
    cut_spelt(normalized, text, cuts);
  } else if (normalized.has_special()) {
    const std::string spaced = " " + std::string(text);
    const bool spells = spells_special(normalized, normalizer.apply(text)) ||
                        spells_special(normalized, normalizer.apply(spaced, false, false));
    if (spells) cut_normalized(normalized, normalizer, text, cuts);
    sort_unique(cuts);
    // What characters become together and not alone.
    if (spells && spells_special(normalized, normalize_guarded(normalizer, with_guards(text, cuts), true)))
      cuts = character_starts(text);
  }
  sort_unique(cuts);
  return with_guards(text, cuts);
}

}  // namespace mstar::text
