// One call written as a JSON object, read as its text comes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mstar {

// Where a JSON object or list ends, without looking at what is in it.
class JsonSpan {
 public:
  // Bytes of `text` that belong to the value; done() once its last bracket is among them. The first one opens it.
  std::size_t take(std::string_view text);
  bool done() const { return begun_ && depth_ == 0; }

 private:
  int depth_ = 0;
  bool begun_ = false, in_string_ = false, escaped_ = false;
};

// {"name": "f", "arguments": {…}} with any of the names that families give the two keys, in any order; further keys are
// passed over. The arguments come out as they stand; those inside of a string come out of it.
// Thread: one owner. Memory: what comes before the name, and a string of arguments.
class JsonCall {
 public:
  enum class State { reads, done, bad };  // bad: no such call; nothing came out unless it has a name
  // Takes bytes up to the object's end; appends to `arguments` what has become certain of them.
  State take(std::string_view text, std::size_t& num_taken, std::string& arguments);
  // Empty until it is known; arguments come after it.
  const std::string& name() const { return name_; }

 private:
  enum class At { open, key, in_key, colon, value, in_value, end };
  State on_byte(char c, std::string& arguments);
  State end_value(std::string& arguments);
  void begin_value(char c);

  At at_ = At::open;
  std::string key_, value_, name_, early_;
  bool escaped_ = false;       // of the key
  bool streams_ = false;       // the value goes out as it comes
  bool is_container_ = false;  // of the value
  bool is_string_ = false;
  bool has_arguments_ = false;
  JsonSpan span_;
};

}  // namespace mstar
