#include "mstar/text/reply/reply_parser.h"

#include <algorithm>
#include <utility>

namespace mstar {
namespace {

using Kind = ReplyPart::Kind;

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::size_t kMostHead = 512;  // bytes from a call's mark to its arguments

// How many bytes at the end of `text` may be the beginning of `mark`.
std::size_t begun_mark(std::string_view text, std::string_view mark) {
  for (std::size_t count = std::min(text.size(), mark.size() - 1); count > 0; --count)
    if (text.ends_with(mark.substr(0, count))) return count;
  return 0;
}

std::vector<std::string_view> marks_of(CallStyle style) {
  switch (style) {
    case CallStyle::tags:
      return {"<tool_call>"};
    case CallStyle::mistral:
      return {"[TOOL_CALLS]"};
    case CallStyle::deepseek:
      return {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"};
    case CallStyle::command:
      return {"<|START_ACTION|>"};
    case CallStyle::json:
    case CallStyle::none:
      break;
  }
  return {};
}

}  // namespace

ReplyParser::ReplyParser(ReplyFormat format, std::shared_ptr<const ToolTypes> types, bool begins_thinking)
    : format_(std::move(format)),
      types_(std::move(types)),
      open_marks_(marks_of(format_.calls)),
      state_(begins_thinking && format_.thinks() ? State::thought : State::text),
      has_thought_(state_ == State::thought),
      may_be_json_(format_.calls == CallStyle::json) {}

void ReplyParser::push(std::string_view text, std::vector<ReplyPart>& out) {
  held_ += text;
  while (!held_.empty() && step(out)) {
  }
}

void ReplyParser::finish(std::vector<ReplyPart>& out) {
  ended_ = true;
  while (!held_.empty() && step(out)) {
  }
  const bool in_call = state_ != State::text && state_ != State::thought && state_ != State::json_next &&
                       state_ != State::tag_end && state_ != State::deepseek && state_ != State::deepseek_end;
  if (in_call) {
    if (is_named_) {
      end_values(out);
    } else {
      give_back(out);
    }
  }
  if (state_ == State::text) give(Kind::text, std::exchange(blanks_, {}), out);
}

bool ReplyParser::step(std::vector<ReplyPart>& out) {
  switch (state_) {
    case State::text:
      return on_text(out);
    case State::thought:
      return on_thought(out);
    case State::json_call:
      return on_json_call(out);
    case State::json_list:
      return on_json_list(out);
    case State::json_next:
      return on_json_next();
    case State::tag_begin:
      return on_tag_begin(out);
    case State::tag_end:
      return on_tag_end();
    case State::xml_begin:
      return on_xml_begin(out);
    case State::xml_value:
      return on_xml_value(out);
    case State::glm_begin:
      return on_glm_begin(out);
    case State::glm_value:
      return on_glm_value(out);
    case State::mistral:
      return on_mistral(out);
    case State::bare_call:
      return on_bare_call(out);
    case State::deepseek:
      return on_deepseek(out);
    case State::deepseek_end:
      return on_deepseek_end();
  }
  return false;
}

// Parts of one kind that follow each other are one.
void ReplyParser::give(Kind kind, std::string_view text, std::vector<ReplyPart>& out) {
  if (text.empty() && kind != Kind::call) return;
  const int call = kind == Kind::call || kind == Kind::arguments ? num_calls_ - 1 : -1;
  if (!out.empty() && kind != Kind::call && out.back().kind == kind && out.back().call == call) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::string(text), call});
  }
}

// Text or thoughts: blanks at both ends of a stretch are held back.
void ReplyParser::say(Kind kind, std::string_view text, std::vector<ReplyPart>& out) {
  if (at_start_) text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlanks)));
  if (text.empty()) return;
  at_start_ = false;
  const std::size_t last = text.find_last_not_of(kBlanks);
  if (last == std::string_view::npos) {
    blanks_ += text;
    return;
  }
  give(kind, std::exchange(blanks_, {}), out);
  give(kind, text.substr(0, last + 1), out);
  blanks_ = text.substr(last + 1);
  said_something_ |= kind == Kind::text;
}

ReplyParser::Match ReplyParser::begins_with(std::string_view mark) const {
  if (held_.starts_with(mark)) return Match::yes;
  return !ended_ && mark.starts_with(held_) ? Match::maybe : Match::no;
}

// Bytes that come back if it is no call.
void ReplyParser::take(std::size_t count) {
  if (!is_named_) taken_.append(held_, 0, count);
  drop(count);
}

// False: nothing is left.
bool ReplyParser::skip_blanks() {
  take(std::min(held_.size(), held_.find_first_not_of(kBlanks)));
  return !held_.empty();
}

bool ReplyParser::on_text(std::vector<ReplyPart>& out) {
  if (may_be_json_) {
    const std::size_t first = held_.find_first_not_of(kBlanks);
    if (first == std::string::npos) return false;
    if (held_[first] == '{') {
      taken_ = std::exchange(blanks_, {});
      begin_json_call(State::json_next);
      return true;
    }
    bool maybe_mark = false;
    for (const std::string& mark : format_.dropped) maybe_mark |= begins_with(mark) != Match::no;
    if (format_.thinks()) maybe_mark |= begins_with(format_.think_open) != Match::no;
    if (!maybe_mark) may_be_json_ = false;
  }
  struct Found {
    std::size_t at = std::string::npos;
    std::string_view mark;
    enum { thought, thought_end, call, dropped } what = dropped;
  } first;
  std::size_t held_back = 0;
  const auto look_for = [&](std::string_view mark, auto what) {
    const std::size_t at = held_.find(mark);
    if (at < first.at) first = {at, mark, what};
    if (at == std::string::npos && !ended_) held_back = std::max(held_back, begun_mark(held_, mark));
  };
  // Thoughts come once, before all else; a template may have opened them in the prompt, unknown to us.
  if (format_.thinks() && !has_thought_) look_for(format_.think_open, Found::thought);
  if (format_.thinks()) look_for(format_.think_close, Found::thought_end);
  for (const std::string_view mark : open_marks_) look_for(mark, Found::call);
  for (const std::string& mark : format_.dropped) look_for(mark, Found::dropped);
  if (first.at == std::string::npos) {
    const std::size_t count = held_.size() - held_back;
    say(Kind::text, std::string_view(held_).substr(0, count), out);
    drop(count);
    return false;
  }
  say(Kind::text, std::string_view(held_).substr(0, first.at), out);
  const std::string mark(first.mark);
  drop(first.at + mark.size());
  switch (first.what) {
    case Found::thought:
      blanks_.clear();
      state_ = State::thought;
      has_thought_ = at_start_ = true;
      break;
    case Found::thought_end:
      at_start_ = !said_something_;
      break;
    case Found::call:
      open_call(mark, out);
      break;
    case Found::dropped:
      break;
  }
  return true;
}

bool ReplyParser::on_thought(std::vector<ReplyPart>& out) {
  if (at_start_) {
    drop(std::min(held_.size(), held_.find_first_not_of(kBlanks)));
    // A model may open what the prompt has opened.
    const Match open = held_.empty() ? Match::maybe : begins_with(format_.think_open);
    if (open == Match::yes) drop(format_.think_open.size());
    if (open != Match::no) return open == Match::yes;
  }
  const std::size_t at = held_.find(format_.think_close);
  const bool closes = at != std::string::npos;
  const std::size_t count = closes ? at : held_.size() - (ended_ ? 0 : begun_mark(held_, format_.think_close));
  say(Kind::thought, std::string_view(held_).substr(0, count), out);
  drop(count);
  if (!closes) return false;
  drop(format_.think_close.size());
  blanks_.clear();
  state_ = State::text;
  at_start_ = true;
  return true;
}

// ---- calls: what all styles share

void ReplyParser::open_call(std::string_view mark, std::vector<ReplyPart>&) {
  is_named_ = false;
  num_values_ = 0;
  taken_ = std::exchange(blanks_, {});
  taken_ += mark;
  switch (format_.calls) {
    case CallStyle::tags:
      state_ = State::tag_begin;
      break;
    case CallStyle::mistral:
      state_ = State::mistral;
      break;
    case CallStyle::deepseek:
      state_ = State::deepseek;
      if (mark.find("calls") == std::string_view::npos) held_.insert(0, mark);  // the list was not opened
      break;
    default:
      state_ = State::json_list;
  }
}

void ReplyParser::begin_json_call(State after) {
  json_ = JsonCall();
  is_named_ = false;
  state_ = State::json_call;
  after_call_ = after;
}

void ReplyParser::begin_bare_call(State after) {
  span_ = JsonSpan();
  state_ = State::bare_call;
  after_call_ = after;
}

void ReplyParser::name_call(std::string name, std::vector<ReplyPart>& out) {
  is_named_ = said_something_ = true;
  may_be_json_ = false;
  taken_.clear();
  name_ = std::move(name);
  ++num_calls_;
  num_values_ = 0;
  give(Kind::call, name_, out);
}

// What was taken is no call.
void ReplyParser::give_back(std::vector<ReplyPart>& out) {
  state_ = State::text;
  may_be_json_ = false;
  at_start_ &= taken_.find_first_not_of(kBlanks) == std::string::npos;
  say(Kind::text, std::exchange(taken_, {}), out);
}

bool ReplyParser::on_json_call(std::vector<ReplyPart>& out) {
  std::string arguments;
  std::size_t num_taken = 0;
  const bool was_named = is_named_;
  const JsonCall::State state = json_.take(held_, num_taken, arguments);
  if (!was_named) taken_.append(held_, 0, num_taken);
  if (!was_named && !json_.name().empty()) name_call(json_.name(), out);
  drop(num_taken);
  give(Kind::arguments, arguments, out);
  if (state == JsonCall::State::bad) {
    if (!is_named_) {
      give_back(out);
    } else {  // the call stands as far as it was told
      state_ = State::text;
      at_start_ = true;
    }
    return true;
  }
  if (state == JsonCall::State::done) {
    num_values_ = 1;
    state_ = after_call_;
  }
  return !held_.empty();
}

bool ReplyParser::on_bare_call(std::vector<ReplyPart>& out) {
  const std::size_t num_taken = span_.take(held_);
  give(Kind::arguments, std::string_view(held_).substr(0, num_taken), out);
  num_values_ = 1;
  drop(num_taken);
  if (span_.done()) state_ = after_call_;
  return !held_.empty();
}

bool ReplyParser::on_json_list(std::vector<ReplyPart>& out) {
  if (!skip_blanks()) return false;
  const char c = held_.front();
  if (c == '[' || c == ',') {
    take(1);
    return true;
  }
  if (c == '{') {
    begin_json_call(State::json_list);
    return true;
  }
  if (c == ']') {
    drop(1);
    taken_.clear();
    is_named_ = false;
    if (format_.calls != CallStyle::command) {
      state_ = State::text;
      at_start_ = true;
    }
    return true;
  }
  constexpr std::string_view kEnd = "<|END_ACTION|>";
  if (format_.calls == CallStyle::command && begins_with(kEnd) == Match::maybe) return false;
  if (format_.calls == CallStyle::command && begins_with(kEnd) == Match::yes) {
    drop(kEnd.size());
    taken_.clear();
    state_ = State::text;
    at_start_ = true;
    return true;
  }
  give_back(out);
  return true;
}

bool ReplyParser::on_json_next() {
  if (!skip_blanks()) return false;
  if (held_.front() == ';' || held_.front() == ',') {
    drop(1);
    return true;
  }
  taken_.clear();
  state_ = State::text;
  at_start_ = true;
  may_be_json_ = held_.front() == '{';
  return true;
}

// ---- <tool_call>

bool ReplyParser::on_tag_begin(std::vector<ReplyPart>& out) {
  if (!skip_blanks()) return false;
  if (held_.front() == '{') {
    begin_json_call(State::tag_end);
    return true;
  }
  const Match xml = begins_with("<function=");
  if (xml == Match::maybe) return false;
  state_ = xml == Match::yes ? State::xml_begin : State::glm_begin;
  if (xml == Match::no && held_.front() == '<') give_back(out);
  return true;
}

bool ReplyParser::on_tag_end() {
  if (!skip_blanks()) return false;
  constexpr std::string_view kEnd = "</tool_call>";
  const Match end = begins_with(kEnd);
  if (end == Match::maybe) return false;
  if (end == Match::yes) drop(kEnd.size());
  taken_.clear();
  state_ = State::text;
  at_start_ = true;
  return true;
}

bool ReplyParser::on_xml_begin(std::vector<ReplyPart>& out) {
  constexpr std::string_view kBegin = "<function=";
  const std::size_t end = std::string_view(held_).substr(0, kMostHead).find('>');
  if (end == std::string::npos && !ended_ && held_.size() < kMostHead) return false;
  std::string name = end == std::string::npos ? "" : held_.substr(kBegin.size(), end - kBegin.size());
  const std::size_t first = std::min(name.size(), name.find_first_not_of(" \t\r\n\""));
  name = name.substr(first, name.find_last_not_of(" \t\r\n\"") + 1 - std::min(first, name.size()));
  if (name.empty()) {
    take(std::min(kBegin.size(), held_.size()));
    give_back(out);
    return true;
  }
  drop(end + 1);
  name_call(std::move(name), out);
  state_ = State::xml_value;
  return true;
}

bool ReplyParser::on_xml_value(std::vector<ReplyPart>& out) {
  if (!skip_blanks()) return false;
  constexpr std::string_view kBegin = "<parameter=", kEnd = "</parameter>", kDone = "</function>";
  const Match begin = begins_with(kBegin), done = begins_with(kDone), closed = begins_with("</tool_call>");
  if (begin == Match::maybe || done == Match::maybe || closed == Match::maybe) return false;
  if (begin == Match::no) {  // the end, or what should not be here
    if (done == Match::yes) drop(kDone.size());
    end_values(out);
    state_ = State::tag_end;
    return true;
  }
  const std::size_t named = held_.find('>');
  if (named == std::string::npos) return false;
  // Some models leave the end of a value out.
  std::size_t end = held_.find(kEnd, named), behind = kEnd.size();
  for (const std::string_view other : {std::string_view("\n<parameter="), std::string_view("\n</function>")})
    if (const std::size_t at = held_.find(other, named); at < end) {
      end = at;
      behind = 0;
    }
  if (end == std::string::npos && !ended_) return false;
  if (end == std::string::npos) {
    end = held_.size();
    behind = 0;
  }
  // An end that may yet be one of the others' is not the next value's.
  const std::string parameter = held_.substr(kBegin.size(), named - kBegin.size());
  std::string_view value = std::string_view(held_).substr(named + 1, end - named - 1);
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  add_value(parameter, value, false, out);
  drop(end + behind);
  return true;
}

bool ReplyParser::on_glm_begin(std::vector<ReplyPart>& out) {
  const std::size_t end = std::string_view(held_).substr(0, kMostHead).find_first_of("\n<");
  if (end == std::string::npos && !ended_ && held_.size() < kMostHead) return false;
  std::string name = held_.substr(0, end);
  name.erase(name.find_last_not_of(kBlanks) + 1);
  if (name.empty() || end == std::string::npos || name.find_first_of(" {}\"") != std::string::npos) {
    take(std::min(held_.size(), std::max<std::size_t>(1, name.size())));
    give_back(out);
    return true;
  }
  drop(end);
  name_call(std::move(name), out);
  state_ = State::glm_value;
  return true;
}

bool ReplyParser::on_glm_value(std::vector<ReplyPart>& out) {
  if (!skip_blanks()) return false;
  constexpr std::string_view kKey = "<arg_key>", kKeyEnd = "</arg_key>", kValue = "<arg_value>",
                             kValueEnd = "</arg_value>";
  const Match key = begins_with(kKey);
  if (key == Match::maybe) return false;
  if (key == Match::no) {
    if (begins_with("</tool_call>") == Match::maybe) return false;
    end_values(out);
    state_ = State::tag_end;
    return true;
  }
  const std::size_t key_end = held_.find(kKeyEnd), value = held_.find(kValue, key_end);
  const std::size_t end = value == std::string::npos ? value : held_.find(kValueEnd, value);
  if (end == std::string::npos && !ended_) return false;
  if (value == std::string::npos || key_end == std::string::npos) {
    drop(held_.size());
    return false;
  }
  const std::size_t begin = value + kValue.size();
  const std::string parameter = held_.substr(kKey.size(), key_end - kKey.size());
  add_value(parameter, std::string_view(held_).substr(begin, end == std::string::npos ? end : end - begin), true, out);
  drop(end == std::string::npos ? held_.size() : end + kValueEnd.size());
  return true;
}

// ---- other families

bool ReplyParser::on_mistral(std::vector<ReplyPart>& out) {
  if (!skip_blanks()) return false;
  if (held_.front() == '[' && begins_with("[ARGS]") == Match::no && begins_with("[CALL_ID]") == Match::no) {
    state_ = State::json_list;
    return true;
  }
  const std::size_t open = std::string_view(held_).substr(0, kMostHead).find('{');
  if (open == std::string::npos && !ended_ && held_.size() < kMostHead) return false;
  std::string name = held_.substr(0, std::min(held_.find('['), open));
  name.erase(name.find_last_not_of(kBlanks) + 1);
  if (open == std::string::npos || name.empty()) {
    give_back(out);
    return true;
  }
  drop(open);
  name_call(std::move(name), out);
  begin_bare_call(State::text);
  at_start_ = true;
  return true;
}

bool ReplyParser::on_deepseek(std::vector<ReplyPart>& out) {
  if (!skip_blanks()) return false;
  constexpr std::string_view kBegin = "<｜tool▁call▁begin｜>", kEnd = "<｜tool▁calls▁end｜>",
                             kSeparator = "<｜tool▁sep｜>";
  const Match begin = begins_with(kBegin), end = begins_with(kEnd);
  if (begin == Match::maybe || end == Match::maybe) return false;
  if (begin == Match::no) {
    if (end == Match::yes) drop(kEnd.size());
    taken_.clear();
    is_named_ = false;
    state_ = State::text;
    at_start_ = true;
    return true;
  }
  const std::string_view head = std::string_view(held_).substr(0, kMostHead);
  const std::size_t separator = head.find(kSeparator);
  const std::size_t open = separator == std::string_view::npos ? separator : head.find('{', separator);
  if (open == std::string_view::npos) {
    if (!ended_ && held_.size() < kMostHead) return false;
    take(held_.size());
    is_named_ = false;
    give_back(out);
    return true;
  }
  const auto without_blanks = [](std::string text) {
    text.erase(0, std::min(text.size(), text.find_first_not_of(kBlanks)));
    text.erase(text.find_last_not_of(kBlanks) + 1);
    return text;
  };
  std::string name = without_blanks(held_.substr(kBegin.size(), separator - kBegin.size()));
  const std::size_t behind = separator + kSeparator.size();
  if (name == "function") {  // the name comes next, and the arguments in a fence
    const std::string rest = held_.substr(behind, open - behind);
    name = without_blanks(rest.substr(0, rest.find_first_of("\n`")));
  }
  drop(open);
  name_call(std::move(name), out);
  begin_bare_call(State::deepseek_end);
  return true;
}

bool ReplyParser::on_deepseek_end() {
  constexpr std::string_view kEnd = "<｜tool▁call▁end｜>";
  const std::size_t at = held_.find(kEnd);
  if (at == std::string::npos) {
    drop(held_.size() - begun_mark(held_, kEnd));  // the end of a fence
    return false;
  }
  drop(at + kEnd.size());
  state_ = State::deepseek;
  return true;
}

}  // namespace mstar
