// The regular expressions of tokenizer.json, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::text {

// A part of a text; the ranges of one search cover the text in order.
struct SplitRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_match = false;
};

// tokenizer.json is written for Oniguruma. A pattern is translated where PCRE2 means something else (\s, \w, script
// names, ^ and $), and refused as bad_model where it can't be (set operations, \h, \b, recursion, callouts, named
// groups, ...). Character properties are those of the linked PCRE2 (Unicode 14 in Debian 12): a character that a later
// Unicode added counts as unassigned. Thread: const methods from any thread. Move-only.
class SplitRegex {
 public:
  static Result<SplitRegex> compile(std::string_view pattern);
  // Matches `text` itself.
  static Result<SplitRegex> literal(std::string_view text);

  // Replaces `out` by the parts of `text` (valid UTF-8). A search that exceeds PCRE2's step or memory limit ends there:
  // what is left becomes one part that is no match. Linear for the patterns of published tokenizers.
  void split(std::string_view text, std::vector<SplitRange>& out) const;

  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;
  ~SplitRegex();

 private:
  struct Code;
  explicit SplitRegex(std::unique_ptr<const Code> code);
  static Result<SplitRegex> build(const std::string& translated, std::string_view original);

  std::unique_ptr<const Code> code_;
};

// The translation alone, for tests: PCRE2 syntax with UTF and UCP on.
Result<std::string> translate_pattern(std::string_view oniguruma_pattern);

}  // namespace mstar::text
