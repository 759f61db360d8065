// Cuts a text into the pieces that BPE merges within.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/split_regex.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// Room for one encode call; `views` point into the text or into `owned`.
struct Pieces {
  std::vector<std::string_view> views;
  std::vector<std::string_view> next;
  std::vector<SplitRange> ranges;
  std::deque<std::string> owned;
};

// Thread: const methods from any thread. Move-only.
class PreTokenizer {
 public:
  // bad_model when a pattern can't be compiled. A ByteLevel step may only come last: bytes are spelt out by the BPE
  // model.
  static Result<PreTokenizer> compile(const std::vector<PreTokenStepSpec>& steps);

  // Replaces pieces.views by the non-empty pieces of `text` (valid UTF-8), in order. `at_start`: `text` begins where
  // the whole text does, which Metaspace may ask.
  void split(std::string_view text, bool at_start, Pieces& pieces) const;

 private:
  struct Step {
    std::optional<SplitRegex> pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
    bool add_prefix_space = false;
    std::string metaspace;  // what stands for a space; empty: another step
    PrependScheme prepend = PrependScheme::always;
  };
  static void apply_step(const Step& step, bool at_start, Pieces& pieces);
  static std::string_view with_metaspaces(const Step& step, std::string_view piece, bool is_first, Pieces& pieces);

  std::vector<Step> steps_;
};

// Joins and drops ranges in place as the behaviour says; matches of what is left are all to be kept.
void apply_split_behavior(SplitBehavior behavior, std::vector<SplitRange>& ranges);

}  // namespace mstar::text
