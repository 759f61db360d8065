#include "mstar/text/gguf_tokenizer.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "mstar/text/sentencepiece_model.h"
#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

using TokenType = PieceVocabulary::Type;
constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581

// What the tokenizer.json of the named models splits by, before the byte-level alphabet.
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                     R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";
constexpr std::string_view kOneDigit = R"(\p{N})";
constexpr std::string_view kEastAsian =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+";
constexpr std::string_view kDeepSeekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekCoderEast =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80\xEA\xB0\x80-\xED\x9F\xBF]+";

struct WordSplit {
  std::string_view names;  // of tokenizer.ggml.pre, each between spaces
  std::string_view patterns[5];
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

constexpr WordSplit kSplits[] = {
    {" default gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert olmo mpt ",
     {kGpt2}},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b ", {kOneDigit, kGpt2}},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral ", {kLlama3}, true, true},
    {" glm4 ", {kLlama3}, true},
    {" dbrx smaug-bpe chatglm-bpe ", {kLlama3}},
    {" qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan ", {kQwen2}},
    {" qwen35 ", {kQwen35}},
    {" gpt-4o llama4 o200k ", {kO200k}},
    {" tekken ", {kTekken}, true, true},
    {" deepseek-v3 ", {kThreeDigits, kEastAsian, kDeepSeekWords}},
    {" deepseek-coder ", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekCoderEast, kOneDigit}},
};

TokenType type_of(const GgufTokenizer& metadata, std::size_t id) {
  if (metadata.token_types.empty()) return TokenType::normal;
  const std::int32_t type = metadata.token_types[id];
  return type >= 1 && type <= 6 ? static_cast<TokenType>(type) : TokenType::normal;
}

Status check_arrays(const GgufTokenizer& metadata) {
  const std::size_t count = metadata.tokens.size();
  if (count == 0) return bad_model("tokenizer.ggml.tokens: there are none");
  if (!metadata.token_types.empty() && metadata.token_types.size() != count)
    return bad_model("tokenizer.ggml.token_type: as many as tokens are wanted");
  if (!metadata.scores.empty() && metadata.scores.size() != count)
    return bad_model("tokenizer.ggml.scores: as many as tokens are wanted");
  return {};
}

void add_ends(const GgufTokenizer& metadata, bool bos, bool eos, TokenizerSpec& spec) {
  const auto known = [&](const std::optional<std::int32_t>& id) {
    return id && *id >= 0 && static_cast<std::size_t>(*id) < metadata.tokens.size();
  };
  spec.prefix_ids.clear();
  if (metadata.add_bos.value_or(bos) && known(metadata.bos_id)) spec.prefix_ids.push_back(*metadata.bos_id);
  if (metadata.add_eos.value_or(eos) && known(metadata.eos_id)) spec.suffix_ids.push_back(*metadata.eos_id);
}

// The vocabulary and the added tokens of models whose tokens are as they are.
void add_tokens(const GgufTokenizer& metadata, const std::deque<std::string>& tokens, TokenizerSpec& spec) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty()) continue;
    const auto id = static_cast<std::int32_t>(i);
    spec.model.vocab.emplace_back(tokens[i], id);
    const TokenType type = type_of(metadata, i);
    if (type == TokenType::unknown) spec.model.unknown_token = tokens[i];
    if (type != TokenType::control && type != TokenType::user_defined && type != TokenType::unknown) continue;
    AddedTokenSpec token;
    token.content = tokens[i];
    token.id = id;
    token.special = type != TokenType::user_defined;
    spec.added_tokens.push_back(token);
  }
}

struct Document {
  std::deque<std::string> tokens, merges;
};

Status add_merges(const Document& document, TokenizerSpec& spec) {
  for (const std::string_view merge : document.merges) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 >= merge.size())
      return bad_model("tokenizer.ggml.merges: a merge must be two tokens with a space between");
    spec.model.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return {};
}

std::shared_ptr<Document> document_of(const GgufTokenizer& metadata) {
  auto document = std::make_shared<Document>();
  document->tokens.assign(metadata.tokens.begin(), metadata.tokens.end());
  document->merges.assign(metadata.merges.begin(), metadata.merges.end());
  return document;
}

Result<TokenizerSpec> byte_level(const GgufTokenizer& metadata) {
  const std::string name = " " + (metadata.pre.empty() ? "default" : metadata.pre) + " ";
  const auto* split = std::find_if(std::begin(kSplits), std::end(kSplits), [&](const WordSplit& entry) {
    return entry.names.find(name) != std::string_view::npos;
  });
  if (split == std::end(kSplits) || metadata.pre.find(' ') != std::string::npos)
    return bad_model("tokenizer.ggml.pre: " + metadata.pre + " is not supported");
  TokenizerSpec spec;
  const auto document = document_of(metadata);
  spec.document = document;
  add_tokens(metadata, document->tokens, spec);
  spec.model.unknown_token = {};  // bytes are never unknown
  MSTAR_TRY(add_merges(*document, spec));
  spec.model.ignore_merges = split->ignore_merges;
  for (const std::string_view pattern : split->patterns) {
    if (pattern.empty()) continue;
    PreTokenStepSpec step;
    step.pattern = {pattern, true};
    spec.pre_tokenizer.push_back(step);
  }
  PreTokenStepSpec bytes;
  bytes.kind = PreTokenStepSpec::Kind::byte_level;
  bytes.use_regex = false;
  spec.pre_tokenizer.push_back(bytes);
  spec.decoder.kind = DecoderSpec::Kind::byte_level;
  if (name == " qwen2 " || name == " qwen35 ") spec.normalizer.push_back({NormalStepSpec::Kind::nfc});
  add_ends(metadata, split->add_bos, false, spec);
  return spec;
}

Result<TokenizerSpec> pieces(const GgufTokenizer& metadata, bool is_unigram) {
  if (metadata.scores.empty()) return bad_model("tokenizer.ggml.scores: there are none");
  PieceVocabulary vocabulary;
  vocabulary.is_unigram = is_unigram;
  vocabulary.byte_fallback = !is_unigram;
  vocabulary.dummy_prefix = metadata.add_space_prefix.value_or(true);
  vocabulary.merge_spaces = metadata.remove_extra_spaces.value_or(is_unigram);
  vocabulary.char_map = metadata.char_map;
  for (std::size_t i = 0; i < metadata.tokens.size(); ++i) {
    vocabulary.pieces.push_back({metadata.tokens[i], metadata.scores[i], type_of(metadata, i)});
  }
  MSTAR_TRY_ASSIGN(TokenizerSpec spec, spec_of_pieces(std::move(vocabulary)));
  add_ends(metadata, !is_unigram, is_unigram, spec);
  return spec;
}

// Merges over characters, spaces escaped, bytes for what is missing.
Result<TokenizerSpec> gemma(const GgufTokenizer& metadata) {
  TokenizerSpec spec;
  const auto document = document_of(metadata);
  spec.document = document;
  add_tokens(metadata, document->tokens, spec);
  MSTAR_TRY(add_merges(*document, spec));
  spec.model.kind = ModelKind::bpe;
  spec.model.byte_fallback = true;
  spec.model.fuse_unknown = true;
  NormalStepSpec normal;
  normal.kind = NormalStepSpec::Kind::sentencepiece;
  normal.escape_spaces = true;
  normal.dummy_prefix = metadata.add_space_prefix.value_or(false);
  spec.normalizer.push_back(normal);
  spec.decoder.byte_fallback = true;
  spec.decoder.replacements.emplace_back(kEscapedSpace, " ");
  spec.decoder.strip_spaces = normal.dummy_prefix ? 1 : 0;
  add_ends(metadata, true, false, spec);
  return spec;
}

// GGUF marks what begins a word where BERT marks what goes on.
Result<TokenizerSpec> bert(const GgufTokenizer& metadata) {
  TokenizerSpec spec;
  auto document = std::make_shared<Document>();
  for (std::size_t i = 0; i < metadata.tokens.size(); ++i) {
    const std::string& token = metadata.tokens[i];
    const TokenType type = type_of(metadata, i);
    const bool plain = type == TokenType::normal || type == TokenType::unused;
    const bool bracketed = token.starts_with('[') && token.ends_with(']');
    if (token.starts_with(kEscapedSpace)) {
      document->tokens.push_back(token.substr(kEscapedSpace.size()));
    } else {
      document->tokens.push_back(plain && !bracketed && !token.empty() ? "##" + token : token);
    }
  }
  spec.document = document;
  spec.model.kind = ModelKind::word_piece;
  spec.model.continuing_prefix = "##";
  spec.model.unknown_token = "[UNK]";
  add_tokens(metadata, document->tokens, spec);
  NormalStepSpec normal;
  normal.kind = NormalStepSpec::Kind::bert;
  normal.clean_text = normal.space_chinese = normal.lower = normal.drop_accents = true;
  spec.normalizer.push_back(normal);
  PreTokenStepSpec step;
  step.pattern = {"\\s+", true};
  step.behavior = SplitBehavior::removed;
  spec.pre_tokenizer.push_back(step);
  step.pattern = {R"([!-/:-@\[-`{-~\p{P}])", true};
  step.behavior = SplitBehavior::isolated;
  spec.pre_tokenizer.push_back(step);
  spec.decoder.kind = DecoderSpec::Kind::word_piece;
  spec.decoder.continuing_prefix = "##";
  spec.decoder.clean_up = true;
  add_ends(metadata, true, true, spec);
  return spec;
}

}  // namespace

Result<TokenizerSpec> read_gguf_tokenizer(const GgufTokenizer& metadata) {
  MSTAR_TRY(check_arrays(metadata));
  if (metadata.model == "gpt2") return byte_level(metadata);
  if (metadata.model == "llama") return pieces(metadata, false);
  if (metadata.model == "t5") return pieces(metadata, true);
  if (metadata.model == "gemma4") return gemma(metadata);
  if (metadata.model == "bert") return bert(metadata);
  return bad_model("tokenizer.ggml.model: " + metadata.model + " is not supported");
}

}  // namespace mstar::text
