#include "mstar/text/jinja/python_text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "mstar/text/utf8.h"

namespace mstar::jinja {
namespace {

icu::UnicodeString to_icu(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
}
std::string from_icu(const icu::UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}
UChar32 icu_char(char32_t c) { return static_cast<UChar32>(c); }

bool is_cased(char32_t c) {
  return u_hasBinaryProperty(icu_char(c), UCHAR_LOWERCASE) || u_hasBinaryProperty(icu_char(c), UCHAR_UPPERCASE) ||
         u_charType(icu_char(c)) == U_TITLECASE_LETTER;
}

std::string title_of(char32_t c) {
  icu::UnicodeString one(icu_char(c));
  return from_icu(one.toTitle(nullptr, icu::Locale::getRoot(), U_TITLECASE_NO_BREAK_ADJUSTMENT));
}
std::string lower_of(char32_t c) { return from_icu(icu::UnicodeString(icu_char(c)).toLower(icu::Locale::getRoot())); }

// In its place: a capital sigma that ends a word is another letter.
std::string lower_at(const std::u32string& text, std::size_t at) {
  constexpr char32_t kCapitalSigma = 0x3A3, kFinalSigma = 0x3C2;
  if (text[at] != kCapitalSigma) return lower_of(text[at]);
  const auto ignorable = [](char32_t c) { return u_hasBinaryProperty(icu_char(c), UCHAR_CASE_IGNORABLE); };
  std::size_t before = at, after = at + 1;
  while (before > 0 && ignorable(text[before - 1])) --before;
  while (after < text.size() && ignorable(text[after])) ++after;
  const bool ends_word = before > 0 && is_cased(text[before - 1]) && (after == text.size() || !is_cased(text[after]));
  return ends_word ? from_characters({&kFinalSigma, 1}) : lower_of(kCapitalSigma);
}
std::string upper_of(char32_t c) { return from_icu(icu::UnicodeString(icu_char(c)).toUpper(icu::Locale::getRoot())); }

bool is_of_class(char32_t c, CharClass which) {
  const auto type = u_charType(icu_char(c));
  const auto numeric = u_getIntPropertyValue(icu_char(c), UCHAR_NUMERIC_TYPE);
  switch (which) {
    case CharClass::alpha:
      return (U_MASK(type) & U_GC_L_MASK) != 0;
    case CharClass::digit:
      return numeric == U_NT_DECIMAL || numeric == U_NT_DIGIT;
    case CharClass::decimal:
      return numeric == U_NT_DECIMAL;
    case CharClass::numeric:
      return numeric != U_NT_NONE;
    case CharClass::alnum:
      return (U_MASK(type) & U_GC_L_MASK) != 0 || numeric != U_NT_NONE;
    case CharClass::space:
      return is_python_space(c);
  }
  return false;
}

bool in_set(char32_t c, const std::u32string* set) {
  return set ? set->find(c) != std::u32string::npos : is_python_space(c);
}

std::size_t start_of_last(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<std::uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

std::vector<std::string> split_spaces(std::string_view text, std::int64_t max_splits) {
  std::vector<std::string> out;
  text = strip(text, Side::left, nullptr);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<std::int64_t>(out.size()) >= max_splits) {
      out.emplace_back(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size()) {
      const Utf8Step step = utf8_step(text.substr(end));
      if (is_python_space(step.code_point)) break;
      end += step.length_bytes;
    }
    out.emplace_back(text.substr(0, end));
    text = strip(text.substr(end), Side::left, nullptr);
  }
  return out;
}

std::vector<std::string> split_spaces_right(std::string_view text, std::int64_t max_splits) {
  std::vector<std::string> out;
  text = strip(text, Side::right, nullptr);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<std::int64_t>(out.size()) >= max_splits) {
      out.emplace_back(text);
      break;
    }
    std::size_t begin = text.size();
    while (begin > 0) {
      const std::size_t at = start_of_last(text.substr(0, begin));
      if (is_python_space(utf8_step(text.substr(at)).code_point)) break;
      begin = at;
    }
    out.emplace_back(text.substr(begin));
    text = strip(text.substr(0, begin), Side::right, nullptr);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<std::uint8_t>(c) & 0xC0) != 0x80; }));
}

std::size_t byte_of_character(std::string_view text, std::size_t index) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<std::uint8_t>(text[at]) & 0xC0) == 0x80) continue;
    if (index == 0) return at;
    --index;
  }
  return text.size();
}

std::u32string characters(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    out.push_back(step.code_point);
    text.remove_prefix(step.length_bytes);
  }
  return out;
}

std::string from_characters(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) append_utf8(c, out);
  return out;
}

std::string upper(std::string_view text) { return from_icu(to_icu(text).toUpper(icu::Locale::getRoot())); }
std::string lower(std::string_view text) { return from_icu(to_icu(text).toLower(icu::Locale::getRoot())); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const std::u32string all = characters(text);
  std::string out = title_of(all[0]);
  for (std::size_t i = 1; i < all.size(); ++i) out.append(lower_at(all, i));
  return out;
}

std::string python_title(std::string_view text) {
  std::string out;
  bool after_cased = false;
  const std::u32string all = characters(text);
  for (std::size_t i = 0; i < all.size(); ++i) {
    out.append(after_cased ? lower_at(all, i) : title_of(all[i]));
    after_cased = is_cased(all[i]);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  const std::u32string all = characters(text);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const char32_t c = all[i];
    if (u_hasBinaryProperty(icu_char(c), UCHAR_UPPERCASE)) {
      out.append(lower_at(all, i));
    } else if (u_hasBinaryProperty(icu_char(c), UCHAR_LOWERCASE)) {
      out.append(upper_of(c));
    } else {
      append_utf8(c, out);
    }
  }
  return out;
}

namespace {
bool all_in_case(std::string_view text, UProperty wanted, UProperty other) {
  bool any = false;
  for (const char32_t c : characters(text)) {
    if (u_hasBinaryProperty(icu_char(c), other) || u_charType(icu_char(c)) == U_TITLECASE_LETTER) return false;
    any = any || u_hasBinaryProperty(icu_char(c), wanted);
  }
  return any;
}
}  // namespace

bool is_lower(std::string_view text) { return all_in_case(text, UCHAR_LOWERCASE, UCHAR_UPPERCASE); }
bool is_upper(std::string_view text) { return all_in_case(text, UCHAR_UPPERCASE, UCHAR_LOWERCASE); }

bool all_of_class(std::string_view text, CharClass which) {
  const std::u32string all = characters(text);
  return !all.empty() && std::all_of(all.begin(), all.end(), [&](char32_t c) { return is_of_class(c, which); });
}

std::string_view strip(std::string_view text, Side side, const std::string* chars) {
  std::u32string wide;
  if (chars) wide = characters(*chars);
  const std::u32string* set = chars ? &wide : nullptr;
  while (side != Side::right && !text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (!in_set(step.code_point, set)) break;
    text.remove_prefix(step.length_bytes);
  }
  while (side != Side::left && !text.empty()) {
    const std::size_t at = start_of_last(text);
    if (!in_set(utf8_step(text.substr(at)).code_point, set)) break;
    text = text.substr(0, at);
  }
  return text;
}

std::vector<std::string> split(std::string_view text, const std::string* separator, std::int64_t max_splits) {
  if (!separator) return split_spaces(text, max_splits);
  std::vector<std::string> out;
  while (max_splits < 0 || static_cast<std::int64_t>(out.size()) < max_splits) {
    const std::size_t at = text.find(*separator);
    if (at == std::string_view::npos) break;
    out.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator->size());
  }
  out.emplace_back(text);
  return out;
}

std::vector<std::string> split_right(std::string_view text, const std::string* separator, std::int64_t max_splits) {
  if (!separator) return split_spaces_right(text, max_splits);
  std::vector<std::string> out;
  while (max_splits < 0 || static_cast<std::int64_t>(out.size()) < max_splits) {
    const std::size_t at = text.rfind(*separator);
    if (at == std::string_view::npos) break;
    out.emplace_back(text.substr(at + separator->size()));
    text = text.substr(0, at);
  }
  out.emplace_back(text);
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  std::size_t begin = 0, at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    std::size_t next = at + step.length_bytes;
    if (is_line_end(step.code_point)) {
      if (step.code_point == '\r' && next < text.size() && text[next] == '\n') ++next;
      out.emplace_back(text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) out.emplace_back(text.substr(begin));
  return out;
}

std::optional<std::string> replace(std::string_view text, std::string_view from, std::string_view to,
                                   std::int64_t count, std::size_t max_bytes) {
  std::string out;
  std::int64_t done = 0;
  const auto more = [&] { return (count < 0 || done < count) && out.size() <= max_bytes; };
  if (from.empty()) {
    // Before every character and at the end.
    while (more()) {
      out.append(to);
      ++done;
      if (text.empty()) break;
      const std::size_t length = utf8_step(text).length_bytes;
      out.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  } else {
    for (std::size_t at = text.find(from); at != std::string_view::npos && more(); at = text.find(from)) {
      out.append(text.substr(0, at)).append(to);
      text.remove_prefix(at + from.size());
      ++done;
    }
  }
  out.append(text);
  if (out.size() > max_bytes) return std::nullopt;
  return out;
}

std::optional<std::int64_t> parse_int(std::string_view text, int base) {
  text = strip_spaces(text);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
      base = marked;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  std::string digits;
  for (const char32_t c : characters(text)) {
    const int value = u_digit(icu_char(c), 10);
    if (c == '_' && !digits.empty() && digits.back() != '_') {
      digits.push_back('_');
    } else if (c < 0x80) {
      digits.push_back(static_cast<char>(c));
    } else if (value >= 0) {
      digits.push_back(static_cast<char>('0' + value));
    } else {
      return std::nullopt;
    }
  }
  if (!digits.empty() && digits.back() == '_') return std::nullopt;
  std::erase(digits, '_');
  if (negative) digits.insert(digits.begin(), '-');
  std::int64_t value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) return std::nullopt;
  if (digits.size() > 1 && digits[0] == '-' && negative && digits[1] == '-') return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  std::string plain = lower(strip_spaces(text));
  double sign = 1;
  if (!plain.empty() && (plain[0] == '-' || plain[0] == '+')) {
    sign = plain[0] == '-' ? -1 : 1;
    plain.erase(0, 1);
  }
  if (plain == "inf" || plain == "infinity") return sign * HUGE_VAL;
  if (plain == "nan") return std::nan("");
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const auto digit = [&](std::size_t at) { return at < plain.size() && plain[at] >= '0' && plain[at] <= '9'; };
    if (plain[i] == '_' && (i == 0 || !digit(i - 1) || !digit(i + 1))) return std::nullopt;
    if (!digit(i) && std::string_view("_.e+-").find(plain[i]) == std::string_view::npos) return std::nullopt;
  }
  std::erase(plain, '_');
  if (plain.empty() || plain[0] == '-' || plain[0] == '+') return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (result.ptr != plain.data() + plain.size()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    const std::size_t e = plain.find('e');
    return e != std::string::npos && plain.find('-', e) != std::string::npos ? sign * 0.0 : sign * HUGE_VAL;
  }
  if (result.ec != std::errc()) return std::nullopt;
  return sign * value;
}

}  // namespace mstar::jinja
