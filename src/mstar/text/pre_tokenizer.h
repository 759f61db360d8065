// Cuts a text into the pieces that BPE merges within.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/split_regex.h"
#include "mstar/text/tokenizer_json.h"

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

  // Replaces pieces.views by the non-empty pieces of `text` (valid UTF-8), in order.
  void split(std::string_view text, Pieces& pieces) const;

 private:
  struct Step {
    std::optional<SplitRegex> pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
    bool add_prefix_space = false;
  };
  static void apply_step(const Step& step, Pieces& pieces);

  std::vector<Step> steps_;
};

// Joins and drops ranges in place as the behaviour says; matches of what is left are all to be kept.
void apply_split_behavior(SplitBehavior behavior, std::vector<SplitRange>& ranges);

}  // namespace mstar::text
