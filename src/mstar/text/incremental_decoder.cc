#include "mstar/text/incremental_decoder.h"

#include "mstar/text/utf8.h"

namespace mstar {

std::string IncrementalDecoder::push(std::int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  tokenizer_->append_bytes(id, state_, waiting_);
  std::string text;
  const std::size_t kept = append_complete_utf8(waiting_, text);
  waiting_.erase(0, waiting_.size() - kept);
  return text;
}

std::string IncrementalDecoder::finish() {
  std::string text(waiting_.empty() ? std::string_view() : kReplacementUtf8);
  waiting_.clear();
  state_ = {};
  return text;
}

}  // namespace mstar
