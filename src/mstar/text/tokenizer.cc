#include "mstar/text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "mstar/text/added_tokens.h"
#include "mstar/text/bpe.h"
#include "mstar/text/normalizer.h"
#include "mstar/text/pre_tokenizer.h"
#include "mstar/text/tokenizer_json.h"
#include "mstar/text/utf8.h"
#include "mstar/text/vocabulary.h"

namespace mstar {
namespace {

constexpr std::uintmax_t kMaxFileBytes = 256u << 20;
// Positions within a piece are 32-bit.
constexpr std::size_t kMaxPieceBytes = std::numeric_limits<std::int32_t>::max();

Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return invalid_request("can't read " + path + ": " + error.message());
  if (size > kMaxFileBytes) return bad_model(path + " is longer than 256 MiB");
  std::ifstream file(path, std::ios::binary);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file || file.gcount() != static_cast<std::streamsize>(bytes.size()))
    return invalid_request("can't read " + path);
  return bytes;
}

}  // namespace

struct Tokenizer::Parts {
  text::Vocabulary vocabulary;
  text::Normalizer normalizer;
  text::PreTokenizer pre_tokenizer;
  text::Bpe bpe;
  text::AddedTokenFinder raw_tokens;         // looked for in the text as it is
  text::AddedTokenFinder normalized_tokens;  // and in the normalised text
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;

  struct Scratch {
    text::Pieces pieces;
    text::BpeScratch bpe;
    std::vector<text::TokenSpan> spans;
    std::vector<text::TokenSpan> normalized_spans;
  };

  void encode_plain(std::string_view part, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    pre_tokenizer.split(part, scratch.pieces);
    for (std::string_view piece : scratch.pieces.views) {
      for (; !piece.empty(); piece.remove_prefix(std::min(piece.size(), kMaxPieceBytes))) {
        bpe.encode(piece.substr(0, kMaxPieceBytes), scratch.bpe, ids);
      }
    }
  }

  void encode_part(std::string_view part, text::TakeTokens take, Scratch& scratch,
                   std::vector<std::int32_t>& ids) const {
    const std::string normal = normalizer.empty() ? std::string() : normalizer.apply(part);
    if (!normalizer.empty()) part = normal;
    normalized_tokens.split(part, take, scratch.normalized_spans);
    for (const text::TokenSpan& span : scratch.normalized_spans) {
      if (span.id >= 0) {
        ids.push_back(span.id);
      } else {
        encode_plain(part.substr(span.begin, span.end - span.begin), scratch, ids);
      }
    }
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  MSTAR_TRY_ASSIGN(const std::string json, read_file(path));
  auto tokenizer = parse(json);
  if (!tokenizer) return std::move(tokenizer.error()).in(path);
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  MSTAR_TRY_ASSIGN(const text::TokenizerSpec spec, text::read_tokenizer_json(json));
  auto parts = std::make_unique<Parts>();
  MSTAR_TRY_ASSIGN(parts->normalizer, text::Normalizer::compile(spec.normalizer));
  MSTAR_TRY_ASSIGN(parts->pre_tokenizer, text::PreTokenizer::compile(spec.pre_tokenizer));

  std::vector<std::string> normal_forms;
  normal_forms.reserve(spec.added_tokens.size());
  std::vector<text::Vocabulary::Entry> entries;
  entries.reserve(spec.model.vocab.size() + spec.added_tokens.size());
  for (const auto& [token, id] : spec.model.vocab) entries.push_back({token, token, id, false, false});
  for (const text::AddedTokenSpec& token : spec.added_tokens) {
    const bool normalize = token.normalized && !parts->normalizer.empty();
    normal_forms.push_back(normalize ? parts->normalizer.apply(token.content) : std::string(token.content));
    (token.normalized ? parts->normalized_tokens : parts->raw_tokens).add(normal_forms.back(), token);
    entries.push_back({token.content, normal_forms.back(), token.id, true, token.special});
  }
  MSTAR_TRY_ASSIGN(parts->vocabulary, text::Vocabulary::build(entries));
  MSTAR_TRY_ASSIGN(parts->bpe, text::Bpe::build(spec.model, parts->vocabulary));
  parts->prefix_ids = spec.prefix_ids;
  parts->suffix_ids = spec.suffix_ids;
  return Tokenizer(std::move(parts));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  using text::TakeTokens;
  std::string mended;
  if (!is_valid_utf8(text)) {
    mended = replace_invalid_utf8(text);
    text = mended;
  }
  const TakeTokens take = options.parse_special ? TakeTokens::all
                          : options.parse_added ? TakeTokens::all_but_special
                                                : TakeTokens::none;
  std::vector<std::int32_t> ids;
  if (options.add_special) ids = parts_->prefix_ids;
  Parts::Scratch scratch;
  parts_->raw_tokens.split(text, take, scratch.spans);
  for (const text::TokenSpan& span : scratch.spans) {
    if (span.id >= 0) {
      ids.push_back(span.id);
    } else {
      parts_->encode_part(text.substr(span.begin, span.end - span.begin), take, scratch, ids);
    }
  }
  if (options.add_special) ids.insert(ids.end(), parts_->suffix_ids.begin(), parts_->suffix_ids.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes.append(token_bytes(id));
  }
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  return parts_->vocabulary.find(token);
}
std::string_view Tokenizer::id_to_token(std::int32_t id) const { return parts_->vocabulary.token(id); }
std::string_view Tokenizer::token_bytes(std::int32_t id) const { return parts_->vocabulary.bytes(id); }
bool Tokenizer::is_special(std::int32_t id) const { return parts_->vocabulary.is_special(id); }
bool Tokenizer::is_added(std::int32_t id) const { return parts_->vocabulary.is_added(id); }
std::int32_t Tokenizer::vocab_size() const { return parts_->vocabulary.size(); }

}  // namespace mstar
