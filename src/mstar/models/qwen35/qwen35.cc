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
                                      .page_tokens = 16,
                                      .max_tokens_per_request = c.decoder.context_tokens,
                                      .dtype = c.decoder.activations(),
                                      .prefix_cache = c.decoder.prefix_cache,
                                      .pool_tokens = c.decoder.kv_tokens});
  const std::int64_t layers = c.num_delta_layers();
  if (layers > 0)
    state.delta = d.resource(decl::RecurrentState{
        .name = "decoder.state",
        .tensors = {{"conv", {layers, c.delta.taps - 1, c.delta.conv_width()}},
                    {"rule", {layers, c.delta.heads, c.delta.key_dim, c.delta.value_dim}, c.state}},
        .double_buffered = c.decoder.backend == Backend::cuda,
    });
  TextDecoderParts parts{.kv = state.kv,
                         .build = [config, state](const nn::LoadContext& load, engine::BuildContext& build) {
                           return build_qwen35_stack(*config, state, load, build);
                         }};
  if (layers > 0) parts.more = {state.delta};
  add_text_decoder(d, std::shared_ptr<const TextDecoderConfig>(config, &config->decoder), std::move(parts));
  d.weights(qwen35_weight_rules(c, *source.checkpoint));
  return d;
}

}  // namespace mstar::models
