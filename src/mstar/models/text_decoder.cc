#include "mstar/models/text_decoder.h"

#include <algorithm>
#include <cstdint>

#include "mstar/models/checkpoint_numbers.h"
#include "mstar/models/text_decoder_body.h"
#include "mstar/models/text_surface.h"

namespace mstar::models {
namespace {

using namespace decl;

struct Walks {
  WalkRef prefill, decode;
};

const std::vector<int> kCapturedRows = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};
// Of steps with prompts. A product's time grows in tiles of 128 tokens anyway.
const std::vector<int> kCapturedTokens = {32,   64,   128,  256,  384,  512,  640,  768,  896,  1024, 1152, 1280,
                                          1408, 1536, 1664, 1792, 1920, 2048, 2176, 2304, 2432, 2560, 2688, 2816};
// Of those that are not one graph, for a row tells log-probabilities: fewer, they are rare.
const std::vector<int> kTrunkTokens = {32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192};

Capture captures_of(bool on_cuda) {
  if (!on_cuda) return {};
  return {.rows = kCapturedRows,
          .tokens = kCapturedTokens,
          .regions = {{.name = std::string(kTrunkRegion),
                       .rows = kCapturedRows,
                       .tokens = kTrunkTokens,
                       .lease_before_step = true}}};
}

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

Status TextDecoderConfig::read_options(const ModelSource& source) {
  backend = source.backend;
  MSTAR_TRY_ASSIGN(const std::string kept, source.options.get_string("weights", "stored"));
  keep_blocks = kept == "stored" && backend == Backend::cpu;
  MSTAR_TRY_ASSIGN(context_tokens, context_of(source, context_tokens));
  MSTAR_TRY_ASSIGN(kv_tokens, kv_tokens_of(source));
  MSTAR_TRY_ASSIGN(batch_invariant, source.options.get_bool("batch_invariant", false));
  // What is left of a prompt behind a cached prefix may go through other kernels than the whole.
  if (batch_invariant && backend == Backend::cuda && source.options.get_bool("prefix_cache", false).value_or(false))
    return std::move(bad_model("options prefix_cache and batch_invariant exclude each other on CUDA"))
        .with_field("prefix_cache");
  MSTAR_TRY_ASSIGN(prefix_cache,
                   source.options.get_bool("prefix_cache", !(batch_invariant && backend == Backend::cuda)));
  return ok_status();
}

void add_text_decoder(Decl& d, std::shared_ptr<const TextDecoderConfig> config, TextDecoderParts parts) {
  const TextDecoderConfig& c = *config;
  const bool on_cuda = c.backend == Backend::cuda;
  TextDecoderRefs r;
  Walks w;
  r.config = config;
  r.kv = parts.kv;
  r.sampler = d.resource(Sampler{
      .name = "decoder.sampler", .vocab = c.vocab, .penalties = true, .min_p = true, .stop_ids = c.text.stop_ids});
  r.prompt = d.port({.name = "prompt", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {FromRequest{}}});
  r.token = d.port({.name = "token",
                    .dtype = DType::i32,
                    .axes = {{"one", 1}},
                    .travel = {Keep{}, FromPlan{}, ToClient{Modality::text, "utf8"}},
                    .counts_token = true});
  r.logprobs =
      d.port({.name = "logprobs", .axes = {{"tokens"}, {"pair", 2}}, .travel = {ToClient{Modality::text, "f32"}}});
  std::vector<ResourceRef> uses = {r.kv, r.sampler};
  uses.insert(uses.end(), parts.more.begin(), parts.more.end());
  const auto backbone = d.component(DeviceComponent{.name = "decoder",
                                                    .build = build_text_decoder(r, std::move(parts.build)),
                                                    .homes = {"decoder."},
                                                    .uses = std::move(uses),
                                                    .capture = captures_of(on_cuda),
                                                    .compute = c.activations(),
                                                    .max_batch_rows = on_cuda ? 256 : 64,
                                                    .max_batch_tokens = on_cuda ? 8192 : 512,
                                                    .chunked_prefill = true,
                                                    .tensor_parallel = true,
                                                    .sequence_parallel = true,
                                                    .shared_units = std::move(parts.shared_units)});
  const std::vector<PortRef> out = {r.token, r.logprobs};
  const TokenStop stop{.token = r.token, .ids = c.text.stop_ids, .prefill_walks = {"prefill"}};
  w.prefill = d.walk("prefill", Run{backbone, {r.prompt}, out});
  w.decode = d.walk(
      "decode",
      Loop{.name = "decode", .body = {Run{backbone, {r.token}, out}}, .stop = stop, .at_most = c.context_tokens});
  d.partition({.walks = {w.prefill, w.decode},
               .plan = [w, r](const RequestParams&) { return std::make_unique<TextPlan>(w, r.token); }});
  // What could not run alone in the pool is refused like what is longer than the context.
  const std::int64_t room = c.kv_tokens > 0 ? std::min<std::int64_t>(c.context_tokens, c.kv_tokens) : c.context_tokens;
  add_text_surfaces(d, TextModel{.text = c.text,
                                 .context_tokens = static_cast<int>(room),
                                 .vocab = c.vocab,
                                 .prompt = r.prompt,
                                 .token = r.token,
                                 .logprobs = r.logprobs});
}

}  // namespace mstar::models
