#include "mstar/media/container.h"

#include <array>
#include <string>

namespace mstar {
namespace {

constexpr std::size_t kHeadBytes = 16;
constexpr int kMaxTags = 8;

bool at(std::string_view head, std::size_t offset, std::string_view magic) {
  return head.size() >= offset + magic.size() && head.substr(offset, magic.size()) == magic;
}

std::uint8_t byte_at(std::string_view head, std::size_t i) { return static_cast<std::uint8_t>(head[i]); }

// The four-byte header of an MPEG audio frame: sync, a known version, layer, bit rate and sample rate.
bool is_mpeg_header(std::string_view head) {
  if (head.size() < 4 || byte_at(head, 0) != 0xff || (byte_at(head, 1) & 0xe0) != 0xe0) return false;
  const int version = (byte_at(head, 1) >> 3) & 3;
  const int layer = (byte_at(head, 1) >> 1) & 3;
  return version != 1 && layer != 0 && (byte_at(head, 2) >> 4) != 15 && ((byte_at(head, 2) >> 2) & 3) != 3;
}

// ADTS has the same sync with layer 0, and a sampling index of at most 12.
bool is_adts_header(std::string_view head) {
  return head.size() >= 4 && byte_at(head, 0) == 0xff && (byte_at(head, 1) & 0xf6) == 0xf0 &&
         ((byte_at(head, 2) >> 2) & 15) <= 12;
}

Container from_head(std::string_view head) {
  if ((at(head, 0, "RIFF") || at(head, 0, "RIFX") || at(head, 0, "RF64")) && at(head, 8, "WAVE")) return Container::wav;
  if (at(head, 0, "RIFF") && at(head, 8, "AVI ")) return Container::avi;
  if (at(head, 0, "riff\x2e\x91\xcf\x11")) return Container::w64;
  if (at(head, 0, "FORM") && (at(head, 8, "AIFF") || at(head, 8, "AIFC"))) return Container::aiff;
  if (at(head, 0, ".snd") || at(head, 0, "dns.")) return Container::au;
  if (at(head, 0, "caff")) return Container::caf;
  if (at(head, 0, "fLaC")) return Container::flac;
  if (at(head, 0, "OggS")) return Container::ogg;
  if (at(head, 4, "ftyp") || at(head, 4, "moov") || at(head, 4, "mdat")) return Container::mp4;
  if (at(head, 0, "\x1a\x45\xdf\xa3")) return Container::matroska;
  if (at(head, 0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11")) return Container::asf;
  if (at(head, 0, "#!AMR")) return Container::amr;
  if (at(head, 0, "FLV\x01")) return Container::flv;
  if (is_mpeg_header(head)) return Container::mpeg_audio;
  if (is_adts_header(head)) return Container::adts;
  return Container::unknown;
}

// Bytes of the ID3v2 tag that `head` starts with, or 0. The size is four 7-bit digits.
std::uint64_t id3_bytes(std::string_view head) {
  if (!at(head, 0, "ID3") || head.size() < 10) return 0;
  std::uint64_t size = 0;
  for (std::size_t i = 6; i < 10; ++i) {
    if (byte_at(head, i) >= 0x80) return 0;
    size = size << 7 | byte_at(head, i);
  }
  const bool has_footer = (byte_at(head, 5) & 0x10) != 0;
  return size + (has_footer ? 20 : 10);
}

}  // namespace

std::string_view container_name(Container container) {
  switch (container) {
    case Container::unknown:
      return "unknown";
    case Container::wav:
      return "WAV";
    case Container::w64:
      return "W64";
    case Container::aiff:
      return "AIFF";
    case Container::au:
      return "AU";
    case Container::caf:
      return "CAF";
    case Container::flac:
      return "FLAC";
    case Container::ogg:
      return "OGG";
    case Container::mpeg_audio:
      return "MP3";
    case Container::mp4:
      return "MP4/M4A";
    case Container::matroska:
      return "WebM/Matroska";
    case Container::adts:
      return "AAC";
    case Container::asf:
      return "WMA/ASF";
    case Container::amr:
      return "AMR";
    case Container::avi:
      return "AVI";
    case Container::flv:
      return "FLV";
  }
  return "unknown";
}

Result<Sniffed> sniff_container(const ByteSource& bytes) {
  std::uint64_t offset = 0;
  for (int tag = 0; tag <= kMaxTags; ++tag) {
    std::array<char, kHeadBytes> buffer = {};
    MSTAR_TRY_ASSIGN(const std::size_t got, bytes.read_at(offset, std::as_writable_bytes(std::span(buffer))));
    const std::string_view head(buffer.data(), got);
    const std::uint64_t tag_bytes = id3_bytes(head);
    if (tag_bytes == 0) {
      const Container found = from_head(head);
      // An ID3 tag is an MP3's: what follows may be padding that the decoder skips.
      return Sniffed{found == Container::unknown && tag > 0 ? Container::mpeg_audio : found, offset};
    }
    offset += tag_bytes;
  }
  return Sniffed{Container::unknown, offset};
}

}  // namespace mstar
