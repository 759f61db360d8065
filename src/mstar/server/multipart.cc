#include "mstar/server/multipart.h"

#include <algorithm>
#include <utility>

#include "mstar/server/ascii.h"
#include "mstar/server/json_text.h"

namespace mstar::server {
namespace {

constexpr std::size_t kMaxBoundaryBytes = 70;
constexpr std::size_t kMostReservedBytes = 256 << 10;

bool is_boundary_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("'()+_,-./:=? ").find(c) != std::string_view::npos;
}

// Reads a quoted string whose opening quote was consumed; false when it has no end. Only \" and \\ are escapes: old
// browsers send bare backslashes in paths.
bool read_quoted(std::string_view& rest, std::string& value) {
  value.clear();
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '"') {
      rest.remove_prefix(i + 1);
      return true;
    }
    if (rest[i] == '\\' && i + 1 < rest.size() && (rest[i + 1] == '"' || rest[i + 1] == '\\')) ++i;
    value += rest[i];
  }
  return false;
}

// filename*=UTF-8''na%C3%AFve.wav (RFC 8187)
bool decode_extended(std::string_view text, std::string& value) {
  const std::size_t first = text.find('\'');
  const std::size_t second = first == std::string_view::npos ? first : text.find('\'', first + 1);
  if (second == std::string_view::npos || lower(text.substr(0, first)) != "utf-8") return false;
  auto decoded = percent_decode(text.substr(second + 1), false);
  if (!decoded) return false;
  value = std::move(*decoded);
  return true;
}

}  // namespace

bool header_parameter(std::string_view header, std::string_view name, std::string& value) {
  std::size_t semicolon = header.find(';');
  while (semicolon != std::string_view::npos) {
    header.remove_prefix(semicolon + 1);
    const std::size_t equals = header.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string key = lower(trim(header.substr(0, equals)));
    header.remove_prefix(equals + 1);
    while (!header.empty() && (header.front() == ' ' || header.front() == '\t')) header.remove_prefix(1);
    std::string read;
    if (!header.empty() && header.front() == '"') {
      header.remove_prefix(1);
      if (!read_quoted(header, read)) return false;
    } else {
      read = trim(header.substr(0, header.find(';')));
    }
    if (key == name) {
      value = std::move(read);
      return true;
    }
    semicolon = header.find(';');
  }
  return false;
}

Result<std::string> multipart_boundary(std::string_view content_type) {
  std::string boundary;
  if (!header_parameter(content_type, "boundary", boundary) || boundary.empty())
    return invalid_request("multipart/form-data without a boundary").with_field("Content-Type");
  if (boundary.size() > kMaxBoundaryBytes || !std::all_of(boundary.begin(), boundary.end(), is_boundary_char) ||
      boundary.back() == ' ')
    return invalid_request("malformed multipart boundary").with_field("Content-Type");
  return boundary;
}

MultipartReader::MultipartReader(std::string boundary, MultipartLimits limits, std::size_t expected_bytes)
    : delimiter_("\r\n--" + std::move(boundary)),
      limits_(limits),
      expected_bytes_(std::min(expected_bytes, kMostReservedBytes)) {
  // The first delimiter may begin the body, where no line break comes before it.
  pending_ = "\r\n";
}

Status MultipartReader::feed(std::string_view bytes) {
  if (state_ == State::epilogue) return ok_status();
  pending_ += bytes;
  for (bool more = true; more;) {
    MSTAR_TRY_ASSIGN(more, advance());
  }
  pending_.erase(0, position_);
  position_ = 0;
  return ok_status();
}

Result<Form> MultipartReader::finish() {
  if (state_ == State::epilogue) return std::move(form_);
  if (state_ == State::preamble) return invalid_request("the multipart body does not hold its boundary");
  return invalid_request("the multipart body is cut short: its closing boundary is missing");
}

Result<bool> MultipartReader::advance() {
  switch (state_) {
    case State::preamble:
      return skip_preamble();
    case State::after_delimiter:
      return after_delimiter();
    case State::headers:
      return read_headers();
    case State::body:
      return read_body();
    case State::epilogue:
      break;
  }
  position_ = pending_.size();
  return false;
}

Result<bool> MultipartReader::skip_preamble() {
  const std::size_t found = pending_.find(delimiter_, position_);
  const bool is_found = found != std::string::npos;
  const std::size_t end =
      is_found ? found : pending_.size() - std::min(pending_.size() - position_, delimiter_.size() - 1);
  preamble_bytes_ += end - position_;
  if (preamble_bytes_ > limits_.preamble_bytes)
    return invalid_request("the multipart body does not begin with its boundary");
  position_ = is_found ? found + delimiter_.size() : end;
  if (is_found) state_ = State::after_delimiter;
  return is_found;
}

Result<bool> MultipartReader::after_delimiter() {
  const std::string_view rest = std::string_view(pending_).substr(position_);
  if (rest.starts_with("--")) {
    position_ = pending_.size();
    state_ = State::epilogue;
    return false;
  }
  const std::size_t num_blanks = std::min(rest.size(), rest.find_first_not_of(" \t"));
  const std::string_view line = rest.substr(num_blanks);
  if (num_blanks > limits_.part_header_bytes) return invalid_request("malformed multipart boundary line");
  if (line.empty() || line == "\r" || (num_blanks == 0 && line == "-")) return false;
  if (!line.starts_with("\r\n")) return invalid_request("malformed multipart boundary line");
  // The line break stays, so that a part without headers looks as one with them.
  position_ += num_blanks;
  state_ = State::headers;
  return true;
}

Result<bool> MultipartReader::read_headers() {
  const std::size_t end = pending_.find("\r\n\r\n", position_);
  // The last three bytes may belong to the blank line.
  const std::size_t known = end == std::string::npos ? std::max(pending_.size(), position_ + 3) - 3 : end;
  const std::size_t length = known - position_;
  if (length > limits_.part_header_bytes) return exhausted("a multipart header is too long");
  if (end == std::string::npos) return false;
  MSTAR_TRY(begin_part(std::string_view(pending_).substr(position_, length)));
  position_ = end + 4;
  state_ = State::body;
  return true;
}

Result<bool> MultipartReader::read_body() {
  const std::size_t found = pending_.find(delimiter_, position_);
  if (found == std::string::npos) {
    const std::size_t keep = std::min(pending_.size() - position_, delimiter_.size() - 1);
    MSTAR_TRY(append_to_part(std::string_view(pending_).substr(position_, pending_.size() - position_ - keep)));
    position_ = pending_.size() - keep;
    return false;
  }
  MSTAR_TRY(append_to_part(std::string_view(pending_).substr(position_, found - position_)));
  MSTAR_TRY(end_part());
  position_ = found + delimiter_.size();
  state_ = State::after_delimiter;
  return true;
}

Status MultipartReader::begin_part(std::string_view headers) {
  if (++num_parts_ > limits_.num_parts) return exhausted("the multipart body has too many parts");
  part_ = Upload();
  bool has_disposition = false;
  bool has_file_name = false;
  while (!headers.empty()) {
    const std::string_view line = headers.substr(0, headers.find("\r\n"));
    headers.remove_prefix(std::min(headers.size(), line.size() + 2));
    if (line.empty()) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return invalid_request("malformed multipart header");
    const std::string name = lower(trim(line.substr(0, colon)));
    const std::string_view value = trim(line.substr(colon + 1));
    if (name == "content-type") {
      part_.content_type = value;
    } else if (name == "content-transfer-encoding") {
      const std::string encoding = lower(value);
      if (encoding != "binary" && encoding != "8bit" && encoding != "7bit")
        return invalid_request("Content-Transfer-Encoding is not supported in form data");
    } else if (name == "content-disposition") {
      has_disposition = true;
      if (lower(trim(value.substr(0, value.find(';')))) != "form-data" ||
          !header_parameter(value, "name", part_.field) || part_.field.empty() || part_.field == "[]")
        return invalid_request("a multipart part has no field name");
      std::string file_name;
      std::string extended;
      has_file_name = header_parameter(value, "filename", file_name);
      if (header_parameter(value, "filename*", extended) && decode_extended(extended, file_name)) has_file_name = true;
      part_.file_name = base_name(file_name);
    }
  }
  if (!has_disposition) return invalid_request("a multipart part has no Content-Disposition");
  if (!is_utf8(part_.field)) return invalid_request("a form field's name is not UTF-8");
  const std::string type = lower(std::string_view(part_.content_type));
  part_is_file_ = has_file_name || type.starts_with("application/octet-stream") || type.starts_with("audio/") ||
                  type.starts_with("video/") || type.starts_with("image/");
  if (part_is_file_) part_.bytes.reserve(std::exchange(expected_bytes_, 0));
  return ok_status();
}

Status MultipartReader::append_to_part(std::string_view bytes) {
  if (!part_is_file_) {
    field_bytes_ += bytes.size();
    if (field_bytes_ > limits_.field_bytes)
      return exhausted("'" + part_.field + "' is too large for a text field").with_field(part_.field);
  }
  part_.bytes += bytes;
  return ok_status();
}

Status MultipartReader::end_part() {
  if (part_is_file_) {
    if (part_.field.ends_with("[]")) part_.field.resize(part_.field.size() - 2);
    form_.files.push_back(std::move(part_));
    return ok_status();
  }
  if (!is_utf8(part_.bytes)) return invalid_request("'" + part_.field + "' is not UTF-8").with_field(part_.field);
  add_field(form_.fields, part_.field, std::move(part_.bytes));
  return ok_status();
}

}  // namespace mstar::server
