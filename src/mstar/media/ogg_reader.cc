// Ogg files: libogg checks every page before libsndfile decodes the streams one after another.
#include <ogg/ogg.h>

#include <string>
#include <utility>
#include <vector>

#include "mstar/media/frame_reader.h"

namespace mstar {
namespace {

constexpr long kReadBytes = 64 << 10;
constexpr std::size_t kMaxLinks = 1024;

Error damaged(std::uint64_t offset) {
  return invalid_request("the OGG file is damaged or truncated: no whole Ogg page at byte " + std::to_string(offset));
}

// Owns libogg's page buffer, which holds one page and one read at most.
struct PageSync {
  PageSync() { ogg_sync_init(&state); }
  ~PageSync() { ogg_sync_clear(&state); }
  PageSync(const PageSync&) = delete;
  PageSync& operator=(const PageSync&) = delete;

  ogg_sync_state state;
};

// Collects where each chained stream starts: at a first page that follows a page with data.
struct LinkStarts {
  std::vector<std::uint64_t> offsets;
  bool in_headers = false;

  void add_page(const ogg_page& page, std::uint64_t offset) {
    const bool is_first = ogg_page_bos(&page) != 0;
    if (is_first && !in_headers) offsets.push_back(offset);
    in_headers = is_first;
  }
};

// Reads every page, checksums included. Returns the offsets of the streams of the chain, the first of them 0.
Result<std::vector<std::uint64_t>> find_links(std::shared_ptr<const ByteSource> source) {
  ByteCursor cursor(source);
  PageSync sync;
  LinkStarts links;
  std::uint64_t offset = 0;
  while (offset < source->size_bytes()) {
    ogg_page page;
    const long step = ogg_sync_pageseek(&sync.state, &page);
    if (step < 0) return damaged(offset);
    if (step > 0) {
      links.add_page(page, offset);
      if (links.offsets.size() > kMaxLinks) return invalid_request("the OGG file is a chain of too many streams");
      offset += static_cast<std::uint64_t>(step);
      continue;
    }
    char* buffer = ogg_sync_buffer(&sync.state, kReadBytes);
    if (!buffer) return exhausted("out of memory while reading an OGG file");
    const std::int64_t got = cursor.read(buffer, kReadBytes);
    MSTAR_TRY(Status(cursor.status()));
    if (got == 0) return damaged(offset);
    ogg_sync_wrote(&sync.state, static_cast<long>(got));
  }
  if (links.offsets.empty()) return damaged(0);
  return std::move(links.offsets);
}

// The streams of a chain in turn. All must have one rate and channel count.
class OggChain final : public FrameReader {
 public:
  OggChain(std::shared_ptr<const ByteSource> source, std::vector<std::uint64_t> links)
      : source_(std::move(source)), links_(std::move(links)) {}

  // Leaves is_open() false if libsndfile refuses the first stream.
  Status open() {
    MSTAR_TRY(open_next());
    if (!current_) return ok_status();
    format_ = current_->format();
    if (links_.size() > 1) format_.num_frames.reset();
    return ok_status();
  }
  bool is_open() const { return current_ != nullptr; }
  const AudioFormat& format() const override { return format_; }
  Result<std::size_t> read(std::span<float> interleaved) override {
    while (true) {
      MSTAR_TRY_ASSIGN(const std::size_t got, current_->read(interleaved));
      if (got > 0 || next_ == links_.size()) return got;
      MSTAR_TRY(open_next());
      if (!current_) return damaged(links_[next_ - 1]);
      const AudioFormat& next = current_->format();
      if (next.rate_hz != format_.rate_hz || next.num_channels != format_.num_channels) {
        return invalid_request("the OGG file is a chain whose streams differ in sample rate or channel count");
      }
    }
  }

 private:
  Status open_next() {
    const std::uint64_t start = links_[next_];
    const std::uint64_t end = ++next_ < links_.size() ? links_[next_] : source_->size_bytes();
    MSTAR_TRY_ASSIGN(current_, open_sndfile(sub_bytes(source_, start, end - start), Container::ogg));
    return ok_status();
  }

  std::shared_ptr<const ByteSource> source_;
  std::vector<std::uint64_t> links_;
  std::size_t next_ = 0;
  std::unique_ptr<FrameReader> current_;
  AudioFormat format_;
};

}  // namespace

Result<std::unique_ptr<FrameReader>> open_ogg(std::shared_ptr<const ByteSource> bytes) {
  MSTAR_TRY_ASSIGN(auto links, find_links(bytes));
  auto chain = std::make_unique<OggChain>(std::move(bytes), std::move(links));
  MSTAR_TRY(chain->open());
  if (!chain->is_open()) return std::unique_ptr<FrameReader>();
  return std::unique_ptr<FrameReader>(std::move(chain));
}

}  // namespace mstar
