#include "mstar/text/unigram.h"

#include <algorithm>
#include <cmath>

#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

constexpr double kUnknownPenalty = 10;

}  // namespace

Result<Unigram> Unigram::build(const ModelSpec& spec, const Vocabulary& vocabulary) {
  Unigram out;
  out.single_precision_ = spec.single_precision;
  out.byte_fallback_ = spec.byte_fallback && find_byte_tokens(vocabulary, out.byte_ids_);
  if (const auto id = vocabulary.find(spec.unknown_token); id && !spec.unknown_token.empty()) out.unknown_id_ = *id;
  if (out.unknown_id_ < 0 && !out.byte_fallback_)
    return bad_model("tokenizer: the Unigram model lacks an unknown token");
  std::size_t num_bytes = 0;
  for (const auto& [token, id] : spec.vocab) num_bytes += token.size();
  out.pieces_ = ByteTrie(num_bytes / 2);
  out.scores_.assign(static_cast<std::size_t>(vocabulary.size()), 0);
  double lowest = 0;
  bool any = false;
  for (std::size_t i = 0; i < spec.vocab.size(); ++i) {
    const auto& [token, id] = spec.vocab[i];
    const double score = i < spec.scores.size() ? spec.scores[i] : 0;
    if (std::isnan(score)) return bad_model("tokenizer: a score is no number");
    if (!std::isfinite(score)) continue;
    lowest = any ? std::min(lowest, score) : score;
    any = true;
    // A special token is out of the reach of texts.
    if (token.empty() || vocabulary.is_special(id)) continue;
    out.pieces_.insert(token, id);
    out.scores_[static_cast<std::size_t>(id)] = score;
  }
  out.unknown_score_ = out.add(lowest, -kUnknownPenalty);
  return out;
}

void Unigram::find_best(std::string_view text, std::vector<UnigramScratch::Node>& nodes) const {
  nodes.assign(text.size() + 1, {});
  nodes[0].begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_step(text.substr(at)).length_bytes;
    const double base = nodes[at].score;
    bool covers_one = false;
    const auto offer = [&](std::size_t size, std::int32_t id, double score) {
      UnigramScratch::Node& node = nodes[at + size];
      const double total = add(score, base);
      if (node.begin < 0 || total > node.score) node = {total, id, static_cast<std::int32_t>(at)};
    };
    pieces_.each_prefix(text.substr(at), [&](std::size_t size, std::int32_t id) {
      offer(size, id, scores_[static_cast<std::size_t>(id)]);
      covers_one = covers_one || size == length;
    });
    if (!covers_one) offer(length, unknown_id_, unknown_score_);
    at += length;
  }
}

void Unigram::encode(std::string_view text, UnigramScratch& scratch, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  find_best(text, scratch.nodes);
  auto& reversed = scratch.reversed;
  reversed.clear();
  bool after_unknown = false;
  for (std::size_t end = text.size(); end > 0;) {
    const UnigramScratch::Node& node = scratch.nodes[end];
    const auto begin = static_cast<std::size_t>(node.begin);
    const bool unknown = node.id == unknown_id_;
    if (unknown && byte_fallback_) {
      for (std::size_t i = end; i > begin; --i) reversed.push_back(byte_ids_[static_cast<std::uint8_t>(text[i - 1])]);
    } else if (!unknown || !after_unknown) {
      reversed.push_back(node.id);
    }
    after_unknown = unknown;
    end = begin;
  }
  ids.insert(ids.end(), reversed.rbegin(), reversed.rend());
}

}  // namespace mstar::text
