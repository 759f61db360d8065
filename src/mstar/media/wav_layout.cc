#include "mstar/media/wav_layout.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace mstar {
namespace {

constexpr int kMaxChunks = 4096;
// Lengths from here up are placeholders (0xffffffff, 0x7fffffff, 0x7ffff000 less a header) when the file is shorter.
constexpr std::uint64_t kPlaceholderBytes = 0x7ff00000;
constexpr std::uint64_t kLongestBytes = 0xffffffff;

Error damaged(std::string what) { return invalid_request("the WAV file is damaged: " + std::move(what)); }

// Fixed-size reads of header fields in the file's byte order.
class HeaderReader {
 public:
  HeaderReader(const ByteSource& bytes, bool big_endian) : bytes_(bytes), big_endian_(big_endian) {}

  Result<std::string> text(std::uint64_t offset, std::size_t count) const {
    std::string out(count, '\0');
    MSTAR_TRY_ASSIGN(const std::size_t got, bytes_.read_at(offset, std::as_writable_bytes(std::span(out))));
    if (got < count) return damaged("it ends inside its header, at byte " + std::to_string(offset + got));
    return out;
  }
  Result<std::uint64_t> number(std::uint64_t offset, std::size_t count) const {
    MSTAR_TRY_ASSIGN(const std::string raw, text(offset, count));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value = value << 8 | static_cast<std::uint8_t>(raw[big_endian_ ? i : count - 1 - i]);
    }
    return value;
  }

 private:
  const ByteSource& bytes_;
  bool big_endian_;
};

Status read_format_chunk(const HeaderReader& header, std::uint64_t at, std::uint64_t size, WavLayout& layout) {
  if (size < 16) return damaged("its fmt chunk has " + std::to_string(size) + " bytes instead of at least 16");
  MSTAR_TRY_ASSIGN(const auto tag, header.number(at, 2));
  MSTAR_TRY_ASSIGN(const auto channels, header.number(at + 2, 2));
  MSTAR_TRY_ASSIGN(const auto rate, header.number(at + 4, 4));
  MSTAR_TRY_ASSIGN(const auto block, header.number(at + 12, 2));
  MSTAR_TRY_ASSIGN(const auto bits, header.number(at + 14, 2));
  layout.format_tag = static_cast<std::uint16_t>(tag);
  layout.num_channels = static_cast<std::uint16_t>(channels);
  layout.rate_hz = static_cast<std::uint32_t>(rate);
  layout.block_bytes = static_cast<std::uint16_t>(block);
  layout.bits = static_cast<std::uint16_t>(bits);
  return ok_status();
}

bool is_streamed(const WavLayout& layout, std::uint64_t riff_bytes) {
  if (layout.declared_bytes == kLongestBytes) return true;
  if (layout.declared_bytes > 0) {
    return layout.declared_bytes >= kPlaceholderBytes && layout.declared_bytes > layout.available_bytes;
  }
  // No samples declared: an empty recording, unless the outer length was left open as well.
  const bool outer_is_open = riff_bytes >= kPlaceholderBytes || riff_bytes <= layout.samples_offset;
  return layout.available_bytes > 0 && outer_is_open;
}

}  // namespace

Result<WavLayout> read_wav_layout(const ByteSource& bytes) {
  MSTAR_TRY_ASSIGN(const std::string magic, HeaderReader(bytes, false).text(0, 4));
  WavLayout layout;
  layout.big_endian = magic == "RIFX";
  const HeaderReader header(bytes, layout.big_endian);
  MSTAR_TRY_ASSIGN(const std::uint64_t riff_bytes, header.number(4, 4));
  bool has_format = false;
  std::optional<std::uint64_t> long_samples_bytes;
  std::uint64_t at = 12;
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
    if (at >= bytes.size_bytes()) return damaged("it ends before any samples (no data chunk)");
    MSTAR_TRY_ASSIGN(const std::string id, header.text(at, 4));
    MSTAR_TRY_ASSIGN(const std::uint64_t size, header.number(at + 4, 4));
    at += 8;
    if (id == "data") {
      if (!has_format) return damaged("its samples come before any description of them (no fmt chunk)");
      layout.samples_offset = at;
      layout.declared_bytes = size == kLongestBytes && long_samples_bytes ? *long_samples_bytes : size;
      layout.available_bytes = bytes.size_bytes() - std::min(at, bytes.size_bytes());
      layout.streamed = is_streamed(layout, riff_bytes);
      return layout;
    }
    if (id == "fmt ") {
      MSTAR_TRY(read_format_chunk(header, at, size, layout));
      has_format = true;
    }
    if (id == "ds64" && size >= 16) {
      MSTAR_TRY_ASSIGN(long_samples_bytes, header.number(at + 8, 8));
    }
    at += size + (size & 1);
  }
  return damaged("it has more than " + std::to_string(kMaxChunks) + " chunks before its samples");
}

Status check_wav_layout(const WavLayout& layout) {
  if (layout.num_channels == 0) return damaged("it declares no channels");
  const bool is_linear = layout.format_tag == 1 || layout.format_tag == 3;
  if (is_linear && layout.block_bytes != 0) {
    const unsigned sample_bytes = layout.block_bytes / layout.num_channels;
    const unsigned wanted_bytes = (layout.bits + 7u) / 8u;
    const bool is_padded_24 = wanted_bytes == 3 && sample_bytes == 4;
    if (layout.block_bytes % layout.num_channels != 0 || (sample_bytes != wanted_bytes && !is_padded_24)) {
      return damaged(std::to_string(layout.num_channels) + " channels of " + std::to_string(layout.bits) +
                     " bits do not make frames of " + std::to_string(layout.block_bytes) + " bytes");
    }
  }
  if (layout.streamed && layout.available_bytes > kLongestBytes) {
    return invalid_request(
        "the WAV file has more than 4 GiB of samples, which its header cannot tell: write RF64 or FLAC");
  }
  if (layout.streamed) return ok_status();
  // Some programs write the whole file's length where the samples' belongs: a shortage up to the header's size is that.
  if (layout.declared_bytes > layout.available_bytes + layout.samples_offset) {
    return invalid_request("the WAV file is truncated: its header declares " + std::to_string(layout.declared_bytes) +
                           " bytes of samples, but " + std::to_string(layout.available_bytes) + " are there");
  }
  return ok_status();
}

}  // namespace mstar
