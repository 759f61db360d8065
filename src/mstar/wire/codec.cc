#include "mstar/wire/codec.h"

#include "mstar/wire/codec_fields.h"
#include "mstar/wire/codec_io.h"

namespace mstar::wire {

Result<std::string> encode(const Frame& frame) {
  BasicWriter<Fields> writer;
  writer(kVersion << 16 | kProcessVersion, frame);
  if (writer.error) return std::move(*writer.error);
  return std::move(writer.bytes);
}

Result<Frame> decode(std::span<const std::byte> bytes) {
  BasicReader<Fields> reader(bytes);
  std::uint32_t version = 0;
  Frame frame;
  reader(version);
  if (reader.failed() || version != (kVersion << 16 | kProcessVersion))
    return internal_error("a frame of version " + std::to_string(version >> 16) + "." +
                          std::to_string(version & 0xffff) + " where " + std::to_string(kVersion) + "." +
                          std::to_string(kProcessVersion) + " is spoken");
  reader(frame);
  if (reader.failed() || !reader.at_end())
    return internal_error("a damaged frame of " + std::to_string(bytes.size()) + " bytes");
  return frame;
}

}  // namespace mstar::wire
