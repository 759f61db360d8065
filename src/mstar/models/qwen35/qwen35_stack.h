// The layers of Qwen3.5: gated delta nets with a layer of gated attention every few.
#pragma once

#include <memory>

#include "mstar/models/qwen35/qwen35_config.h"

namespace mstar::models {

struct Qwen35State {
  decl::ResourceRef kv;     // PagedKv of the attention layers
  decl::ResourceRef delta;  // RecurrentState: "conv" [delta layers, taps - 1, conv_width] f32 and "rule" [delta layers,
                            // heads, key_dim, value_dim]
};

Result<std::unique_ptr<DecoderStack>> build_qwen35_stack(const Qwen35Config& config, const Qwen35State& state,
                                                         const nn::LoadContext& load, engine::BuildContext& build);

}  // namespace mstar::models
