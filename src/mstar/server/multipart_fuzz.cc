// Any body, cut in two ways, must give the same form or the same error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "mstar/server/json_text.h"
#include "mstar/server/multipart.h"

namespace {

using mstar::Error;
using mstar::Result;
using namespace mstar::server;

Result<Form> parse(std::string_view body, std::size_t piece) {
  MultipartLimits limits;
  limits.part_header_bytes = 256;
  limits.preamble_bytes = 128;
  limits.field_bytes = 512;
  limits.num_parts = 16;
  MultipartReader reader("b", limits);
  for (std::size_t at = 0; at < body.size(); at += piece) MSTAR_TRY(reader.feed(body.substr(at, piece)));
  return reader.finish();
}

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto whole = parse(body, size);
  const auto cut = parse(body, 1 + data[0] % 64);
  require(whole.has_value() == cut.has_value());
  if (whole) {
    require(whole->files.size() == cut->files.size());
    require(whole->fields.values() == cut->fields.values());
    for (std::size_t i = 0; i < whole->files.size(); ++i) {
      const Upload& file = whole->files[i];
      require(file.bytes == cut->files[i].bytes && file.file_name == cut->files[i].file_name);
      require(!file.file_name.empty() && file.file_name.find('/') == std::string::npos && is_utf8(file.file_name));
    }
  }
  std::string_view header = body.substr(0, 200);
  if (const auto boundary = multipart_boundary(header)) require(!boundary->empty() && boundary->size() <= 70);
  return 0;
}
