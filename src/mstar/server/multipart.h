// An incremental reader of multipart/form-data (RFC 7578).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "mstar/base/result.h"
#include "mstar/server/form.h"

namespace mstar::server {

struct MultipartLimits {
  std::size_t part_header_bytes = 8 << 10;
  std::size_t preamble_bytes = 8 << 10;
  std::size_t field_bytes = std::size_t{16} << 20;  // all text fields together
  int num_parts = 1000;
};

// The boundary parameter of a Content-Type: 1 to 70 of RFC 2046's characters, else invalid_request.
Result<std::string> multipart_boundary(std::string_view content_type);

// The value of a header's parameter ("form-data; name=\"x\"" -> "x"), unquoted; false when the header has no such
// parameter or is malformed before it.
bool header_parameter(std::string_view header, std::string_view name, std::string& value);

// Holds at most one part header, or the bytes that may begin a delimiter, beside the form itself; how the input is cut
// does not change the result. A part with a file name is a file; all others are text fields and must be UTF-8. Errors:
// invalid_request (malformed; a named field where one is at fault), exhausted (a limit).
class MultipartReader final : public BodyReader {
 public:
  // `expected_bytes` of the body, where they are known: the first file gets as much memory at once, up to 256 KiB.
  explicit MultipartReader(std::string boundary, MultipartLimits limits = {}, std::size_t expected_bytes = 0);
  Status feed(std::string_view bytes) override;
  Result<Form> finish() override;

 private:
  enum class State { preamble, after_delimiter, headers, body, epilogue };

  // Each consumes from the front of pending_ and says whether there is more to do with what it holds.
  Result<bool> advance();
  Result<bool> skip_preamble();
  Result<bool> after_delimiter();
  Result<bool> read_headers();
  Result<bool> read_body();
  Status begin_part(std::string_view headers);
  Status append_to_part(std::string_view bytes);
  Status end_part();

  const std::string delimiter_;  // "\r\n--" + boundary
  const MultipartLimits limits_;
  State state_ = State::preamble;
  std::string pending_;
  std::size_t position_ = 0;  // of the first unconsumed byte in pending_
  std::size_t preamble_bytes_ = 0;
  std::size_t field_bytes_ = 0;
  std::size_t expected_bytes_;
  int num_parts_ = 0;
  bool part_is_file_ = false;
  Upload part_;  // the one being read
  Form form_;
};

}  // namespace mstar::server
