// Request bodies: multipart/form-data, urlencoded and JSON become one shape.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/base/result.h"

namespace mstar::server {

struct Upload {
  std::string field;
  std::string file_name;     // base name only, never empty
  std::string content_type;  // of the part, or empty
  std::string bytes;
};
struct Form {
  Params fields;  // a name ending in "[]" loses it and is a list; so is a repeated name
  std::vector<Upload> files;
};

// Bits that a route combines.
// kRaw, by itself: any type, taken as it is. kJsonText, by itself: JSON, which the route parses.
enum BodyKind : unsigned { kNoBody = 0, kMultipart = 1, kUrlencoded = 2, kJson = 4, kRaw = 8, kJsonText = 16 };

// The kind that a Content-Type header names; kNoBody if it is none of ours.
BodyKind body_kind(std::string_view content_type);

// Takes a body piece by piece. Errors: invalid_request, or exhausted when a limit is passed.
class BodyReader {
 public:
  virtual ~BodyReader() = default;
  virtual Status feed(std::string_view bytes) = 0;
  virtual Result<Form> finish() = 0;
};

// A reader for that type; a type of no kind, or a malformed boundary, is invalid_request with field "Content-Type".
// `expected_bytes`: of the body, where they are known.
Result<std::unique_ptr<BodyReader>> make_body_reader(std::string_view content_type, std::size_t json_limit_bytes,
                                                     std::size_t expected_bytes = 0);
// The whole body becomes the only upload, of field "body".
std::unique_ptr<BodyReader> make_raw_body_reader(std::size_t limit_bytes);
// "multipart/form-data, application/json" for messages; `kinds` is a set of BodyKind.
std::string body_kind_names(unsigned kinds);

// Adds a text field as described at Form::fields.
void add_field(Params& fields, std::string_view name, std::string value);
// "a+b%20c" -> "a b c"; invalid_request for a malformed escape.
Result<std::string> percent_decode(std::string_view text, bool plus_is_space);
Result<Form> parse_urlencoded(std::string_view body);
// What is left of a client's file name: no directories, no control characters, at most 255 bytes, never empty.
std::string base_name(std::string_view file_name);

}  // namespace mstar::server
