// A writer of small GGUF files for tests, with every field open to be written wrongly.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mstar/weights/checkpoint_writer_test.h"

namespace mstar::weights::testing {

inline std::string gguf_string(const std::string& text) { return raw(std::uint64_t{text.size()}) + text; }
// `value` in the file's own bytes; `type` is GGUF's number.
inline std::string gguf_pair(const std::string& key, std::uint32_t type, const std::string& value) {
  return gguf_string(key) + raw(type) + value;
}
inline std::string gguf_array(std::uint32_t element, std::uint64_t count, const std::string& elements) {
  return raw(element) + raw(count) + elements;
}

struct GgufWeight {
  std::string name;
  std::vector<std::uint64_t> dims;  // innermost first
  std::uint32_t type = 0;
  std::string bytes;
  std::int64_t offset = -1;  // -1: where it lies
};

inline std::string gguf_file(const std::vector<std::string>& pairs, const std::vector<GgufWeight>& weights,
                             std::size_t alignment = 32, std::uint32_t version = 3) {
  const auto pad = [&](std::string& text) { text.resize((text.size() + alignment - 1) / alignment * alignment); };
  std::string out = "GGUF" + raw(version) + raw(std::uint64_t{weights.size()}) + raw(std::uint64_t{pairs.size()});
  for (const std::string& pair : pairs) out += pair;
  std::string data;
  for (const GgufWeight& weight : weights) {
    pad(data);
    out += gguf_string(weight.name) + raw(static_cast<std::uint32_t>(weight.dims.size()));
    for (const std::uint64_t dim : weight.dims) out += raw(dim);
    out += raw(weight.type) + raw(weight.offset < 0 ? std::uint64_t{data.size()} : std::uint64_t(weight.offset));
    data += weight.bytes;
  }
  pad(out);
  return out + data;
}

}  // namespace mstar::weights::testing
