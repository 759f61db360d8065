#include "mstar/models/qwen35/qwen35_stack.h"

#include <algorithm>
#include <optional>

#include "mstar/nn/gated_mlp.h"
#include "mstar/nn/rotary.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/state_slots.h"

namespace mstar::models {
namespace {

// One layer's part of every slot: [slots, layers, dims...] without the second axis.
TensorView layer_of(TensorView slots, int layer) {
  TensorView out = slots;
  out.pointer = static_cast<std::byte*>(slots.pointer) +
                layer * slots.stride(1) * static_cast<std::int64_t>(dtype_bytes(slots.dtype));
  std::vector<std::int64_t> dims = {slots.dim(0)};
  for (int axis = 2; axis < slots.shape.rank(); ++axis) {
    dims.push_back(slots.dim(axis));
    out.strides[static_cast<std::size_t>(axis - 1)] = slots.stride(axis);
  }
  out.shape = Shape(dims);
  return out;
}

struct Layer {
  nn::RmsNorm norm1, norm2;
  std::optional<nn::GatedAttention> attention;  // or else a delta net
  std::optional<nn::DeltaNet> delta;
  nn::GatedMlp mlp;
  int index = 0;  // among the layers of its kind

  nn::Residual::Reader reader() const { return attention ? attention->reader(norm1) : delta->reader(norm1); }
};

class Stack final : public DecoderStack {
 public:
  static Result<std::unique_ptr<DecoderStack>> build(const Qwen35Config& c, const Qwen35State& state,
                                                     const nn::LoadContext& load, engine::BuildContext& build) {
    std::unique_ptr<Stack> out(new Stack(state));
    MSTAR_TRY_ASSIGN(out->rotary_, nn::Rotary::create(build.device, c.frequencies, false));
    int num_attention = 0, num_delta = 0;
    for (int i = 0; i < c.num_layers(); ++i) {
      const std::string name = "decoder.layer." + std::to_string(i);
      Layer layer;
      MSTAR_TRY_ASSIGN(layer.norm1, nn::RmsNorm::load(load, name + ".norm1", c.decoder.dim, c.decoder.norm_epsilon,
                                                      c.decoder.norm_offset));
      MSTAR_TRY_ASSIGN(layer.norm2, nn::RmsNorm::load(load, name + ".norm2", c.decoder.dim, c.decoder.norm_epsilon,
                                                      c.decoder.norm_offset));
      if (c.full_attention[static_cast<std::size_t>(i)]) {
        MSTAR_TRY_ASSIGN(layer.attention, nn::GatedAttention::load(load, name, c.attention));
        layer.index = num_attention++;
      } else {
        MSTAR_TRY_ASSIGN(layer.delta, nn::DeltaNet::load(load, name, c.delta));
        layer.index = num_delta++;
      }
      MSTAR_TRY_ASSIGN(layer.mlp, nn::GatedMlp::load(load, name, c.decoder.dim, c.ffn_dim));
      out->layers_.push_back(std::move(layer));
    }
    return std::unique_ptr<DecoderStack>(std::move(out));
  }

  Status run(engine::Forward& step, nn::Residual& x, TensorView positions,
             const nn::Residual::Reader& head) const override {
    OpContext& ops = step.ops();
    const int slot = step.plan_slot();
    auto& kv = static_cast<resource::PagedKvPool&>(step.resource(state_.kv));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      const nn::Residual::Reader mlp = layer.mlp.reader(layer.norm2);
      MSTAR_TRY(x.norm(ops, layer.norm1));
      if (layer.attention) {
        MSTAR_TRY(layer.attention->run(ops, x, positions, rotary_, kv.ragged(slot), kv.view(layer.index, slot), mlp));
      } else {
        const auto& slots = static_cast<resource::StateSlots&>(step.resource(state_.delta));
        MSTAR_TRY(layer.delta->run(ops, x, positions, kv.ragged(slot),
                                   {.conv = layer_of(slots.tensor(0), layer.index),
                                    .rule = layer_of(slots.tensor(1), layer.index),
                                    .slots = slots.write_index(slot),
                                    .read_slots = slots.read_index(slot),
                                    .kept = slots.kept(slot)},
                                   mlp));
      }
      MSTAR_TRY(x.norm(ops, layer.norm2));
      MSTAR_TRY(layer.mlp.run(ops, x, i + 1 < layers_.size() ? layers_[i + 1].reader() : head));
    }
    return ok_status();
  }

  std::size_t workspace_bytes(int /*rows*/, int tokens, int num_threads) const override {
    std::size_t most = 0;
    for (const Layer& layer : layers_)
      most = std::max({most, layer.mlp.workspace_bytes(tokens, num_threads),
                       layer.attention ? layer.attention->workspace_bytes(tokens, num_threads, rotary_)
                                       : layer.delta->workspace_bytes(tokens, num_threads)});
    return most;
  }

  std::size_t bytes() const override {
    std::size_t bytes = rotary_.bytes();
    for (const Layer& layer : layers_)
      bytes += layer.norm1.bytes() + layer.norm2.bytes() + layer.mlp.bytes() +
               (layer.attention ? layer.attention->bytes() : layer.delta->bytes());
    return bytes;
  }

 private:
  explicit Stack(const Qwen35State& state) : state_(state) {}

  Qwen35State state_;
  nn::Rotary rotary_;
  std::vector<Layer> layers_;
};

}  // namespace

Result<std::unique_ptr<DecoderStack>> build_qwen35_stack(const Qwen35Config& config, const Qwen35State& state,
                                                         const nn::LoadContext& load, engine::BuildContext& build) {
  return Stack::build(config, state, load, build);
}

}  // namespace mstar::models
