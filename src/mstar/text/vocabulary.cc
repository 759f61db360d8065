#include "mstar/text/vocabulary.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace mstar::text {
namespace {

// Published vocabularies have gaps of a few thousand ids at most; the table is sized by the largest id.
constexpr std::size_t kMaxGap = 65536;

Error twice(std::string_view what, std::string_view token) {
  std::string message = "tokenizer.json: ";
  message.append(what).append(" of token ").append(token);
  return bad_model(std::move(message));
}

}  // namespace

Result<Vocabulary> Vocabulary::build(const std::vector<Entry>& entries) {
  std::size_t num_ids = 0, text_bytes = 0;
  for (const Entry& entry : entries) {
    if (entry.id < 0) return bad_model("tokenizer.json: a negative token id");
    num_ids = std::max(num_ids, static_cast<std::size_t>(entry.id) + 1);
    text_bytes += entry.token.size() + entry.bytes.size();
    if (entry.first_bytes != entry.bytes) text_bytes += entry.first_bytes.size();
  }
  if (num_ids > 4 * entries.size() + kMaxGap) return bad_model("tokenizer.json: token ids are too sparse");

  Vocabulary out;
  out.text_ = std::make_unique<char[]>(text_bytes + 1);
  out.tokens_.resize(num_ids);
  out.ids_.reserve(entries.size());
  std::size_t used = 0;
  const auto keep = [&](std::string_view text) {
    char* place = out.text_.get() + used;
    if (!text.empty()) std::memcpy(place, text.data(), text.size());
    used += text.size();
    return std::string_view(place, text.size());
  };
  for (const Entry& entry : entries) {
    Token& slot = out.tokens_[index(entry.id)];
    if (slot.token.data() != nullptr && slot.token != entry.token) return twice("the id is shared", entry.token);
    slot.is_added = entry.is_added;
    slot.is_special = slot.is_special || entry.is_special;
    slot.token = keep(entry.token);
    slot.bytes = keep(entry.bytes);
    slot.first_bytes = entry.first_bytes == entry.bytes ? slot.bytes : keep(entry.first_bytes);
    const auto [place, added] = out.ids_.emplace(slot.token, entry.id);
    if (!added && place->second != entry.id) return twice("there are two ids", entry.token);
  }
  return out;
}

std::optional<std::int32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

bool find_byte_tokens(const Vocabulary& vocabulary, std::array<std::int32_t, 256>& ids) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string name = "<0x00>";
    name[3] = "0123456789ABCDEF"[byte >> 4];
    name[4] = "0123456789ABCDEF"[byte & 15];
    ids[byte] = vocabulary.find(name).value_or(-1);
    if (ids[byte] < 0) return false;
  }
  return true;
}

}  // namespace mstar::text
