// Keeps what users write from being read as special tokens.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/text/added_tokens.h"
#include "mstar/text/normalizer.h"

namespace mstar::text {

// U+FDD0, which is no character: no special token is read across it, and it is left out of what is encoded.
inline constexpr std::string_view kGuard = "\xEF\xB7\x90";

// `text` cut at its guards, each part normalised, and put together again. A normaliser may drop or move a guard.
std::string normalize_guarded(const Normalizer& normalizer, std::string_view text, bool prefix_allowed);
std::string without_guards(std::string_view text);

// Thread: const methods from any thread.
class SpecialGuard {
 public:
  // The spelling of a special token.
  void add(std::string_view token);

  // `text` (valid UTF-8 without guards) with a guard
  // - within each special token that it spells, as it is (`raw` finds those) or once it is normalised (`normalized`),
  // - at its end where it ends as a special token begins, so that nothing that follows completes it,
  // - before it where a special token lacks one or two characters before what the text begins with, and, if the text
  //   ends within it, one or two behind: what a template may put round a name, as in "<" + name + ">".
  // What spells no part of a special token comes back as it was. A single character that normalises to all of a special
  // token can't be guarded. O(bytes · longest token).
  std::string guard(std::string_view text, const AddedTokenFinder& raw, const AddedTokenFinder& normalized,
                    const Normalizer& normalizer) const;

 private:
  using Strings = std::set<std::string, std::less<>>;
  bool begins_inside(std::string_view text) const;
  bool ends_inside(std::string_view text) const;

  Strings beginnings_;  // of tokens, not whole
  Strings ends_;        // of tokens, without their first one or two characters
  Strings middles_;     // without one or two characters on each side
  std::size_t longest_bytes_ = 0;
};

}  // namespace mstar::text
