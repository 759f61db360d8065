#include "mstar/models/decoder_lm/decoder_lm.h"

#include "mstar/models/decoder_lm/decoder_stack.h"

namespace mstar::models {

Result<decl::Decl> declare_decoder_lm(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(DecoderConfig read, DecoderConfig::read(source));
  const auto config = std::make_shared<const DecoderConfig>(std::move(read));
  const DecoderConfig& c = *config;
  decl::Decl d(source.name.empty() ? c.decoder.architecture : source.name);
  const decl::ResourceRef kv = d.resource(decl::PagedKv{.name = "decoder.kv",
                                                        .layers = c.layers,
                                                        .kv_heads = c.layer.kv_heads,
                                                        .head_dim = c.layer.head_dim,
                                                        .page_tokens = 16,
                                                        .max_tokens_per_request = c.decoder.context_tokens,
                                                        .dtype = c.decoder.activations(),
                                                        .prefix_cache = c.decoder.prefix_cache,
                                                        .pool_tokens = c.decoder.kv_tokens});
  add_text_decoder(
      d, std::shared_ptr<const TextDecoderConfig>(config, &config->decoder),
      {.kv = kv,
       .shared_units = {{.name = "query heads", .count = c.layer.heads},
                        {.name = "key heads", .count = c.layer.kv_heads, .may_repeat = true},
                        {.name = "units of the feed-forward", .count = c.layer.ffn_dim, .are_heads = false}},
       .build = [config, kv](const nn::LoadContext& load, engine::BuildContext& build) {
         return build_dense_stack(*config, kv, load, build);
       }});
  d.weights(decoder_lm_weight_rules(c, source.checkpoint->format()));
  return d;
}

}  // namespace mstar::models
