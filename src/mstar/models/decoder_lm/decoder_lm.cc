#include "mstar/models/decoder_lm/decoder_lm.h"

#include "mstar/models/decoder_lm/decoder_body.h"
#include "mstar/models/text_surface.h"

namespace mstar::models {
namespace {

using namespace decl;

struct Walks {
  WalkRef prefill, decode;
};

// prefill, then decode until a stop id or the budget.
class TextPlan final : public Plan {
 public:
  TextPlan(Walks walks, PortRef token) : walks_(walks), token_(token) {}
  Result<Decision> next(const PlanView& view) override {
    if (!view.finished.valid()) return Decision(NextWalk{.walk = walks_.prefill});
    if (view.finished == walks_.prefill) {
      NextWalk decode{.walk = walks_.decode};
      decode.inputs.push_back({token_, view.kept.at(token_)});
      decode.caps = {{"decode", static_cast<int>(view.params.sampling.max_tokens - 1)}};
      return Decision(std::move(decode));
    }
    return Decision(Done{view.loop_ends.at("decode") == LoopEnd::stop ? Finish::stop : Finish::length});
  }

 private:
  Walks walks_;
  PortRef token_;
};

}  // namespace

Result<Decl> declare_decoder_lm(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(DecoderConfig read, DecoderConfig::read(source));
  const auto config = std::make_shared<const DecoderConfig>(std::move(read));
  const DecoderConfig& c = *config;
  Decl d(source.name.empty() ? c.architecture : source.name);
  DecoderRefs r;
  Walks w;
  r.config = config;
  r.kv = d.resource(PagedKv{.name = "decoder.kv",
                            .layers = c.layers,
                            .kv_heads = c.layer.kv_heads,
                            .head_dim = c.layer.head_dim,
                            .page_tokens = 16,
                            .max_tokens_per_request = c.context_tokens});
  r.sampler = d.resource(Sampler{.name = "decoder.sampler", .vocab = c.vocab, .penalties = true, .min_p = true});
  r.prompt = d.port({.name = "prompt", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {FromRequest{}}});
  r.token = d.port({.name = "token",
                    .dtype = DType::i32,
                    .axes = {{"one", 1}},
                    .travel = {Keep{}, FromPlan{}, ToClient{Modality::text, "utf8"}},
                    .counts_token = true});
  r.logprobs =
      d.port({.name = "logprobs", .axes = {{"tokens"}, {"pair", 2}}, .travel = {ToClient{Modality::text, "f32"}}});
  const auto backbone = d.component(DeviceComponent{.name = "decoder",
                                                    .build = build_decoder_lm(r),
                                                    .homes = {"decoder."},
                                                    .uses = {r.kv, r.sampler},
                                                    .max_batch_rows = 64,
                                                    .max_batch_tokens = 512,
                                                    .chunked_prefill = true});
  const std::vector<PortRef> out = {r.token, r.logprobs};
  const TokenStop stop{.token = r.token, .ids = c.text.stop_ids, .prefill_walks = {"prefill"}};
  w.prefill = d.walk("prefill", Run{backbone, {r.prompt}, out});
  w.decode = d.walk(
      "decode",
      Loop{.name = "decode", .body = {Run{backbone, {r.token}, out}}, .stop = stop, .at_most = c.context_tokens});
  d.partition({.walks = {w.prefill, w.decode},
               .plan = [w, r](const RequestParams&) { return std::make_unique<TextPlan>(w, r.token); }});
  add_text_surfaces(d, std::make_shared<const TextModel>(TextModel{.text = c.text,
                                                                   .context_tokens = c.context_tokens,
                                                                   .vocab = c.vocab,
                                                                   .prompt = r.prompt,
                                                                   .token = r.token,
                                                                   .logprobs = r.logprobs}));
  d.weights(decoder_lm_weight_rules(c, source.checkpoint->format()));
  return d;
}

}  // namespace mstar::models
