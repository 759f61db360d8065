// Server-sent events out of a body that arrives in pieces.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "mstar/base/result.h"

namespace mstar::load {

// As the HTML standard defines them (section 9.2.6): lines end with CR, LF or CRLF, comments and unknown fields are
// dropped, lines of data are joined by '\n', an event without data is none. `id` and `retry` are not kept. Bytes that
// are no UTF-8 are passed on as they are. Owner thread: one.
class SseParser {
 public:
  // The views live until the call returns.
  using OnEvent = std::function<void(std::string_view name, std::string_view data)>;

  explicit SseParser(std::size_t limit_bytes = std::size_t{16} << 20) : limit_bytes_(limit_bytes) {}

  // Calls on_event for each event that `bytes` completes, in order. How the body is cut makes no difference. An error
  // when a line or an event is longer than the limit; then the parser is of no more use.
  Status push(std::string_view bytes, const OnEvent& on_event);
  // As new; for the next body.
  void reset();
  // Whether something of an event came that no empty line ended; the standard drops it.
  bool has_rest() const { return !line_.empty() || has_data_; }

 private:
  Status take_line(std::string_view line, const OnEvent& on_event);

  std::size_t limit_bytes_;
  std::string line_;  // of a line that is not complete
  std::string name_, data_;
  bool has_data_ = false;
  bool skip_lf_ = false;  // the last byte was a CR, so an LF belongs to it
  bool at_start_ = true;  // a byte order mark may stand before the first line
};

}  // namespace mstar::load
