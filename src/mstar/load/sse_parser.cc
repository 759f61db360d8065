#include "mstar/load/sse_parser.h"

namespace mstar::load {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

void SseParser::reset() {
  line_.clear();
  name_.clear();
  data_.clear();
  has_data_ = skip_lf_ = false;
  at_start_ = true;
}

Status SseParser::push(std::string_view bytes, const OnEvent& on_event) {
  while (!bytes.empty()) {
    if (skip_lf_) {
      skip_lf_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + data_.size() + piece.size() > limit_bytes_)
      return invalid_request("an event of the stream is longer than " + std::to_string(limit_bytes_) + " bytes");
    if (end == bytes.npos) {
      line_ += piece;
      return ok_status();
    }
    skip_lf_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      MSTAR_TRY(take_line(piece, on_event));
      continue;
    }
    line_ += piece;
    MSTAR_TRY(take_line(line_, on_event));
    line_.clear();
  }
  return ok_status();
}

Status SseParser::take_line(std::string_view line, const OnEvent& on_event) {
  if (at_start_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  at_start_ = false;
  if (line.empty()) {
    if (has_data_) {
      data_.pop_back();  // the last '\n'
      on_event(name_, data_);
    }
    name_.clear();
    data_.clear();
    has_data_ = false;
    return ok_status();
  }
  const std::size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    data_.append(value).push_back('\n');
    has_data_ = true;
  } else if (field == "event") {
    name_ = value;
  }
  return ok_status();
}

}  // namespace mstar::load
