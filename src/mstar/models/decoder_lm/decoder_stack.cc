#include "mstar/models/decoder_lm/decoder_stack.h"

#include "mstar/nn/rotary.h"
#include "mstar/resource/paged_kv.h"

namespace mstar::models {
namespace {

class Stack final : public DecoderStack {
 public:
  static Result<std::unique_ptr<DecoderStack>> build(const DecoderConfig& c, decl::ResourceRef kv,
                                                     const nn::LoadContext& load, engine::BuildContext& build) {
    std::unique_ptr<Stack> out(new Stack(kv));
    MSTAR_TRY_ASSIGN(out->rotary_, nn::Rotary::create(build.device, c.frequencies, c.interleaved_rope));
    for (int i = 0; i < c.layers; ++i) {
      MSTAR_TRY_ASSIGN(nn::DecoderLayer layer,
                       nn::DecoderLayer::load(load, "decoder.layer." + std::to_string(i), c.layer));
      out->layers_.push_back(std::move(layer));
    }
    return std::unique_ptr<DecoderStack>(std::move(out));
  }

  Status run(engine::Forward& step, nn::Residual& x, TensorView positions,
             const nn::Residual::Reader& head) const override {
    const int slot = step.plan_slot();
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(kv_));
    for (std::size_t i = 0; i < layers_.size(); ++i)
      MSTAR_TRY(layers_[i].run(step.ops(), x, positions, rotary_, kv.ragged(slot), kv.view(static_cast<int>(i), slot),
                               i + 1 < layers_.size() ? layers_[i + 1].reader() : head));
    return ok_status();
  }
  std::size_t workspace_bytes(int /*rows*/, int tokens, int num_threads) const override {
    return layers_.front().workspace_bytes(tokens, num_threads, rotary_);
  }
  std::size_t bytes() const override {
    std::size_t bytes = rotary_.bytes();
    for (const nn::DecoderLayer& layer : layers_) bytes += layer.bytes();
    return bytes;
  }

 private:
  explicit Stack(decl::ResourceRef kv) : kv_(kv) {}

  decl::ResourceRef kv_;
  nn::Rotary rotary_;
  std::vector<nn::DecoderLayer> layers_;
};

}  // namespace

Result<std::unique_ptr<DecoderStack>> build_dense_stack(const DecoderConfig& config, decl::ResourceRef kv,
                                                        const nn::LoadContext& load, engine::BuildContext& build) {
  return Stack::build(config, kv, load, build);
}

}  // namespace mstar::models
