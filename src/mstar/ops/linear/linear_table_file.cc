#include "mstar/ops/linear/linear_table_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace mstar {
namespace {

// What lies between blanks, braces, commas and the like.
std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBetween = " \t\r{},:;=";
  std::vector<std::string_view> out;
  for (std::size_t at = line.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBetween, at), line.size());
    out.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBetween, end);
  }
  return out;
}

template <class Number>
bool read_number(std::string_view word, Number& to) {
  const bool hex = word.starts_with("0x");
  if (hex) word.remove_prefix(2);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), to, hex ? 16 : 10);
  return error == std::errc() && end == word.data() + word.size();
}

bool read_dtype(std::string_view word, DType& to) {
  const std::optional<DType> dtype = dtype_from_name(word);
  if (!dtype || (*dtype != DType::f32 && *dtype != DType::f16 && *dtype != DType::bf16)) return false;
  to = *dtype;
  return true;
}

// Our own kernel's cuts: blocks of a cluster, a power of two, and one or two fragments (linear_stream.h).
bool is_cut(const LinearChoice& choice) {
  constexpr int kMostSplit = 8;
  return choice.split <= kMostSplit && (choice.split & (choice.split - 1)) == 0 &&
         (choice.fragments == 1 || choice.fragments == 2);
}

// n, k, DType::in, DType::out, m, split, fragments, and the library's algorithm where split is 0.
std::optional<LinearChoice> choice_of(const std::vector<std::string_view>& words) {
  LinearChoice out;
  constexpr std::size_t kOwnWords = 9;
  if (words.size() < kOwnWords || words[2] != "DType" || words[4] != "DType") return std::nullopt;
  const bool whole = read_number(words[0], out.n) && read_number(words[1], out.k) && read_dtype(words[3], out.in) &&
                     read_dtype(words[5], out.out) && read_number(words[6], out.m) &&
                     read_number(words[7], out.split) && read_number(words[8], out.fragments);
  if (!whole || out.n < 1 || out.k < 1 || out.m < 1 || out.split < 0) return std::nullopt;
  if (out.streams()) return is_cut(out) ? std::optional(out) : std::nullopt;
  if (words.size() != kOwnWords + out.algorithm.size()) return std::nullopt;
  for (std::size_t i = 0; i < out.algorithm.size(); ++i)
    if (!read_number(words[kOwnWords + i], out.algorithm[i])) return std::nullopt;
  return out;
}

}  // namespace

LinearTableFile read_linear_table(std::istream& from) {
  LinearTableFile out;
  for (std::string line; std::getline(from, line);) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.size() == 2 && words[0] == "kLinearTableVersion") {
      (void)read_number(words[1], out.version);
    } else if (const std::size_t first = line.find_first_not_of(" \t");
               first != std::string::npos && line[first] == '{' && !words.empty() && words[0] != "//") {
      if (const auto choice = choice_of(words)) {
        out.choices.push_back(*choice);
      } else {
        ++out.num_refused;
      }
    }
  }
  return out;
}

}  // namespace mstar
