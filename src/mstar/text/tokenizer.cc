#include "mstar/text/tokenizer.h"

#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <variant>

#include "mstar/text/added_tokens.h"
#include "mstar/text/bpe.h"
#include "mstar/text/gguf_tokenizer.h"
#include "mstar/text/normalizer.h"
#include "mstar/text/pre_tokenizer.h"
#include "mstar/text/sentencepiece_model.h"
#include "mstar/text/special_guard.h"
#include "mstar/text/token_decoder.h"
#include "mstar/text/tokenizer_json.h"
#include "mstar/text/unigram.h"
#include "mstar/text/utf8.h"
#include "mstar/text/vocabulary.h"
#include "mstar/text/word_piece.h"

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

// At most `most` bytes, no character cut.
std::size_t whole_characters(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text.size();
  while (most > 0 && (static_cast<std::uint8_t>(text[most]) & 0xC0) == 0x80) --most;
  return most;
}

}  // namespace

struct Tokenizer::Parts {
  text::Vocabulary vocabulary;
  text::Normalizer normalizer;
  text::PreTokenizer pre_tokenizer;
  std::variant<text::Bpe, text::Unigram, text::WordPiece> model;
  text::AddedTokenFinder raw_tokens;         // looked for in the text as it is
  text::AddedTokenFinder normalized_tokens;  // and in the normalised text
  text::SpecialGuard special_guard;
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;
  std::int64_t strip_spaces = 0;  // from the start of a decoded text
  bool strip_each_token = false;

  struct Scratch {
    text::Pieces pieces;
    text::BpeScratch bpe;
    text::UnigramScratch unigram;
    std::vector<text::TokenSpan> spans;
    std::vector<text::TokenSpan> normalized_spans;
    std::string unguarded;
  };
  // How a part of the text is to be read.
  struct PartRules {
    text::TakeTokens take;
    bool guarded;
    bool at_start;        // of the whole text
    bool prefix_allowed;  // not after an added token that is not special
  };

  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    if (const auto* bpe = std::get_if<text::Bpe>(&model)) {
      bpe->encode(piece, scratch.bpe, ids);
    } else if (const auto* unigram = std::get_if<text::Unigram>(&model)) {
      unigram->encode(piece, scratch.unigram, ids);
    } else if (const auto* word_piece = std::get_if<text::WordPiece>(&model)) {
      word_piece->encode(piece, ids);
    }
  }

  void encode_plain(std::string_view part, bool at_start, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    pre_tokenizer.split(part, at_start, scratch.pieces);
    for (std::string_view piece : scratch.pieces.views) {
      while (!piece.empty()) {
        const std::size_t size = whole_characters(piece, kMaxPieceBytes);
        encode_piece(piece.substr(0, size), scratch, ids);
        piece.remove_prefix(size);
      }
    }
  }

  void encode_part(std::string_view part, PartRules rules, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    const bool holds_guard = rules.guarded && part.find(text::kGuard) != std::string_view::npos;
    std::string normal;
    if (!normalizer.empty()) {
      normal = holds_guard ? text::normalize_guarded(normalizer, part, rules.prefix_allowed)
                           : normalizer.apply(part, rules.prefix_allowed);
      part = normal;
    }
    normalized_tokens.split(part, rules.take, scratch.normalized_spans);
    for (const text::TokenSpan& span : scratch.normalized_spans) {
      if (span.id >= 0) {
        ids.push_back(span.id);
        continue;
      }
      std::string_view plain = part.substr(span.begin, span.end - span.begin);
      if (holds_guard) {
        scratch.unguarded = text::without_guards(plain);
        plain = scratch.unguarded;
      }
      encode_plain(plain, rules.at_start && span.begin == 0, scratch, ids);
    }
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  MSTAR_TRY_ASSIGN(const std::string bytes, read_file(path));
  auto tokenizer = path.ends_with(".model") ? parse_sentencepiece(bytes) : parse(bytes);
  if (!tokenizer) return std::move(tokenizer.error()).in(path);
  return tokenizer;
}

Result<std::unique_ptr<Tokenizer::Parts>> Tokenizer::build(const text::TokenizerSpec& spec) {
  auto parts = std::make_unique<Parts>();
  MSTAR_TRY_ASSIGN(parts->normalizer, text::Normalizer::compile(spec.normalizer));
  MSTAR_TRY_ASSIGN(parts->pre_tokenizer, text::PreTokenizer::compile(spec.pre_tokenizer));

  std::deque<std::string> texts;  // what the entries' views point into
  std::vector<text::Vocabulary::Entry> entries;
  entries.reserve(spec.model.vocab.size() + spec.added_tokens.size());
  const auto add = [&](std::string_view token, std::string_view spelt, std::int32_t id, bool added, bool special) {
    const std::string& bytes = texts.emplace_back(text::decoded_token(spec.decoder, spelt, false));
    std::string first = text::decoded_token(spec.decoder, spelt, true);
    std::string_view first_bytes = bytes;
    if (first != bytes) first_bytes = texts.emplace_back(std::move(first));
    entries.push_back({token, bytes, first_bytes, id, added, special});
  };
  for (const auto& [token, id] : spec.model.vocab) add(token, token, id, false, false);
  for (const text::AddedTokenSpec& token : spec.added_tokens) {
    const bool normalize = token.normalized && !parts->normalizer.empty();
    const std::string normal = normalize ? parts->normalizer.apply(token.content) : std::string(token.content);
    (token.normalized ? parts->normalized_tokens : parts->raw_tokens).add(normal, token);
    if (token.special) parts->special_guard.add(token.content);
    add(token.content, normal, token.id, true, token.special);
  }
  MSTAR_TRY_ASSIGN(parts->vocabulary, text::Vocabulary::build(entries));
  if (spec.model.kind == text::ModelKind::unigram) {
    MSTAR_TRY_ASSIGN(parts->model, text::Unigram::build(spec.model, parts->vocabulary));
  } else if (spec.model.kind == text::ModelKind::word_piece) {
    MSTAR_TRY_ASSIGN(parts->model, text::WordPiece::build(spec.model, parts->vocabulary));
  } else {
    MSTAR_TRY_ASSIGN(parts->model, text::Bpe::build(spec.model, parts->vocabulary));
  }
  parts->prefix_ids = spec.prefix_ids;
  parts->suffix_ids = spec.suffix_ids;
  parts->strip_spaces = spec.decoder.strip_spaces;
  parts->strip_each_token = spec.decoder.strip_each_token;
  return parts;
}

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  MSTAR_TRY_ASSIGN(const text::TokenizerSpec spec, text::read_tokenizer_json(json));
  MSTAR_TRY_ASSIGN(auto parts, build(spec));
  return Tokenizer(std::move(parts));
}

Result<Tokenizer> Tokenizer::parse_sentencepiece(std::string_view model) {
  MSTAR_TRY_ASSIGN(const text::TokenizerSpec spec, text::read_sentencepiece(model));
  MSTAR_TRY_ASSIGN(auto parts, build(spec));
  return Tokenizer(std::move(parts));
}

Result<Tokenizer> Tokenizer::from_gguf(const GgufTokenizer& metadata) {
  MSTAR_TRY_ASSIGN(const text::TokenizerSpec spec, text::read_gguf_tokenizer(metadata));
  MSTAR_TRY_ASSIGN(auto parts, build(spec));
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
  bool prefix_allowed = true;
  for (const text::TokenSpan& span : scratch.spans) {
    if (span.id >= 0) {
      ids.push_back(span.id);
    } else {
      const Parts::PartRules rules{take, options.guarded, span.begin == 0, prefix_allowed};
      parts_->encode_part(text.substr(span.begin, span.end - span.begin), rules, scratch, ids);
    }
    prefix_allowed = span.id >= 0 && is_special(span.id);
  }
  if (options.add_special) ids.insert(ids.end(), parts_->suffix_ids.begin(), parts_->suffix_ids.end());
  return ids;
}

std::string Tokenizer::guard(std::string_view user_text) const {
  std::string text = is_valid_utf8(user_text) ? std::string(user_text) : replace_invalid_utf8(user_text);
  for (std::size_t at = text.find(text::kGuard); at != std::string::npos; at = text.find(text::kGuard, at))
    text.replace(at, text::kGuard.size(), kReplacementUtf8);
  return parts_->special_guard.guard(text, parts_->raw_tokens, parts_->normalized_tokens, parts_->normalizer);
}

void Tokenizer::append_bytes(std::int32_t id, DecodeState& state, std::string& out) const {
  if (id_to_token(id).empty()) return;
  std::string_view bytes = state.started ? token_bytes(id) : parts_->vocabulary.first_bytes(id);
  state.started = true;
  while (state.stripped_spaces < parts_->strip_spaces && bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
    ++state.stripped_spaces;
  }
  if (!bytes.empty()) {
    state.stripped_spaces = parts_->strip_spaces;
  } else if (parts_->strip_each_token) {
    state.stripped_spaces = 0;
  }
  out.append(bytes);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  DecodeState state;
  for (const std::int32_t id : ids) {
    if (!skip_special || !is_special(id)) append_bytes(id, state, bytes);
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
