// Oniguruma's regular expressions, as tokenizer.json has them, in PCRE2's words.
#include <cctype>
#include <optional>
#include <string>
#include <string_view>

#include "mstar/text/split_regex.h"

namespace mstar::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 14;
// What Oniguruma takes for a word character, without brackets.
constexpr std::string_view kWordSet = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    if (in_.size() > kMaxPatternBytes) return bad_model("a split pattern is longer than 16384 bytes");
    while (at_ < in_.size()) MSTAR_TRY(in_class_ ? class_item() : item());
    if (in_class_) return refuse("a class that does not end");
    return std::move(out_);
  }

 private:
  Error refuse(std::string_view what) const {
    std::string message = "split pattern: ";
    message.append(what).append(" is not supported, in ").append(in_);
    return bad_model(std::move(message));
  }
  bool next_is(std::string_view text) const { return in_.substr(at_).substr(0, text.size()) == text; }
  void copy(std::size_t count) {
    out_.append(in_.substr(at_, count));
    at_ += count;
  }
  void write(std::string_view text, std::size_t consumed) {
    out_.append(text);
    at_ += consumed;
  }

  Status item() {
    switch (in_[at_]) {
      case '\\':
        return escape();
      case '[':
        in_class_ = true;
        copy(1);
        if (next_is("^")) copy(1);
        // A bracket that closes at once is a literal in both languages, written escaped to be sure.
        if (next_is("]")) write("\\]", 1);
        return {};
      case '(':
        return group();
      case '{':
        return interval();
      case '^':
        write("(?m:^)", 1);
        return {};
      case '$':
        write("(?m:$)", 1);
        return {};
      default:
        copy(1);
        return {};
    }
  }

  Status class_item() {
    if (in_[at_] == '\\') return escape();
    if (in_[at_] == '[') return refuse("a class within a class");
    if (next_is("&&")) return refuse("&& in a class");
    if (in_[at_] == ']') in_class_ = false;
    copy(1);
    return {};
  }

  Status group() {
    if (next_is("(*")) return refuse("(*");
    if (!next_is("(?")) {
      copy(1);
      return {};
    }
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i:"}) {
      if (next_is(opening)) {
        copy(opening.size());
        return {};
      }
    }
    return refuse(in_.substr(at_, 3));
  }

  // {n}, {n,} and {n,m}; Oniguruma reads {,n}, {n}? and {n,m}+ in ways of its own.
  Status interval() {
    std::size_t end = at_ + 1;
    bool comma = false, digits = false;
    while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',')) {
      if (in_[end] == ',') {
        if (comma || !digits) return refuse("an interval without its lower bound");
        comma = true;
      } else {
        digits = true;
      }
      ++end;
    }
    if (end >= in_.size() || in_[end] != '}' || !digits) return refuse("an unescaped {");
    const char after = end + 1 < in_.size() ? in_[end + 1] : '\0';
    if (after == '+' || (after == '?' && !comma)) return refuse("a quantifier after an interval");
    copy(end + 1 - at_);
    return {};
  }

  Status escape() {
    if (at_ + 1 >= in_.size()) return refuse("a backslash at the end");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
        write("\\p{White_Space}", 2);
        return {};
      case 'S':
        write("\\P{White_Space}", 2);
        return {};
      case 'w':
        word_set(false);
        return {};
      case 'W':
        if (in_class_) return refuse("\\W in a class");
        word_set(true);
        return {};
      case 'v':
        write("\\x0b", 2);
        return {};
      case 'p':
      case 'P':
        return property();
      case 'x':
        return hexadecimal();
      case 'u':
        return four_digits();
      default:
        break;
    }
    const bool same = std::string_view("rntfadDe").find(c) != std::string_view::npos ||
                      (!in_class_ && std::string_view("AzZ").find(c) != std::string_view::npos);
    const bool literal =
        static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)) && c > ' ';
    if (!same && !literal && c != ' ') return refuse(in_.substr(at_, 2));
    copy(2);
    return {};
  }

  void word_set(bool negated) {
    if (!in_class_) out_.append(negated ? "[^" : "[");
    out_.append(kWordSet);
    if (!in_class_) out_.append("]");
    at_ += 2;
  }

  // \p{L}, \p{Lu}, \p{^L} and script names.
  Status property() {
    const std::size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos)
      return refuse("\\p without braces");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    bool negated = in_[at_ + 1] == 'P';
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    for (const char c : name) {
      if (!std::isalpha(static_cast<unsigned char>(c)) && c != '_') return refuse("a property name");
    }
    if (name.empty()) return refuse("a property name");
    out_.append(negated ? "\\P{" : "\\p{");
    // A bare script name means Script to Oniguruma and Script_Extensions to PCRE2.
    if (name.size() > 2) out_.append("sc:");
    out_.append(name).append("}");
    at_ = close + 1;
    return {};
  }

  std::size_t count_hex(std::size_t from, std::size_t most) const {
    std::size_t n = 0;
    while (n < most && from + n < in_.size() && std::isxdigit(static_cast<unsigned char>(in_[from + n]))) ++n;
    return n;
  }
  Status hexadecimal() {
    const bool braces = at_ + 2 < in_.size() && in_[at_ + 2] == '{';
    const std::size_t first = at_ + (braces ? 3 : 2);
    const std::size_t n = count_hex(first, braces ? 6 : 2);
    // Bare \x80 and above are bytes of a character to Oniguruma.
    if (n == 0 || (!braces && n == 2 && in_[first] > '7')) return refuse("\\x");
    if (braces && (first + n >= in_.size() || in_[first + n] != '}')) return refuse("\\x");
    out_.append("\\x{").append(in_.substr(first, n)).append("}");
    at_ = first + n + (braces ? 1 : 0);
    return {};
  }
  Status four_digits() {
    if (count_hex(at_ + 2, 4) != 4) return refuse("\\u");
    out_.append("\\x{").append(in_.substr(at_ + 2, 4)).append("}");
    at_ += 6;
    return {};
  }

  std::string_view in_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> translate_pattern(std::string_view oniguruma_pattern) {
  return Translator(oniguruma_pattern).run();
}

}  // namespace mstar::text
