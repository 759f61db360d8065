#include "mstar/models/qwen35/qwen35.h"

#include "mstar/models/qwen35/qwen35_stack.h"

namespace mstar::models {

Result<decl::Decl> declare_qwen35(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(Qwen35Config read, Qwen35Config::read(source));
  const auto config = std::make_shared<const Qwen35Config>(std::move(read));
  const Qwen35Config& c = *config;
  decl::Decl d(source.name.empty() ? c.decoder.architecture : source.name);
  Qwen35State state;
  state.kv = d.resource(decl::PagedKv{.name = "decoder.kv",
                                      .layers = c.num_attention_layers(),
                                      .kv_heads = c.attention.kv_heads,
                                      .head_dim = c.attention.head_dim,
                                      .page_tokens = kPageTokens,
                                      .max_tokens_per_request = c.decoder.context_tokens,
                                      .dtype = c.decoder.activations(),
                                      .prefix_cache = c.decoder.prefix_cache,
                                      .pool_tokens = c.decoder.kv_tokens});
  const bool is_hybrid = c.num_delta_layers() > 0;
  if (is_hybrid)
    state.delta = d.resource(decl::RecurrentState{.name = "decoder.state",
                                                  .tensors = c.state_tensors(),
                                                  .double_buffered = c.decoder.backend == Backend::cuda,
                                                  .snapshots = c.state_snapshots,
                                                  .snapshot_tokens = c.snapshot_tokens});
  TextDecoderParts parts{
      .kv = state.kv,
      .shared_units = {{.name = "units of the feed-forward", .count = c.ffn_dim, .are_heads = false}},
      .build = [config, state](const nn::LoadContext& load, engine::BuildContext& build) {
        return build_qwen35_stack(*config, state, load, build);
      }};
  if (is_hybrid) {
    parts.more = {state.delta};
    parts.shared_units.push_back({.name = "key heads of a delta net", .count = c.delta.key_heads});
  }
  if (c.num_attention_layers() > 0) {
    parts.shared_units.push_back({.name = "query heads", .count = c.attention.heads});
    parts.shared_units.push_back({.name = "key heads", .count = c.attention.kv_heads, .may_repeat = true});
  }
  add_text_decoder(d, std::shared_ptr<const TextDecoderConfig>(config, &config->decoder), std::move(parts));
  d.weights(qwen35_weight_rules(c, *source.checkpoint));
  return d;
}

}  // namespace mstar::models
