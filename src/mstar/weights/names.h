// Names that come from checkpoints: shown in messages, matched by rules, compared for suggestions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mstar::weights {

inline constexpr std::size_t kMaxNameBytes = 1024;

// A name from a file in quotes, fit for a log line: bytes outside of printable ASCII as \xHH, cut at 120 characters.
std::string show_name(std::string_view name);

// What each '*' of `pattern` stands for when it matches the whole of `name`; nothing when it does not match. Earlier
// stars are as short as they can be. Cost: O(name x pattern).
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view name);
// `pattern` with its stars replaced in order; stars past the captures stay empty.
std::string fill(std::string_view pattern, std::span<const std::string> captures);
int num_stars(std::string_view pattern);

// Single-character edits between a and b, or `limit` + 1 when there are more.
int edit_distance(std::string_view a, std::string_view b, int limit);

// Remembers the closest of the names that it is shown.
class NearestName {
 public:
  explicit NearestName(std::string_view wanted);
  void consider(std::string_view candidate);
  // Empty when nothing was near.
  const std::string& best() const { return best_; }

 private:
  std::string wanted_;
  int limit_;
  std::string best_;
};

}  // namespace mstar::weights
