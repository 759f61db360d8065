#include "mstar/text/jinja/lexer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>

#include "mstar/text/jinja/string_escapes.h"
#include "mstar/text/utf8.h"

namespace mstar::jinja {

Error template_error(int line, std::string_view message) {
  return bad_model("template line " + std::to_string(line) + ": " + std::string(message));
}

namespace {

constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                         "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
int hex_value(char c) { return is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// "\n" for every kind of line end, and without the last one.
std::string unify_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// The code points of `text` without white space at its end.
std::string_view strip_end(std::string_view text) {
  const std::string_view stripped = strip_spaces(text);
  return stripped.empty() ? text.substr(0, 0)
                          : text.substr(0, static_cast<std::size_t>(stripped.data() - text.data()) + stripped.size());
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(unify_newlines(source)), in_(source_) {}

  Result<std::vector<Token>> run() {
    while (at_ < in_.size()) MSTAR_TRY(root());
    Token end;
    end.line = line_;
    tokens_.push_back(std::move(end));
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return in_.substr(at_); }
  bool next_is(std::string_view text) const { return rest().starts_with(text); }
  void take(std::size_t count) {
    line_ += static_cast<int>(std::count(in_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         in_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  std::size_t spaces_from(std::size_t from) const {
    std::size_t at = from;
    while (at < in_.size()) {
      const Utf8Step step = utf8_step(in_.substr(at));
      if (!is_python_space(step.code_point)) break;
      at += step.length_bytes;
    }
    return at - from;
  }
  Token& push(TokenKind kind, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    return tokens_.emplace_back(std::move(token));
  }
  void push_data(std::string_view text) {
    if (!text.empty()) push(TokenKind::data, std::string(text));
  }

  // The text before a tag, as the tag's sign ('-', '+' or none) wants it.
  std::string_view before_tag(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return strip_end(text);
    if (sign == '+' || is_variable) return text;
    const std::size_t newline = text.rfind('\n');
    const std::size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    const std::string_view last_line = text.substr(line_start);
    if ((line_start > 0 || line_starting_) && !last_line.empty() && strip_spaces(last_line).empty())
      return text.substr(0, line_start);
    return text;
  }
  char sign_at(std::size_t at) const { return at < in_.size() && (in_[at] == '-' || in_[at] == '+') ? in_[at] : '\0'; }

  // The length of a tag's end with what it swallows; 0 when it is not there. `plus` says whether "+" may come before.
  std::size_t closing(std::size_t at, std::string_view mark, bool plus, bool trim_newline) const {
    const std::string_view text = in_.substr(at);
    if (text.starts_with('-') && text.substr(1).starts_with(mark)) {
      return 1 + mark.size() + spaces_from(at + 1 + mark.size());
    }
    if (plus && text.starts_with('+') && text.substr(1).starts_with(mark)) return 1 + mark.size();
    if (!text.starts_with(mark)) return 0;
    const bool newline = trim_newline && text.substr(mark.size()).starts_with('\n');
    return mark.size() + (newline ? 1 : 0);
  }
  void note_line_start() { line_starting_ = at_ > 0 && in_[at_ - 1] == '\n'; }

  Status root() {
    std::size_t tag = at_;
    while (true) {
      tag = in_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= in_.size()) {
        push_data(rest());
        take(in_.size() - at_);
        return {};
      }
      const char kind = in_[tag + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++tag;
    }
    const char kind = in_[tag + 1];
    const char sign = sign_at(tag + 2);
    push_data(before_tag(in_.substr(at_, tag - at_), sign, kind == '{'));
    take(tag - at_);
    if (kind == '%') {
      if (const std::size_t length = raw_begin(); length > 0) return raw_block(length);
    }
    const std::size_t opening = sign == '\0' ? 2 : 3;
    if (kind == '#') return comment(opening);
    push(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin);
    take(opening);
    note_line_start();
    return kind == '{' ? inside("}}", TokenKind::variable_end) : inside("%}", TokenKind::block_end);
  }

  Status comment(std::size_t opening) {
    const int line = line_;
    for (std::size_t at = at_ + opening; at < in_.size(); ++at) {
      if (const std::size_t length = closing(at, "#}", true, true); length > 0) {
        take(at + length - at_);
        note_line_start();
        return {};
      }
    }
    return template_error(line, "a comment that does not end");
  }

  std::size_t raw_begin() const {
    std::size_t at = at_ + 2;
    if (sign_at(at) != '\0') ++at;
    at += spaces_from(at);
    if (!in_.substr(at).starts_with("raw")) return 0;
    at += 3;
    at += spaces_from(at);
    const std::size_t length = closing(at, "%}", false, false);
    return length == 0 ? 0 : at + length - at_;
  }
  Status raw_block(std::size_t opening) {
    const int line = line_;
    take(opening);
    note_line_start();
    for (std::size_t tag = in_.find("{%", at_); tag != std::string_view::npos; tag = in_.find("{%", tag + 1)) {
      std::size_t at = tag + 2;
      const char sign = sign_at(at);
      if (sign != '\0') ++at;
      at += spaces_from(at);
      if (!in_.substr(at).starts_with("endraw")) continue;
      at += 6;
      at += spaces_from(at);
      const std::size_t length = closing(at, "%}", true, true);
      if (length == 0) continue;
      push_data(before_tag(in_.substr(at_, tag - at_), sign, false));
      take(at + length - at_);
      note_line_start();
      return {};
    }
    return template_error(line, "a raw block that does not end");
  }

  Status inside(std::string_view mark, TokenKind end) {
    std::string brackets;
    const bool is_block = end == TokenKind::block_end;
    while (at_ < in_.size()) {
      if (brackets.empty()) {
        if (const std::size_t length = closing(at_, mark, is_block, is_block); length > 0) {
          push(end);
          take(length);
          note_line_start();
          return {};
        }
      }
      MSTAR_TRY(token(brackets));
    }
    return template_error(line_, "a tag that does not end");
  }

  Status token(std::string& brackets) {
    if (const std::size_t spaces = spaces_from(at_); spaces > 0) {
      take(spaces);
      return {};
    }
    const char c = in_[at_];
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return string_literal(c);
    if (const std::size_t length = name_length(); length > 0) {
      push(TokenKind::name, std::string(in_.substr(at_, length)));
      take(length);
      return {};
    }
    for (const std::string_view symbol : kSymbols) {
      if (!next_is(symbol)) continue;
      MSTAR_TRY(balance(symbol[0], brackets));
      push(TokenKind::symbol, std::string(symbol));
      take(symbol.size());
      return {};
    }
    const std::size_t length = utf8_step(rest()).length_bytes;
    return template_error(line_, "unexpected character " + std::string(rest().substr(0, length)));
  }

  Status balance(char c, std::string& brackets) const {
    if (c == '(') brackets.push_back(')');
    if (c == '[') brackets.push_back(']');
    if (c == '{') brackets.push_back('}');
    if (c != ')' && c != ']' && c != '}') return {};
    if (brackets.empty()) return template_error(line_, std::string("unexpected ") + c);
    const char expected = brackets.back();
    brackets.pop_back();
    if (expected != c) return template_error(line_, std::string("unexpected ") + c + ", expected " + expected);
    return {};
  }

  std::size_t name_length() const {
    std::size_t at = at_;
    while (at < in_.size()) {
      const Utf8Step step = utf8_step(in_.substr(at));
      const auto c = static_cast<UChar32>(step.code_point);
      if (c != '_' && !u_isalnum(c)) break;
      at += step.length_bytes;
    }
    return at - at_;
  }

  std::size_t digits_from(std::size_t from) const {
    std::size_t at = from;
    while (at < in_.size() &&
           (is_digit(in_[at]) || (in_[at] == '_' && at > from && at + 1 < in_.size() && is_digit(in_[at + 1]))))
      ++at;
    return at - from;
  }

  // Where a float ends that starts here, or 0.
  std::size_t real_length() const {
    if (at_ > 0 && in_[at_ - 1] == '.') return 0;
    std::size_t at = at_ + digits_from(at_);
    const std::size_t whole = at;
    if (at < in_.size() && in_[at] == '.') {
      const std::size_t fraction = digits_from(at + 1);
      if (fraction > 0) at += 1 + fraction;
    }
    if (at < in_.size() && (in_[at] | 0x20) == 'e') {
      const std::size_t sign = at + 1 < in_.size() && (in_[at + 1] == '+' || in_[at + 1] == '-') ? 1 : 0;
      const std::size_t exponent = digits_from(at + 1 + sign);
      if (exponent > 0) at += 1 + sign + exponent;
    }
    return at == whole ? 0 : at - at_;
  }

  Status number() {
    if (const std::size_t length = real_length(); length > 0) {
      std::string text(in_.substr(at_, length));
      std::erase(text, '_');
      double value = 0;
      const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
      if (result.ec == std::errc::result_out_of_range) return template_error(line_, "a number out of range");
      push(TokenKind::real).real = value;
      take(length);
      return {};
    }
    return integer();
  }

  Status integer() {
    int base = 10;
    std::size_t at = at_;
    if (in_[at] == '0' && at + 2 < in_.size()) {
      const char mark = static_cast<char>(in_[at + 1] | 0x20);
      const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      const auto good = [&](char c) { return is_hex(c) && hex_value(c) < marked; };
      const std::size_t first = in_[at + 2] == '_' ? at + 3 : at + 2;
      if (marked != 10 && first < in_.size() && good(in_[first])) {
        base = marked;
        at = first;
        while (at < in_.size() && (good(in_[at]) || (in_[at] == '_' && at + 1 < in_.size() && good(in_[at + 1])))) ++at;
      }
    }
    if (base == 10) {
      at += digits_from(at);
      // Python has no decimal integers with leading zeros: "012" is 0, then 12.
      if (in_[at_] == '0') {
        at = at_;
        while (at < in_.size() && (in_[at] == '0' || (in_[at] == '_' && at + 1 < in_.size() && in_[at + 1] == '0')))
          ++at;
      }
    }
    std::string text(in_.substr(at_ + (base == 10 ? 0 : 2), at - at_ - (base == 10 ? 0 : 2)));
    std::erase(text, '_');
    std::int64_t value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (result.ec != std::errc()) return template_error(line_, "an integer beyond 64 bits");
    push(TokenKind::integer).integer = value;
    take(at - at_);
    return {};
  }

  Status string_literal(char quote) {
    std::size_t end = at_ + 1;
    while (end < in_.size() && in_[end] != quote) end += in_[end] == '\\' ? 2 : 1;
    if (end >= in_.size()) return template_error(line_, "a string that does not end");
    std::string text;
    MSTAR_TRY(append_unescaped(in_.substr(at_ + 1, end - at_ - 1), line_, text));
    push(TokenKind::string, std::move(text));
    take(end + 1 - at_);
    return {};
  }

  std::string source_;
  std::string_view in_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what was read last ended a line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace mstar::jinja
